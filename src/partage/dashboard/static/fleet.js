// The whole fleet on one screen: a cell a card, nodes in natural order, coloured by what one wants to know.
import { Component, h } from "./draw.js";
import { count, many } from "./format.js";
import { filters } from "./parts.js";
import { box, paint, saving, words } from "./picture.js";

export const path = () => "api/fleet";
export const title = () => "Fleet";
export const every = 4000;

const BY = [["", "compute used"], ["memory", "memory used"], ["protocol", "protocol"], ["state", "state"], ["vendor", "vendor"], ["model", "model"]];
const RAMP = ["0%", "under 25%", "under 50%", "under 75%", "under 100%", "100%"];
const STATES = { idle: ["track", "idle"], shared: ["ramp-2", "shared"], whole: ["ramp-4", "given whole"],
  Unhealthy: ["fault", "unhealthy", 1], Cordoned: ["held", "cordoned", 1], Quarantined: ["doubt", "quarantined", 1] };
const PROTOCOLS = { "": ["track"], koordinator: ["koordinator-edge"], qgpu: ["qgpu-edge"], hami: ["hami-edge"] }; // as on cards
const OTHER = ["other-edge", 1];
const SETS = 8;
const HATCHES = 4; // none is the first of them: colours repeat after eight kinds, looks after 32

export const frame = (query, go) => filters(query, go, [["by", "Colour by", BY], ["text", "Only nodes with"]]);

export function render(seen, query) {
  const by = (BY.some(([key]) => key === query.by) && query.by) || "compute";
  return [h("h1", {}, "Fleet"), h(Fleet, { seen, by, text: (query.text || "").toLowerCase() })];
}

const read = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
const step = (percent) => (percent === 0 ? 0 : percent === 100 ? 5 : 1 + Math.floor(percent / 25));

/** What each card's cell says: an index into a list of [colour, text, hatch]. */
function classes(fleet, by) {
  if (by === "compute" || by === "memory") {
    const shut = fleet.states.indexOf("whole");
    return { list: [...RAMP.map((text, i) => [i ? `ramp-${i}` : "track", text]), ["fault", "closed", 1]],
      of: (i) => (fleet.state[i] > shut && !fleet[by][i] ? RAMP.length : step(fleet[by][i])) };
  }
  if (by === "state") return { list: fleet.states.map((name) => STATES[name] || ["set-5", name, 1]), of: (i) => fleet.state[i] };
  if (by === "protocol") {
    const list = fleet.protocols.map((name) => {
      const [fill, hatch] = PROTOCOLS[name] || OTHER;
      return [fill, name || "no pod", hatch];
    });
    return { list: [...list, ["text", "several"]], of: (i) => Math.min(fleet.protocol[i], list.length) };
  }
  const told = fleet.kinds.map((kind) => (kind[by] && kind[by] !== "unknown" ? kind[by] : "not reported"));
  const names = [...new Set(told)];
  const of = told.map((name) => names.indexOf(name));
  return { list: names.map((name, i) => [`set-${i % SETS}`, name, Math.floor(i / SETS) % HATCHES]), of: (i) => of[fleet.kind[i]] ?? 0 };
}

/** Where each node's cells lie: as large as all of them fit into the height, and no smaller than can be seen. */
function laidOut(counts, width, height, least) {
  let found = null;
  for (let size = 36; size >= least && !found; size -= 1) found = flow(counts, width, size > least ? height : Infinity, size, size);
  for (let tall = found.size + 1; tall <= 2 * found.size && found.size < 12; tall += 1) { // small cells are taller where there is room
    const taller = flow(counts, width, height, found.size, tall);
    if (!taller) break;
    found = taller;
  }
  return found;
}

function flow(counts, width, height, size, tall) {
  const gap = Math.max(1, Math.round(size / 3));
  const nodes = [];
  let [x, y, most] = [0, 0, 0];
  for (const cards of counts) {
    const columns = cards <= 2 ? cards : cards <= 4 ? 2 : cards <= 8 ? 4 : Math.ceil(Math.sqrt(2 * cards));
    const [wide, high] = [columns * size, columns ? Math.ceil(cards / columns) * tall : 0];
    if (x + wide > width && x) [x, y, most] = [0, y + most + gap, 0];
    if (y + high > height) return null;
    nodes.push({ x, y, columns, cards });
    if (cards) x += wide + gap;
    most = Math.max(most, high);
  }
  return { nodes, size, tall, height: y + most };
}

class Fleet extends Component {
  componentDidMount() {
    this.watcher = new ResizeObserver(() => this.fit());
    this.watcher.observe(this.section);
    this.scheme = matchMedia("(prefers-color-scheme: dark)");
    this.recolour = () => this.fit();
    this.scheme.addEventListener("change", this.recolour);
    this.fit();
  }

  componentDidUpdate() {
    this.fit();
  }

  componentWillUnmount() {
    this.watcher.disconnect();
    this.scheme.removeEventListener("change", this.recolour);
  }

  /** The document with its bytes read, and where each node's cards begin. */
  get fleet() {
    const { seen, text } = this.props;
    if (this.read !== seen) {
      this.read = seen;
      this.known = { ...seen };
      for (const key of ["cards", "compute", "memory", "protocol", "state", "kind"]) this.known[key] = read(seen[key]);
      let at = 0;
      this.known.first = [...this.known.cards].map((cards) => (at += cards) - cards);
      this.wanted = undefined;
    }
    if (this.wanted !== text) {
      this.wanted = text;
      this.chosen = this.known.nodes.map((name, i) => i).filter((i) => this.known.cards[i] && this.known.nodes[i].toLowerCase().includes(text));
    }
    return this.known;
  }

  get place() {
    const { fleet } = this;
    const width = Math.max(this.canvas.parentElement.clientWidth, 200);
    const height = Math.max(innerHeight - this.canvas.getBoundingClientRect().top - scrollY - 60, 240);
    return { width, ...laidOut(this.chosen.map((i) => fleet.cards[i]), width, height, width < 600 ? 4 : 2) };
  }

  fit() {
    const { fleet } = this;
    if (!this.chosen.length) return;
    this.where = this.place;
    const { width, height } = this.where;
    const scale = devicePixelRatio || 1;
    const [wide, high] = [Math.round(width * scale), Math.max(Math.round(height * scale), 1)];
    if (this.canvas.width !== wide || this.canvas.height !== high) {
      [this.canvas.width, this.canvas.height] = [wide, high];
      Object.assign(this.canvas.style, { width: `${width}px`, height: `${height}px` });
    }
    const context = this.canvas.getContext("2d");
    context.setTransform(scale, 0, 0, scale, 0, 0);
    paint(context, { width, height, shapes: this.shapes(fleet) });
    this.mark();
  }

  /** Boxes of all cells, of the same colour one after the other. */
  shapes(fleet) {
    const { list, of } = classes(fleet, this.props.by);
    const { nodes, size, tall } = this.where;
    const bins = list.map(() => []);
    const inner = size > 4 ? size - 1 : size;
    nodes.forEach(({ x, y, columns, cards }, number) => {
      const first = fleet.first[this.chosen[number]];
      for (let i = 0; i < cards; i += 1) {
        const group = of(first + i);
        bins[group].push(box(x + (i % columns) * size, y + Math.floor(i / columns) * tall, inner, tall > 4 ? tall - 1 : tall - 0.5, list[group][0],
          null, false, list[group][2]));
      }
    });
    return bins.flat();
  }

  /** Draw a frame around the cell that is looked at, and say what it is. */
  mark() {
    const at = this.at;
    if (!at || !(at.card < this.where.nodes[at.node]?.cards)) {
      this.at = null;
      this.frame.hidden = true;
      return;
    }
    const { nodes, size, tall } = this.where;
    const { x, y, columns } = nodes[at.node];
    this.frame.hidden = false;
    Object.assign(this.frame.style, { left: `${x + (at.card % columns) * size - 3}px`, top: `${y + Math.floor(at.card / columns) * tall - 3}px`,
      width: `${size + 5}px`, height: `${tall + 5}px` });
    this.says.textContent = this.sentence(at);
  }

  sentence({ node, card }) {
    const { fleet } = this;
    const index = this.chosen[node];
    const i = fleet.first[index] + card;
    const kind = fleet.kinds[fleet.kind[i]] || {};
    const protocol = fleet.protocol[i] === 255 ? "several protocols" : fleet.protocols[fleet.protocol[i]];
    return [`${fleet.nodes[index]}, card ${card + 1} of ${fleet.cards[index]}: ${fleet.compute[i]}% of compute, ${fleet.memory[i]}% of memory`,
      protocol, (STATES[fleet.states[fleet.state[i]]] || ["", fleet.states[fleet.state[i]]])[1], kind.model].filter(Boolean).join(", ");
  }

  /** The card nearest to a point, or null far from all. */
  nearest(px, py) {
    const { nodes, size, tall } = this.where;
    let [best, least] = [null, Infinity];
    nodes.forEach(({ x, y, columns, cards }, node) => {
      const [cx, cy] = [Math.min(Math.max(Math.floor((px - x) / size), 0), columns - 1), Math.max(Math.floor((py - y) / tall), 0)];
      const card = Math.min(cy * columns + cx, cards - 1);
      const far = Math.hypot(x + ((card % columns) + 0.5) * size - px, y + (Math.floor(card / columns) + 0.5) * tall - py);
      if (far < least) [best, least] = [{ node, card }, far];
    });
    return best;
  }

  /** Go on by cards, or to the row above or below. */
  move(key) {
    const last = this.chosen.length - 1;
    const cards = (node) => this.where.nodes[node].cards;
    const { node, card } = this.at || { node: 0, card: -1 };
    if (key === "End") return { node: last, card: cards(last) - 1 };
    if (key === "Home" || !this.at) return { node: 0, card: 0 };
    if (key === "ArrowRight") return card + 1 < cards(node) ? { node, card: card + 1 } : { node: Math.min(node + 1, last), card: node < last ? 0 : card };
    if (key === "ArrowLeft") return card ? { node, card: card - 1 } : node ? { node: node - 1, card: cards(node - 1) - 1 } : this.at;
    if (key === "PageDown") return { node: Math.min(node + 50, last), card: 0 };
    if (key === "PageUp") return { node: Math.max(node - 50, 0), card: 0 };
    const { nodes, size, tall } = this.where;
    const { x, y, columns } = nodes[node];
    const [cx, cy] = [x + ((card % columns) + 0.5) * size, y + (Math.floor(card / columns) + 0.5) * tall];
    for (let far = 1; far <= 4; far += 1) { // over the gap between two rows of nodes
      const to = this.nearest(cx, cy + (key === "ArrowDown" ? far : -far) * tall * 0.9);
      if (to.node !== node || to.card !== card) return to;
    }
    return this.at;
  }

  open() {
    if (this.at) location.hash = `#/node/${encodeURIComponent(this.fleet.nodes[this.chosen[this.at.node]])}?card=${this.at.card}`;
  }

  render({ by }) {
    const { fleet } = this;
    const { list, of } = classes(fleet, by);
    const sums = list.map(() => 0);
    let cards = 0;
    for (const node of this.chosen) {
      for (let i = 0; i < fleet.cards[node]; i += 1) sums[of(fleet.first[node] + i)] += 1;
      cards += fleet.cards[node];
    }
    const there = list.map(([name, text, hatch = 0], i) => [name, text, hatch, sums[i]]).filter(([, , , sum]) => sum);
    const point = (event) => {
      const { left, top } = this.canvas.getBoundingClientRect();
      return this.nearest(event.clientX - left, event.clientY - top);
    };
    const keys = ["ArrowRight", "ArrowLeft", "ArrowUp", "ArrowDown", "Home", "End", "PageUp", "PageDown"];
    return h("section", { class: "panel fleet", ref: (made) => { this.section = made; } },
      h("div", { class: "head" }, h("ul", { class: "legend", "aria-label": "Colours" }, there.map(([name, text, hatch, sum]) =>
        h("li", { key: text }, h("i", { class: `hatch-${hatch}`, style: { backgroundColor: `var(--${name})` } }), `${text}: ${count(sum)}`))),
      h("span", { class: "quiet" }, `${many(cards, "card")} on ${many(this.chosen.length, "node")}`),
      cards ? saving("fleet", () => this.picture(there)) : null),
      this.chosen.length ? null : h("p", { class: "empty" }, fleet.nodes.length && this.props.text ? "No node matches." : "There are no cards. Nodes report them once the agent, or a device plugin that is understood, runs there."),
      h("div", { class: "cells", role: "application", tabindex: "0", hidden: !this.chosen.length,
        "aria-label": `A cell for each of ${many(cards, "card")}, coloured by ${by}. Arrow keys move, Enter opens the node.`,
        onKeyDown: (event) => {
          if (event.key === "Enter") this.open();
          if (!keys.includes(event.key)) return;
          event.preventDefault();
          this.at = this.move(event.key);
          this.mark();
          this.frame.scrollIntoView({ block: "nearest" });
        },
        onMouseMove: (event) => { this.at = point(event); this.mark(); },
        onClick: (event) => { this.at = point(event); this.open(); } },
      h("canvas", { ref: (made) => { this.canvas = made; }, "aria-hidden": "true" }),
      h("span", { class: "frame", hidden: true, ref: (made) => { this.frame = made; } })),
      h("p", { class: "quiet says", role: "status", ref: (made) => { this.says = made; } }, cards ? "Point at a card, or go there with the arrow keys." : ""));
  }

  picture(there) {
    const { width, height } = this.where;
    const shapes = [words(0, 22, `Fleet by ${BY.find(([key]) => (key || "compute") === this.props.by)[1]}`, { size: 18, bold: true })];
    let x = 0;
    for (const [name, text, hatch, sum] of there) {
      const says = `${text}: ${count(sum)}`;
      shapes.push(box(x, 36, 12, 12, name, null, false, hatch), words(x + 18, 47, says, { fill: "quiet", size: 12 }));
      x += 40 + says.length * 7;
    }
    const moved = this.shapes(this.fleet).map((one) => ({ ...one, y: one.y + 64 }));
    const framed = [...shapes, ...moved].map((one) => ({ ...one, x: one.x + 20, y: one.y + 10 }));
    return { width: width + 40, height: height + 94, title: "Fleet", shapes: framed };
  }
}
