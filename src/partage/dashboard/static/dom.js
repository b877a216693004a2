// Elements and texts. Everything that comes from the cluster becomes a text node or an attribute,
// never markup: names and reasons are other people's.

/** An element with attributes and children; attributes that are null or false are left out. */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === false || value === undefined) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "place") {
      for (const [property, amount] of Object.entries(value)) element.style.setProperty(property, amount);
    } else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Bytes as people write them. */
export function bytes(amount) {
  let value = amount;
  for (const unit of ["", "Ki", "Mi", "Gi", "Ti"]) {
    if (value < 1024 || unit === "Ti") return `${Number(value.toFixed(value < 10 ? 1 : 0))}${unit}`;
    value /= 1024;
  }
  return `${amount}`;
}

/** Thousandths of a card as percent. */
export const percent = (milli) => `${Number((milli / 10).toFixed(1))}%`;

/** Thousandths of a card as cards. */
export const cardsOf = (milli) => `${Number((milli / 1000).toFixed(1))}`;

/** A whole number with separators. */
export const count = (number) => number.toLocaleString("en");

/** The part used, from 0 to 1. */
export const part = (amount) => (amount.total ? Math.max(0, Math.min(1, amount.used / amount.total)) : 0);

/** A meter with its text for those who do not see it. */
export function meter(amount, kind, label, text) {
  const used = part(amount);
  return h("span", {
    class: `meter ${kind}`, role: "meter", "aria-label": label, "aria-valuemin": "0", "aria-valuemax": "100",
    "aria-valuenow": String(Math.round(used * 100)), "aria-valuetext": text,
  }, h("span", { place: { width: `${used * 100}%` } }));
}

/** A table; a column is [title, class], a row a list of cells (texts, elements). */
export function table(label, columns, rows) {
  const cell = (value, index) => {
    const heads = index === 0 && value !== ""; // a row that goes on with the one above has no head
    return h(heads ? "th" : "td", { scope: heads ? "row" : null, class: columns[index][1] || null }, value);
  };
  return h("div", { class: "scroll", role: "region", "aria-label": label, tabindex: "0" },
    h("table", {}, h("caption", { class: "hidden" }, label),
      h("thead", {}, h("tr", {}, columns.map(([title, kind]) => h("th", { scope: "col", class: kind || null }, title)))),
      h("tbody", {}, rows.map((row) => h("tr", {}, row.map(cell))))));
}

/** A link to a page of this dashboard; what was typed in names stays one part of it. */
export const link = (parts, text, attributes = {}) =>
  h("a", { href: `#/${parts.map(encodeURIComponent).join("/")}`, ...attributes }, text);

/** A link to a pod's explanation, or words where it is not named to this reader. */
export const podLink = (pod) => (pod.name === null ? h("span", { class: "quiet" }, "another namespace's pod")
  : link(["pod", pod.namespace, pod.name], `${pod.namespace}/${pod.name}`));
