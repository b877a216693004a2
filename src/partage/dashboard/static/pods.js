// Workloads, a page at a time, and the explanation of one pod.
import { withQuery } from "./api.js";
import { bytes, count, h, kept, link, percent, podLink, table, tr } from "./dom.js";
import { filters, pager } from "./forms.js";

const LIMIT = 100;
const STATES = {
  waiting: "", held: "waits for kube-scheduler; its place is kept", reserved: "its Binding is on its way",
  unknown: "its Binding was never answered; the cards stay reserved", bound: "is bound", finished: "has ended",
};
const MODES = { whole: "whole card", share: "share", mig: "hardware instance", vendor: "share, cut by the vendor's plugin" };

const COLUMNS = [["pod"], ["state"], ["node", "keep"], ["cards", "keep"], ["compute", "number"], ["memory", "number"], ["protocol"],
  ["given, or why it waits", "wide"]];

export const list = {
  title: () => "Workloads",
  path: (_parts, query) => withQuery("api/pods", {
    text: query.text, state: query.state, namespace: query.namespace, code: query.code, offset: query.offset, limit: LIMIT }),
  frame: (query, go) => filters(query, go, [
    ["text", "Pod or node"], ["namespace", "Namespace"],
    ["state", "Show", [["", "all pods with devices"], ["placed", "placed"], ["waiting", "waiting"]]],
    ["code", "Reason"]]),
  render: (page, query, go) => [
    h("h1", {}, "Workloads"),
    page.pods.length ? h("section", { class: "panel" }, table("Pods with devices", COLUMNS,
      page.pods.map((pod) => kept(pod.uid, pod, () => tr(COLUMNS, row(pod)))))) : h("p", { class: "empty" }, query.text || query.namespace || query.state || query.code ? "No pod is like that."
      : "No pod asks for a device."),
    pager(page.total, page.pods.length, LIMIT, query, go, `${count(page.total)} pods`),
  ],
};

const row = (pod) => [
  podLink(pod),
  h("span", { class: `badge ${pod.node === null ? "warn" : "good"}` }, pod.code || pod.state),
  pod.node ? link(["node", pod.node], pod.node) : "",
  pod.cards.length > 4 ? `${pod.cards.length} cards` : pod.cards.join(", "),
  pod.core_milli ? percent(pod.core_milli) : "", pod.memory_bytes ? bytes(pod.memory_bytes) : "",
  pod.protocols.join(", "),
  pod.quarantine ? h("span", { class: "bad" }, pod.quarantine) : pod.given || pod.message || "",
];

export const one = {
  title: ([namespace, name]) => `${namespace}/${name}`,
  path: ([namespace, name]) => `api/explain/${encodeURIComponent(namespace)}/${encodeURIComponent(name)}`,
  render: (pod) => [
    h("h1", {}, `${pod.namespace}/${pod.name}`),
    h("p", {}, h("span", { class: `badge ${["waiting", "held"].includes(pod.state) ? "warn" : "good"}` }, pod.state), " ",
      STATES[pod.state] ?? pod.state, pod.node ? [" on node ", link(["node", pod.node], pod.node)] : ""),
    pod.quarantine ? h("p", { class: "alert" }, pod.quarantine) : null,
    refusal(pod),
    pod.fits_now_on ? h("div", { class: "reason" }, h("p", {}, "Its devices are free on node ", link(["node", pod.fits_now_on], pod.fits_now_on),
      " now: kept by a rule of kube-scheduler's own (CPU, memory, ports), or its turn has not come.")) : null,
    given(pod),
    asked(pod),
    why(pod),
    written(pod),
  ],
};

function refusal(pod) {
  const { reason } = pod;
  if (!reason) return null;
  const rows = Object.entries(reason.nodes).flatMap(([name, node]) => [
    [link(["node", name], name), "", node.code, "", "", node.message],
    ...alike(node.cards).map(([minors, card]) => ["", minors.join(", "), card.code, amount(card.code, card.asked), amount(card.code, card.free), card.detail])]);
  const all = Object.values(reason.counts).reduce((sum, n) => sum + n, 0);
  const told = Object.keys(reason.nodes).length;
  return [
    h("div", { class: "reason" }, h("p", {}, h("strong", {}, `${reason.code}: `), reason.message),
      pod.next ? h("p", {}, h("strong", {}, "Try: "), pod.next.replaceAll("`", ""), ".") : null),
    rows.length ? h("section", { class: "panel" }, h("h2", {}, "Node by node, card by card"),
      table("Why each node and card was refused", [["node"], ["card"], ["code"], ["asked", "number"], ["free", "number"], ["why", "wide"]], rows),
      all > told ? h("p", { class: "quiet" }, `${count(told)} of ${count(all)} nodes, the nearest to fit.`) : null) : null,
  ];
}

function alike(cards) {
  const found = new Map();
  for (const card of cards) {
    const key = JSON.stringify([card.code, card.asked, card.free, card.detail]);
    if (!found.has(key)) found.set(key, [[], card]);
    found.get(key)[0].push(card.minor);
  }
  return [...found.values()];
}

function amount(code, value) {
  if (value === null) return "";
  if (code === "InsufficientMemory") return bytes(value);
  return code === "InsufficientCore" ? percent(value) : String(value);
}

function given(pod) {
  if (!pod.allocations.length) return null;
  return h("section", { class: "panel" }, h("h2", {}, "What it has"), table("Devices of the pod",
    [["card"], ["container"], ["compute", "number"], ["memory", "number"], ["how"], ["uuid"]],
    pod.allocations.map((g) => [`${g.type} ${g.minor}`, g.container + (g.init ? " (init)" : ""), percent(g.core_milli),
      g.memory_bytes ? bytes(g.memory_bytes) : "", (MODES[g.mode] || g.mode) + (g.mig ? ` ${g.mig.profile} at ${g.mig.start}` : "")
        + (g.vf ? `, virtual function ${g.vf.busID}` : ""), h("code", {}, g.uuid)])));
}

function asked(pod) {
  const each = (g) => (g.whole ? "whole" : [g.core_milli ? percent(g.core_milli) : "", g.memory_bytes ? bytes(g.memory_bytes)
    : g.memory_milli ? `${percent(g.memory_milli)} of memory` : ""].filter(Boolean).join(" + "));
  return h("section", { class: "panel" }, h("h2", {}, "What it asks for"),
    pod.request.length ? table("Requests of the pod", [["devices"], ["of each"], ["protocol"], ["containers"]],
      pod.request.map((g) => [`${g.count === null ? "all" : g.count} x ${g.type}`, each(g), g.protocol + (g.dialect ? ` (${g.dialect})` : ""),
        g.containers.join(", ")])) : h("p", { class: "empty" }, "Nothing that could be read."),
    pod.notes.map((note) => h("p", { class: "quiet" }, note)));
}

function why(pod) {
  const whose = { pod: "the pod's own annotation", cluster: "in force in the cluster" };
  const { policy, another, record } = pod;
  const fact = (name, value) => [h("dt", {}, name), h("dd", {}, value)];
  return h("section", { class: "panel" }, h("h2", {}, pod.node ? "Why there" : "Policy"), h("dl", { class: "facts" },
    fact("Between nodes", `${policy.node} (${whose[policy.node_from]})`),
    fact("Between cards", `${policy.card} (${whose[policy.card_from]})`),
    another ? fact("Another like it", another.node
      ? ["would go to ", link(["node", another.node], another.node), `, the best of ${count(another.nodes)} with room`]
      : `would wait: ${another.message}`) : null,
    record ? fact("Record", `${record.source}, ${record.problem ? `not trusted: ${record.problem}` : "trusted"}`) : null,
    pod.nominated_node ? fact("Nominated", pod.nominated_node) : null));
}

function written(pod) {
  const found = Object.entries(pod.annotations);
  if (!found.length) return null;
  return h("section", { class: "panel" }, h("h2", {}, "What is written on it"),
    table("Annotations of the pod", [["annotation"], ["value"]], found.map(([key, value]) => [h("code", {}, key), h("code", {}, value)])));
}
