// The page: reads the address, asks for the document of the view, and shows it again when it changes.
import { read, Refused, useToken } from "./api.js";
import * as compare from "./compare.js";
import { draw, h } from "./draw.js";
import * as fleet from "./fleet.js";
import * as nodes from "./nodes.js";
import * as overview from "./overview.js";
import * as pods from "./pods.js";

const EVERY = 2000; // milliseconds between two looks
const LATE = 10000; // milliseconds without an answer after which the page says so; it goes on waiting
const AGES = 30000; // milliseconds after which a view is drawn again though nothing has changed, as ages have
const VIEWS = { "": overview, fleet, nodes: nodes.list, node: nodes.one, pods: pods.list, pod: pods.one, compare };
const PAGE = { "": "overview", fleet: "fleet", nodes: "nodes", node: "nodes", pods: "pods", pod: "pods", compare: "compare" };

const main = document.getElementById("main");
const status = document.getElementById("status");
const news = document.getElementById("news");
const live = document.getElementById("live");
const nowhere = { title: () => "Not found" };
const signIn = document.getElementById("sign-in");

let shown = null; // what the address says: {key, view, parts, query}
let region = null; // where the view's document is drawn
let frame = null; // where its filters are
let choices = {}; // what they offer
let drawn = 0; // when the view was drawn last
let seen = ""; // when the service answered last
let asking = null;
let timer = 0;
let declined = ""; // for what no token is wanted

function address() {
  const [where, search = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [key, ...parts] = where.split("/").map((text) => {
    try {
      return decodeURIComponent(text);
    } catch {
      return text;
    }
  });
  const known = Object.hasOwn(VIEWS, key) && (key === "pod" ? parts.length === 2 : key === "node" ? parts.length === 1 : !parts.length);
  return { key, view: known ? VIEWS[key] : nowhere, parts, query: Object.fromEntries(new URLSearchParams(search)) };
}

function go(query) {
  const given = Object.entries(query).filter(([, value]) => value);
  const search = new URLSearchParams(given).toString();
  history.replaceState(null, "", `#/${shown.key}${search ? `?${search}` : ""}`);
  shown = address();
  filter();
  look(true);
}

/** Draw the filters of the view, with what there is to choose from. */
function filter() {
  if (shown.view.frame) draw(frame, [shown.view.frame(shown.query, go, choices)]);
}

/** Ask what there is to choose from. */
async function offer() {
  const { view } = shown;
  if (!view.frame || view.frame.length < 3) return;
  try {
    choices = (await read("api/overview")).body;
    if (view === shown.view) filter();
  } catch {
    // the view itself says that no answer comes
  }
}

function open() {
  const before = shown;
  shown = address();
  const { key, view, parts } = shown;
  for (const a of document.querySelectorAll("nav a")) {
    if (a.dataset.page === PAGE[key]) a.setAttribute("aria-current", "page");
    else a.removeAttribute("aria-current");
  }
  document.title = `${view.title(parts)} - Partage`;
  for (const old of [region, frame]) if (old) draw(old, []);
  [region, frame] = [document.createElement("div"), document.createElement("div")];
  region.id = "view";
  region.setAttribute("aria-busy", "true");
  draw(region, [h("h1", {}, view.title(parts)), h("p", { role: "status" }, "Loading…")]);
  filter();
  main.replaceChildren(frame, region);
  if (before) main.focus({ preventScroll: true });
  if (before && before.key !== key) window.scrollTo(0, 0);
  if (view === nowhere) lost();
  else look(true).then(meant);
  offer();
}

/** Show the card that the address means. */
function meant() {
  const card = document.getElementById("meant");
  if (card) card.scrollIntoView({ block: "center" });
}

/** Say that the address means nothing here. */
function lost() {
  if (asking) asking.abort();
  clearTimeout(timer);
  region.setAttribute("aria-busy", "false");
  region.dataset.shows = location.hash;
  draw(region, [h("h1", {}, "Not found"), h("p", { class: "alert", role: "alert" }, `There is no page ${location.hash}.`),
    h("p", {}, h("a", { href: "#/" }, "Back to the overview"))]);
}

async function look(fresh) {
  if (shown.view === nowhere) return;
  clearTimeout(timer);
  if (asking) asking.abort();
  const mine = new AbortController();
  let next = shown.view.every || EVERY;
  asking = mine;
  const late = setTimeout(() => complain(new Error("late"), false), LATE);
  try {
    const { view, parts, query } = shown;
    const { body, changed, state } = await read(view.path(parts, query), mine.signal).finally(() => clearTimeout(late));
    if (mine.signal.aborted) return;
    // A complaint is drawn over, too, and ages grow.
    const other = fresh || changed || region.dataset.shows !== location.hash || performance.now() - drawn > AGES;
    if (other && !(await show(view, body, () => !mine.signal.aborted))) return;
    tell(body, state);
  } catch (error) {
    if (mine.signal.aborted) return;
    next = EVERY;
    complain(error, fresh || error.status === 404); // what is no longer there is not shown as if it were
  } finally {
    if (asking === mine) {
      asking = null;
      if (live.getAttribute("aria-pressed") === "true" && !document.hidden) timer = setTimeout(() => look(false), next);
    }
  }
}

/** Draw the document, unless something else is asked for meanwhile. */
async function show(view, body, still) {
  const [mine, address] = [region, location.hash];
  if (!(await draw(mine, view.render(body, shown.query, go), still))) return false;
  mine.setAttribute("aria-busy", "false");
  mine.dataset.shows = address;
  drawn = performance.now();
  return true;
}

/** Say how old the picture is; only what changed in earnest is spoken to screen readers. */
function tell(body, state) {
  const text = { rebuilding: "the ledger is not rebuilt yet", standby: "a standby: another instance decides" }[state] || "";
  const back = live.dataset.state === "gone" ? "the scheduler answers again" : "";
  connected(text ? "stale" : "");
  status.className = text ? "bad" : "";
  seen = new Date().toLocaleTimeString();
  status.textContent = text || `as of ${seen}`;
  announce(text || (body.pods && body.pods.waiting !== undefined ? `${body.pods.waiting} pods waiting` : back));
  if (body.names === false) ask("You see sums only: names of pods need a token that may read them.");
  else if (body.names === true) signIn.hidden = true;
}

/** Whether what is shown is true now: `gone` where no answer comes, `stale` where another one knows better. */
function connected(state) {
  live.dataset.state = state;
  live.textContent = state === "gone" ? "No answer" : "Live";
}

function announce(text) {
  if (text && news.textContent !== text) news.textContent = text;
}

const TITLES = { 400: "Not understood", 401: "Not allowed", 403: "Not allowed", 404: "Not found" };

function complain(error, fresh) {
  const known = error instanceof Refused;
  const title = known ? TITLES[error.status] || "The request failed" : "No answer";
  connected(known ? "" : "gone");
  const silent = "the scheduler does not answer; trying again";
  status.className = "bad";
  status.textContent = known ? (fresh ? title.toLowerCase() : error.message) : seen ? `${silent}; as of ${seen}` : silent;
  announce(known ? error.message : silent);
  if (known && (error.status === 401 || error.status === 403)) ask("Enter a token to see more. For the pods of one namespace, name it in the filter.");
  if (!fresh) return;
  region.setAttribute("aria-busy", "false");
  delete region.dataset.shows;
  draw(region, [
    h("h1", {}, title),
    h("p", { class: "alert", role: "alert" }, known ? `${error.message}.` : "The scheduler does not answer. This page tries again every two seconds."),
    known && shown.key ? h("p", {}, h("a", { href: "#/" }, "Back to the overview")) : null]);
}

function ask(why) {
  if (declined === why) return;
  document.getElementById("sign-in-why").textContent = why;
  signIn.hidden = false;
}

live.addEventListener("click", () => {
  const on = live.getAttribute("aria-pressed") !== "true";
  live.setAttribute("aria-pressed", String(on));
  if (on) look(false);
  else clearTimeout(timer);
});
signIn.addEventListener("submit", (event) => {
  event.preventDefault();
  const field = document.getElementById("token");
  useToken(field.value);
  field.value = "";
  signIn.hidden = true;
  look(true);
});
document.addEventListener("visibilitychange", () => {
  if (!document.hidden && live.getAttribute("aria-pressed") === "true") look(false);
});
document.addEventListener("keydown", (event) => {
  const unfolded = event.target.closest("details[open], #sign-in");
  if (event.key === "Escape" && unfolded) {
    if (unfolded === signIn) {
      declined = document.getElementById("sign-in-why").textContent;
      signIn.hidden = true;
    } else unfolded.open = false;
    (unfolded.querySelector("summary") || main).focus();
  }
  const typing = event.target instanceof HTMLInputElement || event.target instanceof HTMLSelectElement;
  if (event.key !== "/" || typing || event.ctrlKey || event.metaKey || event.altKey) return;
  const search = document.querySelector(".filters input");
  if (search) {
    event.preventDefault();
    search.focus();
  }
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address says which view is shown
  main.focus();
});
window.addEventListener("hashchange", open);
open();
