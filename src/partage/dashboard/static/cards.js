// Cards as a picture: a lane for compute and one for memory, every share at its size, every
// hardware instance at its place on the card.
import { bytes, h, link, percent, podLink, table } from "./dom.js";

const FAMILIES = ["koordinator", "qgpu", "hami"];
const family = (protocol) => (FAMILIES.includes(protocol) ? protocol : "other");
const OTHERS = { others: true, protocol: "", state: "bound" };
const who = (one) => (one.others ? "an instance that Partage did not make" : one.name === null ? "another namespace's pod" : `${one.namespace}/${one.name}`);

/** What the colours mean. */
export const legend = () => h("ul", { class: "legend", "aria-label": "Colours" },
  [["koordinator", "Koordinator, MetaX"], ["qgpu", "qGPU"], ["hami", "HAMi"], ["other", "other"]].map(
    ([name, text]) => h("li", {}, h("i", { class: name }), text)),
  h("li", {}, "C compute, M memory; dashed: not bound yet"));

/** One card in brief, as an item of a list, with more below it; parts from so many percent on are named. */
export function card(one, more = null, least = 18) {
  const name = `${one.type} ${one.minor}`;
  return h("li", { class: `card ${one.closed ? "closed" : ""}`, "data-card": name },
    h("div", { class: "card-head" }, h("span", {}, name),
      h("span", { class: one.closed ? "bad" : "quiet" }, one.closed || `${percent(one.core_milli.used)}`)),
    lane("C", "compute", coreParts(one), null, least),
    one.memory_bytes.total ? lane("M", "memory", memoryParts(one), one.axis, least) : null,
    h("span", { class: "hidden" }, sentence(one)), more);
}

/** One card with the list of who is on it, and what came and went. */
export function largeCard(one, history) {
  const rows = one.tenants.map((tenant) => [podLink(tenant), percent(tenant.core_milli), bytes(tenant.memory_bytes), how(tenant)]);
  return card(one, [
    h("div", { class: "quiet below" }, `${percent(one.core_milli.used)} of ${percent(one.core_milli.total)} compute, `,
      `${bytes(one.memory_bytes.used)} of ${bytes(one.memory_bytes.total)} memory, ${one.slots.used} of ${one.slots.total} slots`,
      one.model ? `, ${one.model}` : "", h("br"), h("code", {}, one.uuid)),
    one.closed ? h("p", { class: "bad" }, `${one.closed}: ${one.closed_detail || "takes no pods"}`) : "",
    one.foreign.length ? h("p", {}, `Not made by Partage: ${one.foreign.map((i) => `${i.profile} at ${i.start}`).join(", ")}`) : "",
    rows.length ? table(`Pods on ${one.type} ${one.minor}`, [["pod"], ["compute", "number"], ["memory", "number"], ["how", "keep"]], rows)
      : h("p", { class: "empty" }, "Nobody is on it."),
    past(`${one.type} ${one.minor}`, history),
  ], 8);
}

/** What came and went on a card, the newest first. */
function past(name, history) {
  if (!history || !history.since) return "";
  const rows = history.cards[name] || [];
  const since = new Date(history.since).toLocaleString();
  return h("details", {}, h("summary", {}, rows.length ? `History (${rows.length})` : "History: nothing changed"),
    h("p", { class: "quiet" }, `Since ${since}, when this instance of the service started.`),
    rows.length ? table(`History of ${name}`, [["when"], ["what"], ["who", "wide"]], rows.map((one) => [
      new Date(one.at).toLocaleString(), one.what, one.code ? one.code : one.name === null ? "another namespace's pod"
        : `${one.namespace}/${one.name}: ${percent(one.core_milli)}, ${bytes(one.memory_bytes)}`])) : "");
}

const how = (tenant) => [
  tenant.mig.length ? tenant.mig.map((i) => `${i.profile} at ${i.start}`).join(", ") : tenant.whole ? "whole card" : "share",
  tenant.protocol ? ` (${tenant.protocol})` : "", tenant.state === "bound" ? "" : `, ${tenant.state}`].join("");

function sentence(one) {
  const used = `${percent(one.core_milli.used)} of compute and ${bytes(one.memory_bytes.used)} of ${bytes(one.memory_bytes.total)} of memory used`;
  const tenants = one.tenants.map((t) => `${who(t)} ${how(t)} ${percent(t.core_milli)} ${bytes(t.memory_bytes)}`).join("; ");
  const others = one.foreign.map((i) => ` ${who(OTHERS)}: ${i.profile} at ${i.start}.`).join("");
  return `${used}. ${tenants || "Nobody is on it."}${others} ${one.closed_detail}`;
}

function coreParts(one) {
  let left = 0;
  return one.tenants.filter((t) => t.core_milli).map((tenant) => {
    const width = 100 * tenant.core_milli / Math.max(one.core_milli.total, 1);
    const found = { tenant, left, width, text: who(tenant), more: percent(tenant.core_milli) };
    left += width;
    return found;
  });
}

function memoryParts(one) {
  let left = 0;
  const places = (tenant, instances) => instances.map((i) => ({
    tenant, left: 100 * i.start / one.axis, width: 100 * i.size / one.axis, text: i.profile, more: `${i.profile} at ${i.start}`,
  }));
  const others = one.axis ? places(OTHERS, one.foreign) : [];
  return others.concat(one.tenants.flatMap((tenant) => {
    if (one.axis && tenant.mig.length) return places(tenant, tenant.mig);
    if (!tenant.memory_bytes) return [];
    const width = 100 * tenant.memory_bytes / Math.max(one.memory_bytes.total, 1);
    const found = { tenant, left, width, text: who(tenant), more: bytes(tenant.memory_bytes) };
    left += width;
    return [found];
  }));
}

function lane(letter, name, parts, axis, least) {
  const ticks = axis ? Array.from({ length: axis - 1 }, (_, i) => h("span", { class: "tick", place: { left: `${100 * (i + 1) / axis}%` } })) : [];
  return h("div", { class: "row", "aria-hidden": "true" }, h("span", {}, letter),
    h("div", { class: `lane ${name}` }, ticks, parts.map(({ tenant, left, width, text, more }) => h("span", {
      class: `part ${family(tenant.protocol)} ${tenant.state === "bound" ? "" : "kept"}`, title: `${who(tenant)}: ${more}`,
      place: { left: `${Math.min(left, 100)}%`, width: `${Math.min(width, 100 - Math.min(left, 100))}%` },
    }, width >= least ? text.replace(/^.*\//, "") : ""))));
}

/** A node's heading. */
export const nodeHead = (node, level) => h("div", { class: "node-head" },
  h(level, {}, level === "h1" ? node.name : link(["node", node.name], node.name)),
  h("span", { class: "quiet" }, node.model || node.vendor || (node.cards.length ? "unknown model" : "no devices")),
  h("span", { class: `badge ${node.state === "ok" ? "good" : "bad"}` }, node.state),
  h("span", { class: "quiet" }, `${node.pods} ${node.pods === 1 ? "pod" : "pods"}, ${bytes(node.memory_bytes.used)} of ${bytes(node.memory_bytes.total)}`));
