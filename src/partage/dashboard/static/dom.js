// Elements and texts, described first and then drawn: only what differs from what is on the screen is
// touched, so that focus, scrolling and selections stay and little is laid out again. Everything that
// comes from the cluster becomes a text node or an attribute, never markup: names and reasons are other
// people's.

const SLICE = 12; // milliseconds of drawing before clicks, keys and painting get their turn
const shown = new WeakMap(); // what was described of each element

/** An element with attributes and children; attributes that are null or false are left out. */
export function h(tag, attributes = {}, ...children) {
  return { tag, key: attributes.key, attributes, children };
}

/** A part that is described and drawn again only when its value has changed; keys differ among siblings. */
export const kept = (key, value, make) => ({ key, says: JSON.stringify(value), make });

/** The children as they are drawn: nested lists are one, and what is nothing is left out. */
const listed = (children) => children.flat(Infinity).filter((one) => one !== null && one !== undefined && one !== false && one !== "");

/** Draw this in place of what a parent has; false where it was given up because `still` said so. */
export async function draw(parent, children, still = () => true) {
  const held = document.activeElement;
  const work = fill(parent, listed([children]));
  let until = performance.now() + SLICE;
  while (!work.next().done) {
    if (performance.now() < until) continue;
    await new Promise((done) => { setTimeout(done); });
    if (!still()) return false;
    until = performance.now() + SLICE;
  }
  if (held !== document.activeElement && parent.contains(held)) held.focus({ preventScroll: true }); // it was moved
  return true;
}

/** An element that is drawn at once. */
export function element(wanted) {
  const work = made(wanted);
  let step = work.next();
  while (!step.done) step = work.next();
  return step.value;
}

function* fill(parent, wanted) {
  const keys = new Set(wanted.map((one) => one.key).filter((key) => key !== undefined));
  const keyed = new Map();
  for (const node of [...parent.childNodes]) {
    const { key } = shown.get(node) || {};
    if (key === undefined) continue;
    if (keys.has(key)) keyed.set(key, node);
    else node.remove();
  }
  let at = parent.firstChild;
  for (const one of wanted) {
    let node = one.tag || one.make ? fitting(one, at, keyed) : at && at.nodeType === Node.TEXT_NODE ? at : null;
    if (node && node.nodeType === Node.TEXT_NODE) {
      if (node.data !== String(one)) node.data = String(one);
    } else if (node) yield* renewed(node, one);
    else node = one.tag || one.make ? yield* made(one) : document.createTextNode(String(one));
    if (node === at) at = at.nextSibling;
    else parent.insertBefore(node, at);
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

/** The element that shows this already: the one with its key, or, without keys, one of its kind at its place. */
function fitting(one, at, keyed) {
  if (one.key !== undefined) return keyed.get(one.key) || null;
  const known = at && shown.get(at);
  return known && known.key === undefined && known.tag === one.tag ? at : null;
}

function* made(one) {
  const wanted = one.make ? one.make() : one;
  const node = document.createElement(wanted.tag);
  shown.set(node, { tag: wanted.tag, key: one.key, attributes: {} });
  yield* dressed(node, one, wanted);
  return node;
}

function* renewed(node, one) {
  if (one.says !== undefined && one.says === shown.get(node).says) return;
  yield* dressed(node, one, one.make ? one.make() : one);
}

function* dressed(node, one, wanted) {
  const known = shown.get(node);
  known.says = undefined;
  dress(node, known.attributes, wanted.attributes);
  known.attributes = wanted.attributes;
  yield* fill(node, listed(wanted.children));
  known.says = one.says;
  if (one.make) yield;
}

function dress(node, before, after) {
  for (const name of Object.keys(before)) if (!(name in after)) dressOne(node, name, null, before[name]);
  for (const [name, value] of Object.entries(after)) if (before[name] !== value) dressOne(node, name, value, before[name]);
}

function dressOne(node, name, value, before) {
  if (name === "key") return;
  if (name.startsWith("on")) node[name] = value;
  else if (name === "place") {
    for (const [property, amount] of Object.entries(value || {})) if (!before || before[property] !== amount) node.style.setProperty(property, amount);
  } else if (value === null || value === false || value === undefined) node.removeAttribute(name);
  else node.setAttribute(name, value === true ? "" : value);
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

/** A row of a table: cells are texts or elements. */
export const tr = (columns, cells) => h("tr", {}, cells.map((value, index) => {
  const heads = index === 0 && value !== ""; // a row that goes on with the one above has no head
  return h(heads ? "th" : "td", { scope: heads ? "row" : null, class: columns[index][1] || null }, value);
}));

/** A table; a column is [title, class], a row a list of cells or a `tr` that is kept. */
export const table = (label, columns, rows) =>
  h("div", { class: "scroll", role: "region", "aria-label": label, tabindex: "0" },
    h("table", {}, h("caption", { class: "hidden" }, label),
      h("thead", {}, h("tr", {}, columns.map(([title, kind]) => h("th", { scope: "col", class: kind || null }, title)))),
      h("tbody", {}, rows.map((row) => (Array.isArray(row) ? tr(columns, row) : row)))));

/** A link to a page of this dashboard; what was typed in names stays one part of it. */
export const link = (parts, text, attributes = {}) =>
  h("a", { href: `#/${parts.map(encodeURIComponent).join("/")}`, ...attributes }, text);

/** A link to a pod's explanation, or words where it is not named to this reader. */
export const podLink = (pod) => (pod.name === null ? h("span", { class: "quiet" }, "another namespace's pod")
  : link(["pod", pod.namespace, pod.name], `${pod.namespace}/${pod.name}`));
