// Filters and pages: their state is in the address, so that a view can be sent to somebody else.
import { count, h } from "./dom.js";

/** A form; a field is [name, label] for text, or [name, label, choices]. */
export function filters(query, go, fields) {
  let typing = 0;
  const change = (form) => {
    clearTimeout(typing);
    go(Object.fromEntries(fields.map(([name]) => [name, form.elements.namedItem(name).value])));
  };
  const typed = (event) => {
    const { form } = event.target;
    clearTimeout(typing);
    typing = setTimeout(change, 250, form);
  };
  return h("form", { class: "filters", role: "search", onsubmit: (event) => { event.preventDefault(); change(event.target); } },
    fields.map(([name, label, choices]) => h("label", {}, label, choices
      ? h("select", { name, onchange: (event) => change(event.target.form) }, choices.map(([value, text]) => h("option", { value, selected: (query[name] || "") === value }, text)))
      : h("input", { name, type: "search", value: query[name] || "", maxlength: "253", oninput: typed }))));
}

/** Which part of a list is shown, and ways to the others. */
export function pager(total, shown, limit, query, go, text) {
  const offset = Number(query.offset) || 0;
  const to = (target) => () => go({ ...query, offset: target > 0 ? String(target) : "" });
  return h("div", { class: "pager" },
    h("button", { type: "button", "data-key": "back", disabled: offset <= 0, onclick: to(offset - limit) }, "Back"),
    h("button", { type: "button", "data-key": "next", disabled: offset + shown >= total, onclick: to(offset + limit) }, "Next"),
    h("span", { class: "quiet", role: "status" }, shown ? `${count(offset + 1)} to ${count(offset + shown)} of ${text}` : text));
}
