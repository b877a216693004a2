// The whole cluster: sums first, then who waits for what, then by model, vendor and protocol.
import { bytes, cardsOf, count, h, link, meter, part, podLink, table } from "./dom.js";

export const path = () => "api/overview";
export const title = () => "Overview";

const OWN = "kept by a rule of kube-scheduler's own (taints, CPU, memory), or its turn has not come";
const KINDS = [["whole", "given whole"], ["shared", "shared"], ["idle", "idle"], ["closed", "closed"]];

export function render(seen) {
  return [
    h("h1", {}, "Overview"),
    problems(seen),
    h("div", { class: "tiles" }, cardsTile(seen),
      tile("Compute", seen.core_milli, "core", (milli) => `${cardsOf(milli)} cards`, fragments(seen.fragmentation)),
      tile("Memory", seen.memory_bytes, "memory", bytes),
      podsTile(seen)),
    h("div", { class: "halves" },
      h("div", {}, waiting(seen), protocols(seen)),
      h("div", {}, models(seen), vendors(seen))),
  ];
}

function problems(seen) {
  const found = Object.entries(seen.problems);
  if (!found.length) return null;
  return h("div", { class: "alert", role: "alert" }, h("strong", {}, "Not taken in: "),
    h("ul", {}, found.map(([what, why]) => h("li", {}, `${what}: ${why}`))));
}

function cardsTile(seen) {
  const { cards } = seen;
  return h("section", { class: "panel" }, h("h2", {}, "Cards"),
    h("div", { class: "big" }, count(cards.total)),
    h("div", { class: "stack", role: "img", "aria-label": KINDS.map(([key, text]) => `${cards[key]} ${text}`).join(", ") },
      KINDS.map(([key]) => h("span", { class: key, place: { width: `${cards.total ? 100 * cards[key] / cards.total : 0}%` } }))),
    h("ul", { class: "legend" }, KINDS.map(([key, text]) => h("li", {}, h("i", { class: key }), `${count(cards[key])} ${text}`))),
    h("div", { class: "quiet" }, `on ${count(seen.nodes.with_devices)} of ${count(seen.nodes.total)} nodes`));
}

function fragments({ free_milli: free, unusable_milli: unusable, asks }) {
  if (!free || !asks) return null;
  return h("div", { class: "quiet" }, `of ${cardsOf(free)} free, ${cardsOf(unusable)} (${Math.round(100 * unusable / free)}%) are of no use to the usual requests. `,
    link(["compare"], "Compare policies"));
}

function tile(name, amount, kind, write, more = null) {
  const text = `${write(amount.used)} of ${write(amount.total)}`;
  return h("section", { class: "panel" }, h("h2", {}, name),
    h("div", { class: "big" }, `${Math.round(part(amount) * 100)}%`),
    meter(amount, kind, name, text), h("div", { class: "quiet" }, text), more);
}

function podsTile(seen) {
  return h("section", { class: "panel" }, h("h2", {}, "Pods with devices"),
    h("div", { class: "big" }, count(seen.pods.placed)), h("div", {}, "placed"),
    h("div", { class: seen.pods.waiting ? "warn" : "good" },
      seen.pods.waiting ? h("a", { href: "#/pods?state=waiting" }, `${count(seen.pods.waiting)} waiting`) : "nobody waits"),
    h("div", { class: "quiet" }, `${count(seen.slots.used)} of ${count(seen.slots.total)} sharer slots used`));
}

function waiting(seen) {
  const rows = seen.waiting_by_code.map(({ code, pods }) => [
    code ? h("a", { href: `#/pods?state=waiting&code=${encodeURIComponent(code)}` }, code) : OWN,
    count(pods)]);
  return h("section", { class: "panel" }, h("h2", {}, "Waiting"),
    rows.length ? table("Waiting pods by reason", [["reason", "text"], ["pods", "number"]], rows) : h("p", { class: "empty" }, "Nobody waits."),
    seen.waiting.length ? h("h2", {}, "First in line") : null,
    seen.waiting.length ? table("Waiting pods by priority", [["pod"], ["why", "wide"]],
      seen.waiting.map((pod) => [podLink(pod), pod.message || OWN])) : null,
    seen.names ? null : h("p", { class: "quiet" }, "Names of pods are shown to who may read pods of all namespaces."));
}

const amounts = (one) => [
  count(one.cards ? one.cards.total : one.pods),
  [meter(one.core_milli, "core", "compute", `${cardsOf(one.core_milli.used)} of ${cardsOf(one.core_milli.total)}`),
    `${cardsOf(one.core_milli.used)} of ${cardsOf(one.core_milli.total)}`],
  [meter(one.memory_bytes, "memory", "memory", `${bytes(one.memory_bytes.used)} of ${bytes(one.memory_bytes.total)}`),
    `${bytes(one.memory_bytes.used)} of ${bytes(one.memory_bytes.total)}`],
];
const NOTHING = h("p", { class: "empty" }, "There are no cards. Nodes report them once the agent, or a device plugin that is understood, runs there.");
const COLUMNS = [["cards", "number"], ["compute, cards"], ["memory"]];

function models(seen) {
  return h("section", { class: "panel" }, h("h2", {}, "By model"),
    seen.models.length ? table("Use by model", [["model"], ...COLUMNS], seen.models.map((one) => [
      h("a", { href: `#/nodes?text=${encodeURIComponent(one.model)}` }, one.model), ...amounts(one)])) : NOTHING);
}

function vendors(seen) {
  const sums = new Map();
  for (const one of seen.models) {
    const vendor = one.vendor || "unknown";
    const sum = sums.get(vendor) || { cards: { total: 0 }, core_milli: { total: 0, used: 0 }, memory_bytes: { total: 0, used: 0 } };
    sum.cards.total += one.cards.total;
    for (const key of ["core_milli", "memory_bytes"]) {
      sum[key].total += one[key].total;
      sum[key].used += one[key].used;
    }
    sums.set(vendor, sum);
  }
  return h("section", { class: "panel" }, h("h2", {}, "By vendor"),
    sums.size ? table("Use by vendor", [["vendor"], ...COLUMNS], [...sums].map(([vendor, sum]) => [vendor, ...amounts(sum)])) : NOTHING);
}

function protocols(seen) {
  return h("section", { class: "panel" }, h("h2", {}, "By protocol"),
    seen.protocols.length
      ? table("Use by protocol", [["protocol"], ["pods", "number"], ["compute, cards", "number"], ["memory", "number"]],
        seen.protocols.map((one) => [one.protocol || "unknown", count(one.pods), cardsOf(one.core_milli), bytes(one.memory_bytes)]))
      : h("p", { class: "empty" }, "No pod holds a device."),
    h("p", { class: "quiet" }, "Policy ", h("code", {}, seen.policy), ". ", link(["nodes"], "See the cards"), "."));
}
