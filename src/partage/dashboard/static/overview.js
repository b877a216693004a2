// The whole cluster: what needs attention first, then sums with what they were, then by model, vendor and protocol.
import { h } from "./draw.js";
import { bytes, cards, cardsOf, count, many, share, span } from "./format.js";
import { filtered, link, meter, podLink, since, spark, table } from "./parts.js";

export const path = () => "api/overview";
export const title = () => "Overview";

const OWN = "kube-scheduler has given no reason: it has not tried the pod yet, or another scheduler has it";
const UNREFUSED = "kept by a rule of kube-scheduler's own, or its turn has not come";
const CLAIMS = "for their ResourceClaims";
const CODES = 4; // reasons that are named where something needs attention
const NOTHING = "Nodes report cards once the agent, or a device plugin that is understood, runs there.";
const KINDS = [["whole", "given whole"], ["shared", "shared"], ["idle", "idle"], ["closed", "closed"]];

export function render(seen, query, go) {
  const past = seen.trend && seen.trend[query.span === "day" ? "day" : "hour"];
  return [
    h("h1", {}, "Overview"),
    attention(seen),
    spans(past, query, go),
    h("div", { class: "tiles" }, cardsTile(seen, past),
      tile("Compute", seen.core_milli, "core", cards, past && past.core_milli, fragments(seen.fragmentation)),
      tile("Memory", seen.memory_bytes, "memory", bytes, past && past.memory_bytes),
      podsTile(seen, past)),
    h("div", { class: "halves" },
      h("div", {}, waiting(seen), protocols(seen)),
      h("div", {}, models(seen), vendors(seen))),
  ];
}

/** Pods by what they wait for; of those without a code, kube-scheduler allocates claims and has rules of its own. */
function reasons({ waiting_by_code: codes, pods: { waiting_by_claims: claims = 0 } }) {
  return codes.flatMap(({ code, pods }) => (code ? [{ code, pods }]
    : [{ text: CLAIMS, pods: claims }, { text: UNREFUSED, pods: pods - claims }].filter((one) => one.pods > 0)));
}

/** A reason with a link to the pods that wait for it, where a list has them alone. */
const waitFor = (code, text) => (code ? filtered("pods", { state: "waiting", code }, code)
  : text === CLAIMS ? filtered("pods", { state: "waiting", protocol: "claim" }, text) : text);

/** What an operator should look at, or that there is nothing. */
function attention(seen) {
  const { attention: found } = seen;
  const problems = Object.entries(seen.problems);
  const waits = reasons(seen);
  const rest = waits.slice(CODES).reduce((sum, { pods }) => sum + pods, 0);
  const cardLink = (one) => h("a", { href: `#/node/${encodeURIComponent(one.node)}` }, `${one.node} ${one.type} ${one.minor}`);
  const listed = (rows, total) => [rows.map((row, i) => [i ? "; " : "", row]), total > rows.length ? ` and ${count(total - rows.length)} more` : ""];
  const lines = [
    seen.cards.total ? null : ["No cards", NOTHING],
    found.closed ? [filtered("nodes", { only: "closed" }, `${many(found.closed, "card")} ${found.closed === 1 ? "takes" : "take"} no pod`),
      listed(found.cards.slice(0, 6).map((one) => [cardLink(one), ` ${one.code}${one.detail ? ` (${one.detail})` : ""}`]), found.closed)] : null,
    found.doubted ? [`${many(found.doubted, "pod")} with a record in doubt`, listed(found.doubts.slice(0, 4).map((one) => [podLink(one), one.message ? ` ${one.message}` : ""]), found.doubted)] : null,
    seen.nodes.cordoned ? [filtered("nodes", { only: "closed" }, `${many(seen.nodes.cordoned, "node")} cordoned`),
      listed(found.cordoned.slice(0, 6).map((name) => link(["node", name], name)), seen.nodes.cordoned)] : null,
    seen.pods.waiting ? [filtered("pods", { state: "waiting" }, `${many(seen.pods.waiting, "pod")} waiting`),
      [listed(waits.slice(0, CODES).map(({ code, text, pods }) => [`${count(pods)} `, waitFor(code, text === UNREFUSED ? "not refused by Partage" : text)]), 0),
        rest ? `; ${count(rest)} more` : ""]] : null,
    ...problems.map(([what, why]) => [`Not taken in: ${what}`, why]),
  ].filter(Boolean);
  return h("section", { class: `panel attention ${lines.length ? "some" : ""}`, "aria-label": "What needs attention" },
    h("h2", {}, lines.length ? "Needs attention" : "Nothing needs attention"),
    lines.length ? h("dl", { class: "facts" }, lines.map(([what, more]) => [h("dt", {}, what), h("dd", {}, more)])) : null);
}

function spans(past, query, go) {
  if (!past || past.core_milli.length < 2) return null;
  const one = (value, text) => h("button", { type: "button", class: "choice", "aria-pressed": String((query.span || "") === value), onClick: () => go({ ...query, span: value }) }, text);
  return h("div", { class: "spans" }, h("span", { class: "quiet" }, `Lines: the last ${span(past.step * (past.core_milli.length - 1))}, of at most`), one("", "an hour"), one("day", "a day"));
}

function cardsTile(seen, past) {
  const { cards: all } = seen;
  return h("section", { class: "panel" }, h("h2", {}, "Cards"),
    h("div", { class: "big" }, count(all.total)),
    h("div", { class: "stack", role: "img", "aria-label": KINDS.map(([key, text]) => `${all[key]} ${text}`).join(", ") },
      KINDS.map(([key]) => h("span", { class: key, style: { width: `${all.total ? 100 * all[key] / all.total : 0}%` } }))),
    h("ul", { class: "legend" }, KINDS.map(([key, text]) => h("li", {}, h("i", { class: key }), `${count(all[key])} ${text}`))),
    h("div", { class: "quiet" }, `on ${count(seen.nodes.with_devices)} of ${many(seen.nodes.total, "node")}. `, h("a", { href: "#/fleet" }, "See all")),
    past ? spark("Idle cards", past.idle, count, all.total) : null);
}

function fragments({ free_milli: free, unusable_milli: unusable, asks }) {
  if (!free || !asks) return null;
  return h("div", { class: "quiet" }, `of ${cards(free)} free, ${cardsOf(unusable)} (${share({ used: unusable, total: free })}) cannot be used by the usual requests. `,
    link(["compare"], "Compare policies"));
}

function tile(name, amount, kind, write, past, more = null) {
  const text = `${write(amount.used)} of ${write(amount.total)}`;
  return h("section", { class: "panel" }, h("h2", {}, name),
    h("div", { class: "big" }, share(amount)),
    meter(amount, kind, name, text), h("div", { class: "quiet" }, text), more,
    past ? spark(`${name} allocated`, past, write, amount.total) : null);
}

function podsTile(seen, past) {
  return h("section", { class: "panel" }, h("h2", {}, "Pods with devices"),
    h("div", { class: "big" }, count(seen.pods.placed)), h("div", {}, "placed"),
    h("div", { class: seen.pods.waiting ? "warn" : "good" },
      seen.pods.waiting ? filtered("pods", { state: "waiting" }, `${count(seen.pods.waiting)} waiting`) : "no pod waits"),
    h("div", { class: "quiet" }, `${count(seen.slots.used)} of ${count(seen.slots.total)} sharer slots used`),
    past ? spark("Waiting pods", past.waiting, count) : null);
}

function waiting(seen) {
  const rows = reasons(seen).map(({ code, text, pods }) => [waitFor(code, text), count(pods)]);
  return h("section", { class: "panel" }, h("h2", {}, "Waiting"),
    rows.length ? table("Waiting pods by reason", [["reason", "text"], ["pods", "number"]], rows) : h("p", { class: "empty" }, "No pod waits."),
    seen.waiting.length ? h("h2", {}, "First in line") : null,
    seen.waiting.length ? h("div", { class: "stacked" }, table("Waiting pods by priority", [["pod"], ["for", "number"], ["why", "wide"]],
      seen.waiting.map((pod) => [podLink(pod), since(pod.created), pod.message || OWN]))) : null,
    seen.names ? null : h("p", { class: "quiet" }, "Only users who may read pods of all namespaces see names of pods."));
}

const amounts = (one) => [
  count(one.cards ? one.cards.total : one.pods),
  [meter(one.core_milli, "core", "compute", `${cardsOf(one.core_milli.used)} of ${cardsOf(one.core_milli.total)}`),
    `${cardsOf(one.core_milli.used)} of ${cardsOf(one.core_milli.total)}`],
  [meter(one.memory_bytes, "memory", "memory", `${bytes(one.memory_bytes.used)} of ${bytes(one.memory_bytes.total)}`),
    `${bytes(one.memory_bytes.used)} of ${bytes(one.memory_bytes.total)}`],
];
const COLUMNS = [["cards", "number"], ["compute, cards"], ["memory"]];

function models(seen) {
  return h("section", { class: "panel stacked" }, h("h2", {}, "By model"),
    seen.models.length ? table("Use by model", [["model"], ...COLUMNS], seen.models.map((one) => [
      one.model === "unknown" ? "not reported" : filtered("nodes", { model: one.model }, one.model), ...amounts(one)])) : h("p", { class: "empty" }, "There are no cards."));
}

function vendors(seen) {
  const sums = new Map();
  for (const one of seen.models) {
    const sum = sums.get(one.vendor) || { cards: { total: 0 }, core_milli: { total: 0, used: 0 }, memory_bytes: { total: 0, used: 0 } };
    sum.cards.total += one.cards.total;
    for (const key of ["core_milli", "memory_bytes"]) {
      sum[key].total += one[key].total;
      sum[key].used += one[key].used;
    }
    sums.set(one.vendor, sum);
  }
  return h("section", { class: "panel stacked" }, h("h2", {}, "By vendor"),
    sums.size ? table("Use by vendor", [["vendor"], ...COLUMNS], [...sums].map(([vendor, sum]) => [
      vendor ? filtered("nodes", { vendor }, vendor) : "not reported", ...amounts(sum)])) : h("p", { class: "empty" }, "There are no cards."));
}

function protocols(seen) {
  return h("section", { class: "panel stacked" }, h("h2", {}, "By protocol"),
    seen.protocols.length
      ? table("Use by protocol", [["protocol"], ["pods", "number"], ["compute, cards", "number"], ["memory", "number"]],
        seen.protocols.map((one) => [one.protocol ? filtered("pods", { protocol: one.protocol }, one.protocol) : "not known",
          count(one.pods), cardsOf(one.core_milli), bytes(one.memory_bytes)]))
      : h("p", { class: "empty" }, "No pod holds a device."),
    h("p", { class: "quiet" }, "Policy ", h("code", {}, seen.policy), ". ", link(["nodes"], "See the cards"), "."));
}
