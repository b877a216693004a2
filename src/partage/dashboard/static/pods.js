// Workloads, a page at a time, and the explanation of one pod.
import { read, withQuery } from "./api.js";
import { Component, h, kept } from "./draw.js";
import { age, bytes, count, exact, many, percent } from "./format.js";
import { choices, filters, link, meter, pager, podLink, since, table, tr } from "./parts.js";
import { saving, words, wrapped } from "./picture.js";

const LIMIT = 100;
const NAMED = 6; // nodes of a group that are named
const STATES = {
  waiting: "", held: "waits for kube-scheduler; its place is reserved", reserved: "its Binding is on its way",
  unknown: "its Binding was never answered; the cards stay reserved", bound: "is bound", finished: "has ended",
};
const MODES = { whole: "whole card", share: "share", mig: "hardware instance", vendor: "share, cut by the vendor's plugin" };

const COLUMNS = [["pod", "", "name"], ["state"], ["protocol"], ["age", "number", "age"], ["node", "keep", "node"], ["cards", "keep"],
  ["compute", "number", "compute"], ["memory", "number", "memory"], ["given, or why it waits", "wide"]];

export const list = {
  title: () => "Workloads",
  path: (_parts, query) => withQuery("api/pods", {
    text: query.text, state: query.state, namespace: query.namespace, code: query.code, protocol: query.protocol, order: query.order,
    reverse: query.reverse, offset: query.offset, limit: LIMIT }),
  frame: (query, go, { namespaces = [], waiting_by_code: codes = [], protocols = [] }) => filters(query, go, [
    ["text", "Pod or node"],
    namespaces.length ? ["namespace", "Namespace", choices("all", namespaces)] : ["namespace", "Namespace"],
    ["state", "Show", [["", "all pods with devices"], ["placed", "placed"], ["waiting", "waiting"]]],
    ["code", "Reason", choices("any", codes.map((one) => one.code).filter(Boolean).sort())],
    ["protocol", "Protocol", choices("any", protocols.map((one) => one.protocol).filter(Boolean))]]),
  render: (page, query, go) => [
    h("h1", {}, "Workloads"),
    page.pods.length ? h("section", { class: "panel stacked" }, table("Pods with devices", COLUMNS,
      page.pods.map((pod) => kept(pod.uid, [pod, age(pod.created)], () => tr(COLUMNS, row(pod)))), { query, go }))
      : h("p", { class: "empty" }, ["text", "namespace", "state", "code", "protocol"].some((key) => query[key]) ? "No pod matches." : "No pod asks for a device."),
    pager(page.total, page.pods.length, LIMIT, query, go, many(page.total, "pod")),
  ],
};

const row = (pod) => [
  podLink(pod),
  h("span", { class: `badge ${pod.node === null ? "warn" : "good"}` }, pod.code || pod.state),
  pod.protocols.join(", "),
  since(pod.created),
  ...(pod.node || pod.cards.length ? place(pod) : []), // what a pod that waits lacks is room for why
  pod.quarantine ? h("span", { class: "bad" }, pod.quarantine) : pod.given || pod.message || (pod.kube_scheduler ? `kube-scheduler: ${pod.kube_scheduler}` : ""),
];

const place = (pod) => [
  pod.node ? link(["node", pod.node], pod.node) : "",
  pod.cards.length > 4 ? many(pod.cards.length, "card") : pod.cards.join(", "),
  pod.core_milli ? percent(pod.core_milli) : "", pod.memory_bytes ? bytes(pod.memory_bytes) : "",
];

export const one = {
  title: ([namespace, name]) => `${namespace}/${name}`,
  path: ([namespace, name]) => `api/explain/${encodeURIComponent(namespace)}/${encodeURIComponent(name)}`,
  render: (pod) => {
    const waits = ["waiting", "held"].includes(pod.state);
    const failed = pod.ended?.phase === "Failed";
    return [
      h("div", { class: "node-head" }, h("h1", {}, `${pod.namespace}/${pod.name}`), pod.reason ? saving(`${pod.namespace}-${pod.name}`, () => pictureOf(pod)) : null),
      h("p", {}, h("span", { class: `badge ${failed ? "bad" : waits ? "warn" : "good"}` }, failed ? "failed" : pod.state), " ",
        failed ? "has failed" : STATES[pod.state] ?? pod.state, pod.node ? [" on node ", link(["node", pod.node], pod.node)] : "",
        pod.created ? [waits ? " for " : ", made ", since(pod.created), waits ? "" : " ago"] : ""),
      pod.quarantine ? h("p", { class: "alert" }, pod.quarantine) : null,
      failed ? ending(pod.ended) : null,
      pod.reason ? refusal(pod) : null,
      pod.fits_now_on ? h("div", { class: "reason" }, h("p", {}, "Its devices are free on node ", link(["node", pod.fits_now_on], pod.fits_now_on), " now. ",
        pod.kube_scheduler ? `kube-scheduler says: ${pod.kube_scheduler}` : "A rule of kube-scheduler's own (CPU, memory, ports) is in the way, or its turn has not come.")) : null,
      pod.reason && pod.request.some((one) => one.protocol !== "claim") ? h(Ways, { key: pod.uid, pod }) : null,
      given(pod),
      asked(pod),
      why(pod),
      written(pod),
    ];
  },
};

/** What the kubelet says of a pod that failed, and how each container ended. */
function ending({ reason, message, containers }) {
  const said = [reason, message].filter(Boolean).join(": ");
  return [
    said ? h("p", { class: "alert" }, said) : null,
    containers.length ? h("section", { class: "panel stacked" }, h("h2", {}, "How its containers ended"), table("Ends of containers",
      [["container"], ["exit code", "number"], ["reason"], ["message", "wide"]],
      containers.map((one) => [one.name + (one.init ? " (init)" : ""), one.exit_code === null ? "" : `${one.exit_code}`, one.reason || "", one.message || ""]))) : null,
  ];
}

/** Nodes with the same reason as one group, with all their cards; the nearest to fit first. */
function groups(reason) {
  const found = new Map();
  for (const [name, node] of Object.entries(reason.nodes)) {
    const key = JSON.stringify([node.code, node.message]);
    if (!found.has(key)) found.set(key, { code: node.code, message: node.message, cards: [], nodes: [] });
    const group = found.get(key);
    group.nodes.push(name);
    group.cards.push(...node.cards);
  }
  return [...found.values()].map((group) => ({ ...group, cards: alike(group.cards) })).sort((a, b) => apart(a) - apart(b) || nearness(b) - nearness(a) || b.nodes.length - a.nodes.length);
}

/** By what nodes are not the one: their room or cards, themselves, or what the pod says of nodes; as `partage explain` has it. */
function apart({ cards, code }) {
  if (cards.length || code === "NodeResources") return 0;
  return code === "NodeAffinity" ? 2 : 1;
}

/** How much of what was asked is there: on the best card, or by cards that fit; of the rest the largest group. */
function nearness({ cards, message }) {
  const [, fit, needed] = /^(\d+) of \d+ cards fit, (\d+) needed/.exec(message) || [];
  const parts = cards.map(([, one]) => (one.asked && one.free !== null && one.free < one.asked ? one.free / one.asked : -1));
  return Math.max(-1, Number(fit) ? fit / needed : -1, ...parts);
}

function refusal(pod) {
  const { reason } = pod;
  const all = Object.values(reason.counts).reduce((sum, n) => sum + n, 0);
  const shown = Object.keys(reason.nodes).length;
  return [
    h("div", { class: "reason" }, h("p", {}, h("strong", {}, `${reason.code}: `), reason.message),
      pod.next ? h("p", {}, h("strong", {}, "Try: "), pod.next.replaceAll("`", ""), ".") : null),
    shown ? h("section", { class: "panel stacked" }, h("h2", {}, "Why not there, the nearest first"), refused(groups(reason)),
      all > shown ? h("p", { class: "quiet" }, `${count(shown)} of ${many(all, "node")} are looked at one by one; all of them by code: `,
        Object.entries(reason.counts).map(([code, n]) => `${count(n)} ${code}`).join(", "), ".") : null) : null,
  ];
}

/** A table of groups, without the column of amounts where none is counted. */
function refused(all) {
  const counted = all.some((group) => nearest(group));
  const columns = [["nodes", "wide"], ["code"], ...(counted ? [["nearest", "near"]] : []), ["why", "wide"]];
  return table("Why nodes were refused", columns, all.map((group) => [
    nodesOf(group), group.code, ...(counted ? [nearest(group)] : []), [group.message, details(group)]]));
}

function nodesOf({ nodes }) {
  const named = nodes.slice(0, NAMED).flatMap((name, i) => [i ? ", " : "", link(["node", name], name)]);
  return [nodes.length > 1 ? `${many(nodes.length, "node")}: ` : "", ...named, nodes.length > NAMED ? ` and ${nodes.length - NAMED} more` : ""];
}

/** The card of a group that has most of what was asked. */
function nearest({ cards }) {
  const short = cards.map(([, one]) => one).filter((one) => one.asked && one.free !== null);
  if (!short.length) return "";
  const best = short.reduce((a, b) => (b.free / b.asked > a.free / a.asked ? b : a));
  const text = `${amount(best.code, Math.max(best.free, 0))} of ${amount(best.code, best.asked, true)} free`;
  return [meter({ used: best.free, total: best.asked }, "core", "free of what is asked", text), text];
}

const details = ({ cards, nodes }) => (cards.length ? h("ul", { class: "plain quiet" }, cards.map(([minors, one]) => h("li", {}, `${
  nodes.length > 1 ? many(minors.length, "card") : `${minors.length > 1 ? "cards" : "card"} ${minors.join(", ")}`}: ${
  [one.code, one.asked === null ? "" : `asked ${amount(one.code, one.asked, true)}, ${amount(one.code, one.free)} free`, one.detail].filter(Boolean).join(", ")}`))) : null);

function alike(cards) {
  const found = new Map();
  for (const card of cards) {
    const key = JSON.stringify([card.code, card.asked, card.free, card.detail]);
    if (!found.has(key)) found.set(key, [[], card]);
    found.get(key)[0].push(card.minor);
  }
  return [...found.values()];
}

function amount(code, value, up = false) {
  if (value === null) return "";
  if (code === "InsufficientMemory") return exact(value, up);
  return code === "InsufficientCore" ? percent(value) : String(value);
}

/** What would make a waiting pod fit; asked for on its own, as it takes many questions. */
class Ways extends Component {
  componentDidMount() {
    const { namespace, name } = this.props.pod;
    this.look(`api/ways/${encodeURIComponent(namespace)}/${encodeURIComponent(name)}`);
  }

  componentWillUnmount() {
    clearTimeout(this.timer);
  }

  async look(path) {
    try {
      const { body } = await read(path);
      this.setState({ ways: body.ways });
    } catch {
      this.setState({ ways: this.state.ways || null });
    }
    if (document.contains(this.place)) this.timer = setTimeout(() => this.look(path), 10000);
  }

  render(_props, { ways }) {
    return h("section", { class: "panel ways", ref: (made) => { this.place = made; } }, h("h2", {}, "What would make it fit"),
      ways === undefined ? h("p", { class: "quiet" }, "Trying…") : ways === null ? h("p", { class: "quiet" }, "The request failed.")
        : ways.length ? h("ul", {}, ways.map((way) => h("li", {}, way.text, way.pods.length ? [": ", way.pods.map((one, i) => [i ? ", " : "", podLink(one)])] : "",
          " (", link(["node", way.node], way.node), ")"))) : h("p", { class: "empty" }, "No single change of the request, and no end of a few pods on the nearest nodes, makes room. More or other cards would."));
  }
}

/** Why a pod waits, as a picture to send to others. */
function pictureOf(pod) {
  const shapes = [words(20, 36, `${pod.namespace}/${pod.name} waits`, { size: 20, bold: true })];
  let y = 66;
  const tell = (text, style = {}) => {
    for (const line of wrapped(text, 130)) {
      shapes.push(words(20, y, line, style));
      y += 20;
    }
  };
  tell(`${pod.reason.code}: ${pod.reason.message}`);
  if (pod.next) tell(`Try: ${pod.next.replaceAll("`", "")}.`, { fill: "quiet" });
  y += 12;
  for (const group of groups(pod.reason).slice(0, 12)) {
    tell(`${group.nodes.length > 1 ? many(group.nodes.length, "node") : group.nodes[0]}  ${group.code}`, { bold: true });
    tell(group.message, { fill: "quiet" });
    y += 6;
  }
  return { width: 1040, height: y + 10, title: `Why ${pod.namespace}/${pod.name} waits`, shapes };
}

function given(pod) {
  if (!pod.allocations.length) return null;
  return h("section", { class: "panel stacked" }, h("h2", {}, "What it has"), table("Devices of the pod",
    [["card"], ["container"], ["compute", "number"], ["memory", "number"], ["how"], ["uuid"]],
    pod.allocations.map((g) => [`${g.type} ${g.minor}`, g.container + (g.init ? " (init)" : ""), percent(g.core_milli),
      g.memory_bytes ? bytes(g.memory_bytes) : "", (g.mode === "whole" && g.type !== "gpu" ? "whole device" : MODES[g.mode] || g.mode) + (g.mig ? ` ${g.mig.profile} at ${g.mig.start}` : "")
        + (g.vf ? `, virtual function ${g.vf.busID}` : ""), h("code", {}, g.uuid)])));
}

function asked(pod) {
  const each = (g) => (g.whole ? "whole" : [g.core_milli ? percent(g.core_milli) : "", g.memory_bytes ? bytes(g.memory_bytes)
    : g.memory_milli ? `${percent(g.memory_milli)} of memory` : ""].filter(Boolean).join(" + "));
  return h("section", { class: "panel stacked" }, h("h2", {}, "What it asks for"),
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
  return h("section", { class: "panel stacked" }, h("h2", {}, "What is written on it"),
    table("Annotations of the pod", [["annotation"], ["value"]], found.map(([key, value]) => [h("code", {}, key), h("code", {}, value)])));
}
