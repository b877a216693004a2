// Cards as a picture: a lane for compute and one for memory. On both the same pods stand in the same order
// under the same name, and every hardware instance lies at its place on the card.
import { h } from "./draw.js";
import { bytes, date, many, percent, plainModel, share } from "./format.js";
import { link, podLink, table } from "./parts.js";
import { box, words } from "./picture.js";

const FAMILIES = ["koordinator", "qgpu", "hami"];
const family = (protocol) => (FAMILIES.includes(protocol) ? protocol : "other");
const places = (instances) => instances.map((i) => `${i.profile} at ${i.start}`).join(", ");
const profiles = (instances, narrow) => [...new Set(instances.map((i) => (narrow ? i.profile.replace(/\..*/, "") : i.profile)))].join(", ");
const NARROW = 20; // percent of a lane below which a profile is named by its compute alone: 1g of 1g.5gb
const who = (one) => (one.others ? "not made by Partage" : one.name === null ? "another namespace's pod" : `${one.namespace}/${one.name}`);

/** A card's name on its node. */
export const nameOf = (one) => `${one.type} ${one.minor}`;

/** What the colours mean. */
export const legend = () => h("ul", { class: "legend", "aria-label": "Colours" },
  [["koordinator", "Koordinator, MetaX"], ["qgpu", "qGPU"], ["hami", "HAMi"], ["other", "other"]].map(
    ([name, text]) => h("li", {}, h("i", { class: name }), text)),
  h("li", {}, "C compute, M memory; dashed: not bound yet"));

/** One card in brief, as an item of a list, with more below it; parts from so many percent on are named. */
export function card(one, more = null, least = 18, at = "") {
  const name = nameOf(one);
  const id = at ? { id: at } : {};
  return h("li", { class: `card ${one.closed ? "closed" : ""}`, "data-card": name, ...id },
    h("div", { class: "card-head" }, h("span", {}, name),
      h("span", { class: one.closed ? "bad" : "quiet" }, one.closed || share(one.core_milli))),
    lanes(one).map(([letter, kind, parts]) => lane(letter, kind, parts, kind === "memory" ? one.axis : null, least)),
    h("span", { class: "hidden" }, sentence(one)), more);
}

/** A pod's link; a claim has no page of its own. */
const holder = (tenant) => (tenant.protocols.includes("claim") && tenant.name !== null ? `claim ${who(tenant)}` : podLink(tenant));

/** One card with the list of who is on it, and what came and went. */
export function largeCard(one, history, at) {
  const rows = ordered(one).filter((t) => !t.others).map((tenant) => [holder(tenant), percent(tenant.core_milli), bytes(tenant.memory_bytes), how(tenant)]);
  return card(one, [
    h("div", { class: "quiet below" }, `${percent(one.core_milli.used)} of ${percent(one.core_milli.total)} compute, `,
      `${bytes(one.memory_bytes.used)} of ${bytes(one.memory_bytes.total)} memory, ${one.slots.used} of ${one.slots.total} slots`,
      one.model ? `, ${plainModel(one.model)}` : "", h("br"), h("code", {}, one.uuid)),
    one.closed ? h("p", { class: "bad" }, `${one.closed}: ${one.closed_detail || "takes no pods"}`) : "",
    one.foreign.length ? h("p", {}, `Not made by Partage: ${places(one.foreign)}`) : "",
    rows.length ? h("div", { class: "stacked" }, table(`Pods on ${nameOf(one)}`, [["pod"], ["compute", "number"], ["memory", "number"], ["how", "keep"]], rows))
      : h("p", { class: "empty" }, "No pod is on it."),
    past(nameOf(one), history),
  ], 8, at);
}

/** What came and went on a card, the newest first. */
function past(name, history) {
  if (!history || !history.since) return "";
  const rows = history.cards[name] || [];
  return h("details", {}, h("summary", {}, rows.length ? `History (${rows.length})` : "History: nothing changed"),
    h("p", { class: "quiet" }, `Since ${date(history.since)}, when this instance of the service started.`),
    rows.length ? table(`History of ${name}`, [["when"], ["what"], ["who", "wide"]], rows.map((one) => [
      date(one.at), one.what, one.code ? [one.code, one.detail].filter(Boolean).join(": ")
        : [one.name === null ? "another namespace's pod" : `${one.namespace}/${one.name}`, ": ", percent(one.core_milli), ", ", bytes(one.memory_bytes),
          one.instances.length ? `, ${one.instances.join(", ")}` : ""]])) : "");
}

const how = (tenant) => [
  tenant.mig.length ? places(tenant.mig) : tenant.whole ? "whole card" : "share",
  tenant.protocols.length ? ` (${tenant.protocols.join(", ")})` : "", tenant.state === "bound" ? "" : `, ${tenant.state}`].join("");

function sentence(one) {
  const used = `${percent(one.core_milli.used)} of compute and ${bytes(one.memory_bytes.used)} of ${bytes(one.memory_bytes.total)} of memory used`;
  const tenants = ordered(one).map((t) => (t.others ? `${who(t)} ${places(t.mig)}` : `${who(t)} ${how(t)} ${percent(t.core_milli)} ${bytes(t.memory_bytes)}`));
  return `${used}. ${tenants.join("; ") || "No pod is on it"}. ${one.closed_detail}`;
}

/** All that is on a card in the order in which both lanes show them: by place, where instances have one. */
function ordered(one) {
  const others = one.axis ? one.foreign.map((i) => ({ others: true, protocols: [], state: "bound", core_milli: 0, memory_bytes: 0, mig: [i] })) : [];
  return [...others, ...one.tenants].sort(byPlace);
}

const start = ({ mig }) => Math.min(...mig.map((i) => i.start)); // Infinity without instances
const byPlace = (a, b) => (start(a) - start(b)) || 0;
const slices = (instance) => parseInt(instance.profile, 10) || instance.size; // of compute: 2 of 2g.10gb

/** What stands on both lanes: a tenant, or each of its instances by itself. */
function pieces(one) {
  return ordered(one).flatMap((tenant) => {
    if (!one.axis || tenant.mig.length < 2) return [{ tenant, mig: tenant.mig, core: tenant.core_milli }];
    const all = tenant.mig.reduce((sum, i) => sum + slices(i), 0);
    return tenant.mig.map((i) => ({ tenant, mig: [i], core: tenant.core_milli * slices(i) / all }));
  }).sort(byPlace);
}

/** Lanes as [letter, kind, parts]; a part's place and size are in percent of the card. */
function lanes(one) {
  const all = pieces(one);
  const part = ({ tenant, mig }, left, width) => ({ tenant, left, width,
    text: [tenant.others ? "" : who(tenant).replace(/^.*\//, ""), profiles(mig, width < NARROW)].filter(Boolean).join(" · ") });
  const filled = (total, size) => {
    let left = 0;
    return all.filter(size).map((piece) => {
      const width = 100 * size(piece) / Math.max(total, 1);
      left += width;
      return part(piece, left - width, width);
    });
  };
  const memory = () => (one.axis ? all.flatMap((piece) => piece.mig.map((i) => part(piece, 100 * i.start / one.axis, 100 * i.size / one.axis)))
    : filled(one.memory_bytes.total, ({ tenant }) => tenant.memory_bytes));
  const found = [["C", "compute", filled(one.core_milli.total, ({ core }) => core)]];
  return one.memory_bytes.total ? [...found, ["M", "memory", memory()]] : found;
}

function lane(letter, kind, parts, axis, least) {
  const ticks = axis ? Array.from({ length: axis - 1 }, (_, i) => h("span", { class: "tick", style: { left: `${100 * (i + 1) / axis}%` } })) : [];
  return h("div", { class: "row", "aria-hidden": "true" }, h("span", {}, letter),
    h("div", { class: `lane ${kind}` }, ticks, parts.map(({ tenant, left, width, text }) => h("span", {
      class: `part ${family(tenant.protocols[0])} ${tenant.state === "bound" ? "" : "kept"}`,
      title: `${who(tenant)}: ${percent(tenant.core_milli)} of compute, ${bytes(tenant.memory_bytes)}${tenant.mig.length ? `, ${places(tenant.mig)}` : ""}`,
      style: { left: `${Math.min(left, 100)}%`, width: `${Math.min(width, 100 - Math.min(left, 100))}%` },
    }, width >= least ? text : ""))));
}

const holders = (node) => many(node.pods, "pod") + (node.claims ? `, ${many(node.claims, "claim")}` : "");

/** A node's cards as a picture to send to others. */
export function pictureOf(node) {
  const [width, wide, top] = [1200, 565, 76];
  const shapes = [words(20, 34, node.name, { size: 20, bold: true }),
    words(20, 56, `${node.model || node.vendor}, ${node.state}, ${holders(node)}, ${bytes(node.memory_bytes.used)} of ${bytes(node.memory_bytes.total)} of memory`, { fill: "quiet" })];
  node.cards.forEach((one, i) => {
    const [x, y] = [20 + (i % 2) * (wide + 30), top + Math.floor(i / 2) * 104];
    shapes.push(words(x, y + 14, nameOf(one), { bold: true }), words(x + 90, y + 14, one.closed || `${percent(one.core_milli.used)} of compute, ${bytes(one.memory_bytes.used)} of ${bytes(one.memory_bytes.total)}`,
      { fill: one.closed ? "bad" : "quiet", most: wide - 90 }));
    lanes(one).forEach(([letter, , parts], row) => {
      const y0 = y + 24 + row * 32;
      shapes.push(words(x, y0 + 18, letter, { fill: "quiet" }), box(x + 20, y0, wide - 20, 26, "track"));
      for (const p of parts) {
        const size = Math.max((wide - 20) * Math.min(p.width, 100 - p.left) / 100, 1);
        const name = family(p.tenant.protocols[0]);
        shapes.push(box(x + 20 + (wide - 20) * p.left / 100, y0, size, 26, name, `${name}-edge`, p.tenant.state !== "bound", name === "other" ? 1 : 0),
          words(x + 26 + (wide - 20) * p.left / 100, y0 + 18, p.text, { most: size - 8 }));
      }
    });
  });
  const height = top + Math.ceil(node.cards.length / 2) * 104 + 30;
  ["koordinator", "qgpu", "hami", "other"].forEach((name, i) => shapes.push(box(20 + i * 150, height - 26, 12, 12, name, `${name}-edge`, false, name === "other" ? 1 : 0),
    words(38 + i * 150, height - 15, ["Koordinator, MetaX", "qGPU", "HAMi", "other"][i], { fill: "quiet", size: 12 })));
  return { width, height, title: `Cards of node ${node.name}`, shapes };
}

/** A node's heading. */
export const nodeHead = (node, level, more = null) => h("div", { class: "node-head" },
  h(level, {}, level === "h1" ? node.name : link(["node", node.name], node.name)),
  h("span", { class: "quiet" }, node.model || node.vendor || (node.cards.length ? "model not reported" : "no devices")),
  h("span", { class: `badge ${node.state === "ok" ? "good" : "bad"}` }, node.state),
  h("span", { class: "quiet" }, `${holders(node)}, ${bytes(node.memory_bytes.used)} of ${bytes(node.memory_bytes.total)}`), more);
