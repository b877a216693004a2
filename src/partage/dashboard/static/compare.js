// What if another policy were in force: all pods placed again from nothing, beside the cluster as it is.
import { h } from "./draw.js";
import { bytes, cardsOf, count } from "./format.js";
import { meter, table } from "./parts.js";

export const path = () => "api/comparison";
export const title = () => "What if";

const COLUMNS = [["policy"], ["placed", "number"], ["waiting", "number"], ["idle cards", "number"], ["compute allocated", "keep"],
  ["memory allocated", "keep"], ["free, but unusable", "number"], ["pending pods", "wide"]];

export function render(seen) {
  const [today] = seen.rows;
  const { placed, waiting } = seen.by_claims;
  return [
    h("h1", {}, "What if"),
    h("p", { class: "quiet" }, `${count(seen.pods)} pods placed again from nothing under each policy, by priority and then by age, with the nodes,
      quotas and learnt prices of now. No pod is moved: it says what a policy would lead to.`),
    placed + waiting ? h("p", {}, `Pods with ResourceClaims (${count(placed)} placed, ${count(waiting)} waiting) are not in the table:
      kube-scheduler allocates their devices, and these stay where they are in every row.`) : null,
    h("section", { class: "panel stacked" }, h("h2", {}, "Policies"), table("Policies compared", COLUMNS, seen.rows.map((one) => row(one, today)))),
    seen.rows.length === 1 ? h("p", { class: "alert", role: "alert" }, `With more than ${count(seen.most)} pods this is not done beside live decisions. `,
      h("code", {}, "partage snapshot"), " and ", h("code", {}, "partage simulate cluster"), " do it offline.") : null,
    h("section", { class: "panel" }, h("h2", {}, "How to read it"), h("dl", { class: "facts" },
      h("dt", {}, "free, but unusable"), h("dd", {}, "compute that a request like those of today is expected to find and not to be able to use (fragmentation, as FGD measures it), in cards"),
      h("dt", {}, "idle cards"), h("dd", {}, "open cards without a pod: what pods of whole cards can still have"),
      h("dt", {}, "a few pods more or less"), h("dd", {}, "say little in a small cluster: another order of the same pods may reverse them"),
      h("dt", {}, "a pod's own policy"), h("dd", {}, "holds in every row"))),
  ];
}

function row(one, today) {
  const name = one.now ? h("strong", {}, `as it is (${one.policy})`) : h("code", {}, one.policy);
  return [name, change(one.placed, today.placed, one.now), change(one.waiting, today.waiting, one.now), change(one.cards.idle, today.cards.idle, one.now),
    amount(one.core_milli, "core", "compute", (milli) => `${cardsOf(milli)} cards`), amount(one.memory_bytes, "memory", "memory", bytes),
    cardsOf(one.fragmentation.unusable_milli),
    one.waiting_by_code.map(({ code, pods }) => `${count(pods)} ${code || "not refused by Partage"}`).join(", ") || "no pod"];
}

function change(value, before, now) {
  const difference = value - before;
  return now || !difference ? count(value) : [count(value), h("span", { class: "quiet" }, ` (${difference > 0 ? "+" : "\u2212"}${count(Math.abs(difference))})`)];
}

function amount(given, kind, label, write) {
  const text = `${write(given.used)} of ${write(given.total)}`;
  return [meter(given, kind, label, text), text];
}
