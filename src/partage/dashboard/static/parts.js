// What several views are made of: links, meters, lines over time, tables, filters and pages.
import { h } from "./draw.js";
import { age, count, date, part } from "./format.js";

/** A meter with its text for those who do not see it. */
export function meter(amount, kind, label, text) {
  const used = part(amount);
  return h("span", {
    class: `meter ${kind}`, role: "meter", "aria-label": label, "aria-valuemin": "0", "aria-valuemax": "100",
    "aria-valuenow": String(Math.round(used * 100)), "aria-valuetext": text,
  }, h("span", { style: { width: `${used * 100}%` } }));
}

/** A link to a page of this dashboard; what was typed in names stays one part of it. */
export const link = (parts, text, attributes = {}) =>
  h("a", { href: `#/${parts.map(encodeURIComponent).join("/")}`, ...attributes }, text);

/** A link to a list with these filters. */
export const filtered = (page, query, text) => h("a", { href: `#/${page}?${new URLSearchParams(query)}` }, text);

/** A link to a pod's explanation, or words where it is not named to this reader. */
export const podLink = (pod) => (pod.name === null ? h("span", { class: "quiet" }, "another namespace's pod")
  : link(["pod", pod.namespace, pod.name], `${pod.namespace}/${pod.name}`));

/** How long ago a moment was. */
export const since = (moment) => (moment ? h("time", { datetime: moment, title: date(moment) }, age(moment)) : "");

/** A line over time with what it says in words; values are oldest first. */
export function spark(label, values, write, top = 0) {
  if (values.length < 2) return null;
  const most = Math.max(top, ...values, 1);
  const x = (i) => (100 * i) / (values.length - 1);
  const y = (value) => 23 - (22 * Math.max(value, 0)) / most;
  const line = values.map((value, i) => `${i ? "L" : "M"}${x(i).toFixed(1)} ${y(value).toFixed(1)}`).join("");
  const says = `${label}: from ${write(values[0])} to ${write(values[values.length - 1])}, least ${write(Math.min(...values))}, most ${write(Math.max(...values))}`;
  return h("svg", { class: "spark", viewBox: "0 0 100 24", preserveAspectRatio: "none", role: "img", "aria-label": says },
    h("title", {}, says), h("path", { class: "under", d: `${line}L100 24L0 24Z` }), h("path", { class: "line", d: line }));
}

/** A row of a table: cells are texts or elements. Where there are fewer than columns, the last one takes the room of those that are left. */
export const tr = (columns, cells) => h("tr", {}, cells.map((value, index) => {
  const heads = index === 0 && value !== ""; // a row that goes on with the one above has no head
  const more = index === cells.length - 1 ? columns.length - cells.length : 0;
  const [title, kind] = columns[index + more];
  return h(heads ? "th" : "td", { ...(heads ? { scope: "row" } : {}), ...(more ? { colspan: String(more + 1) } : {}), class: `${kind || ""}${value === "" || value === null ? " none" : ""}`,
    "data-label": title }, h("span", {}, value));
}));

/** A table; a column is [title, class, order], a row a list of cells or a `tr` that is kept. With `sorting` heads of columns that have an order are buttons. */
export const table = (label, columns, rows, sorting = null) =>
  h("div", { class: "scroll", role: "region", "aria-label": label, tabindex: "0" },
    h("table", {}, h("caption", { class: "hidden" }, label),
      h("thead", {}, h("tr", {}, columns.map((column) => head(column, sorting)))),
      h("tbody", {}, rows.map((row) => (Array.isArray(row) ? tr(columns, row) : row)))));

function head([title, kind, order], sorting) {
  if (!sorting || !order) return h("th", { scope: "col", class: kind || "" }, title);
  const { query, go } = sorting;
  const on = (query.order || "name") === order;
  const turned = on && query.reverse === "yes";
  const next = { ...query, order: order === "name" ? "" : order, reverse: on && !turned ? "yes" : "", offset: "" };
  return h("th", { scope: "col", class: kind || "", "aria-sort": on ? (turned ? "descending" : "ascending") : "none" },
    h("button", { type: "button", class: "sort", onClick: () => go(next) }, title, h("span", { "aria-hidden": "true" }, on ? (turned ? " ▲" : " ▼") : "")));
}

/** A form; its state is in the address, so that a view can be sent to others. A field is [name, label] for text, or [name, label, choices]. */
export function filters(query, go, fields) {
  const names = fields.map(([name]) => name);
  const change = (form) => {
    clearTimeout(form.typing);
    if (!form.isConnected) return; // another view is shown by now
    const given = Object.fromEntries(names.map((name) => [name, form.elements.namedItem(name).value]));
    go({ ...query, ...given, offset: "" });
  };
  const typed = (event) => {
    const { form } = event.target;
    clearTimeout(form.typing);
    form.typing = setTimeout(change, 250, form);
  };
  return h("form", { class: "filters", role: "search", onSubmit: (event) => { event.preventDefault(); change(event.target); } },
    fields.map(([name, label, choices]) => h("label", { key: name }, label, choices
      ? h("select", { name, onChange: (event) => change(event.target.form) }, known(choices, query[name]).map(([value, text]) =>
        h("option", { key: value, value, selected: (query[name] || "") === value }, text)))
      : h("input", { name, type: "search", defaultValue: query[name] || "", maxlength: "253", onInput: typed }))));
}

/** The choices, with the one that is in the address even where nothing is like it now. */
const known = (choices, value) => (!value || choices.some(([one]) => one === value) ? choices : [...choices, [value, value]]);

/** Choices of a dropdown out of plain values. */
export const choices = (all, values) => [["", all], ...values.map((value) => [value, value])];

/** Which part of a list is shown, and ways to the others. */
export function pager(total, shown, limit, query, go, text) {
  const offset = Number(query.offset) || 0;
  const to = (target) => () => go({ ...query, offset: target > 0 ? String(target) : "" });
  return h("div", { class: "pager" },
    h("button", { type: "button", disabled: offset <= 0, onClick: to(offset - limit) }, "Back"),
    h("button", { type: "button", disabled: offset + shown >= total, onClick: to(offset + limit) }, "Next"),
    h("span", { class: "quiet", role: "status" }, shown ? `${count(offset + 1)} to ${count(offset + shown)} of ${text}` : text));
}
