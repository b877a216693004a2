// Nodes, a page at a time, and one node in full.
import { withQuery } from "./api.js";
import { card, largeCard, legend, nodeHead } from "./cards.js";
import { count, h, kept } from "./dom.js";
import { filters, pager } from "./forms.js";

const LIMIT = 24;

export const list = {
  title: () => "Nodes",
  path: (_parts, query) => withQuery("api/nodes", {
    text: query.text, only: query.only, order: query.order, offset: query.offset, limit: LIMIT }),
  frame: (query, go) => filters(query, go, [
    ["text", "Name, model or card UUID"],
    ["only", "Show", [["", "all nodes"], ["used", "with pods on cards"], ["free", "with free cards only"], ["closed", "with closed cards"]]],
    ["order", "Order", [["", "by name"], ["used", "most used first"], ["free", "least used first"]]]]),
  render: (page, query, go) => [
    h("h1", {}, "Nodes"),
    legend(),
    page.nodes.length
      ? h("ul", { class: "nodes" }, page.nodes.map((node) => kept(node.name, node, () => h("li", { class: "panel" }, nodeHead(node, "h2"),
        h("ul", { class: node.cards.length > 2 ? "cards" : "cards few", "aria-label": `Cards of ${node.name}` }, node.cards.map((one) => card(one)))))))
      : h("p", { class: "empty" }, query.text || query.only ? "No node is like that."
        : "There are no nodes. One is shown here once the API server has it."),
    pager(page.total, page.nodes.length, LIMIT, query, go, `${count(page.total)} nodes`),
  ],
};

export const one = {
  title: ([name]) => name,
  path: ([name]) => `api/node/${encodeURIComponent(name)}`,
  render: (node) => [
    nodeHead(node, "h1"),
    legend(),
    node.objections.map((o) => h("p", { class: "warn" }, `${o.protocol}: ${o.code}: ${o.message}`)),
    node.notes.map((note) => h("p", { class: "quiet" }, note)),
    h("section", { class: "panel large" }, h("h2", {}, "Cards"),
      node.cards.length ? h("ul", { class: "cards" }, node.cards.map((one) =>
        kept(`${one.type} ${one.minor} ${one.uuid}`, [one, (node.history || { cards: {} }).cards[`${one.type} ${one.minor}`]], () => largeCard(one, node.history)))) : h("p", { class: "empty" }, "The node has no devices.")),
    h("section", { class: "panel" }, h("h2", {}, "Facts"), h("dl", { class: "facts" },
      fact("Taints", node.taints.join(", ") || "none"),
      fact("Registered by", node.registrar || "a Device object alone"),
      Object.entries(node.labels).map(([key, value]) => fact(h("code", {}, key), value)))),
  ],
};

const fact = (name, value) => [h("dt", {}, name), h("dd", {}, value)];
