// Nodes, a page at a time, and one node in full.
import { withQuery } from "./api.js";
import { card, largeCard, legend, nameOf, nodeHead, pictureOf } from "./cards.js";
import { h, kept } from "./draw.js";
import { many } from "./format.js";
import { choices, filters, pager } from "./parts.js";
import { saving } from "./picture.js";

const LIMIT = 24;
const given = (models, key) => [...new Set(models.map((one) => one[key]).filter(Boolean))].sort();

export const list = {
  title: () => "Nodes",
  path: (_parts, query) => withQuery("api/nodes", {
    text: query.text, only: query.only, vendor: query.vendor, model: query.model, protocol: query.protocol, order: query.order,
    offset: query.offset, limit: LIMIT }),
  frame: (query, go, { models = [], protocols = [] }) => filters(query, go, [
    ["text", "Name, model or card UUID"],
    ["only", "Show", [["", "all nodes"], ["used", "with pods on cards"], ["free", "with free cards only"], ["closed", "with closed cards"]]],
    ["vendor", "Vendor", choices("any", given(models, "vendor"))],
    ["model", "Model", choices("any", given(models, "model"))],
    ["protocol", "Protocol", choices("any", given(protocols, "protocol"))],
    ["order", "Order", [["", "by name"], ["used", "most used first"], ["free", "least used first"]]]]),
  render: (page, query, go) => [
    h("h1", {}, "Nodes"),
    legend(),
    page.nodes.length
      ? h("ul", { class: "nodes" }, page.nodes.map((node) => kept(node.name, node, () => h("li", { class: "panel" }, nodeHead(node, "h2"),
        h("ul", { class: node.cards.length > 2 ? "cards" : "cards few", "aria-label": `Cards of ${node.name}` }, node.cards.map((one) => card(one)))))))
      : h("p", { class: "empty" }, page.total || ["text", "only", "vendor", "model", "protocol"].some((key) => query[key]) ? "No node matches."
        : "There are no nodes. One is shown here once the API server has it."),
    pager(page.total, page.nodes.length, LIMIT, query, go, many(page.total, "node")),
  ],
};

export const one = {
  title: ([name]) => name,
  path: ([name]) => `api/node/${encodeURIComponent(name)}`,
  render: (node, query) => [
    nodeHead(node, "h1", node.cards.length ? saving(node.name, () => pictureOf(node)) : null),
    legend(),
    node.objections.map((o) => h("p", { class: "warn" }, `${o.protocol}: ${o.code}: ${o.message}`)),
    node.notes.map((note) => h("p", { class: "quiet" }, note)),
    h("section", { class: "panel large" }, h("h2", {}, "Cards"),
      node.cards.length ? h("ul", { class: "cards" }, node.cards.map((one, i) =>
        kept(`${nameOf(one)} ${one.uuid}`, [one, (node.history || { cards: {} }).cards[nameOf(one)], query.card === String(i)], () =>
          largeCard(one, node.history, query.card === String(i) ? "meant" : "")))) : h("p", { class: "empty" }, "The node has no devices.")),
    h("section", { class: "panel" }, h("h2", {}, "Facts"), h("dl", { class: "facts" },
      fact("Taints", node.taints.join(", ") || "none"),
      fact("Registered by", node.registrar || "a Device object alone"),
      Object.entries(node.labels).map(([key, value]) => fact(h("code", {}, key), value)))),
  ],
};

const fact = (name, value) => [h("dt", {}, name), h("dd", {}, value)];
