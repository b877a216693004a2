// Pictures to send to others: a description of boxes and texts, written as SVG or painted as PNG.
import { h } from "./draw.js";

const FONT = "system-ui, sans-serif";
const NAMESPACE = "http://www.w3.org/2000/svg";

/** The colour that a name of the style sheet stands for now. */
export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/** A box; `edge` may be null, `dashed` is for what is not bound yet, `hatch` a number of `HATCHES` or 0. */
export const box = (x, y, width, height, fill, edge = null, dashed = false, hatch = 0) => ({ x, y, width, height, fill, edge, dashed, hatch });

const TILE = 6; // pixels after which a hatch repeats
const [RISING, FALLING] = ["M-1 1L1 -1M0 6L6 0M5 7L7 5", "M-1 5L1 7M0 0L6 6M5 -1L7 1"];
const HATCHES = ["", RISING, FALLING, RISING + FALLING];

/** A line of text, cut where it would be wider than `most` pixels. */
export function words(x, y, text, { size = 13, fill = "text", bold = false, most = Infinity } = {}) {
  const letters = Math.floor(most / (size * 0.56));
  return { x, y, text: text.length <= letters ? text : letters > 2 ? `${text.slice(0, letters - 1)}…` : "", size, fill, bold };
}

/** Texts of at most so many letters that say the same. */
export function wrapped(text, letters) {
  const lines = [""];
  for (const word of text.split(" ")) {
    const last = lines[lines.length - 1];
    if (last && last.length + word.length >= letters) lines.push(word);
    else lines[lines.length - 1] = last ? `${last} ${word}` : word;
  }
  return lines;
}

const escaped = (text) => text.replace(/[&<>"]/g, (letter) => `&#${letter.charCodeAt(0)};`);

/** The picture as an SVG document. */
export function svgOf({ width, height, title, shapes }) {
  const hatches = HATCHES.map((lines, i) => (lines
    ? `<pattern id="hatch-${i}" width="${TILE}" height="${TILE}" patternUnits="userSpaceOnUse"><path d="${lines}" stroke="${colour("panel")}"/></pattern>` : ""));
  const drawn = shapes.map((one) => (one.text !== undefined
    ? `<text x="${one.x}" y="${one.y}" font-size="${one.size}" fill="${colour(one.fill)}"${one.bold ? ' font-weight="600"' : ""}>${escaped(one.text)}</text>`
    : `<rect x="${one.x}" y="${one.y}" width="${one.width}" height="${one.height}" fill="${colour(one.fill)}"${
      one.edge ? ` stroke="${colour(one.edge)}"${one.dashed ? ' stroke-dasharray="3"' : ""}` : ""}/>${
      one.hatch ? `<rect x="${one.x}" y="${one.y}" width="${one.width}" height="${one.height}" fill="url(#hatch-${one.hatch})"/>` : ""}`));
  return `<svg xmlns="${NAMESPACE}" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" font-family="${FONT}"><title>${escaped(title)}</title>`
    + `<defs>${hatches.join("")}</defs><rect width="100%" height="100%" fill="${colour("panel")}"/>${drawn.join("\n")}</svg>`;
}

/** A hatch to fill a box with. */
function hatched(context, lines, stroke) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = TILE;
  const drawn = tile.getContext("2d");
  drawn.strokeStyle = stroke;
  drawn.stroke(new Path2D(lines));
  return context.createPattern(tile, "repeat");
}

/** Paint the picture. */
export function paint(context, { width, height, shapes }) {
  const known = new Map();
  const real = (name) => known.get(name) || known.set(name, colour(name)).get(name);
  const hatches = HATCHES.map((lines) => lines && hatched(context, lines, real("panel")));
  context.fillStyle = real("panel");
  context.fillRect(0, 0, width, height);
  for (const one of shapes) {
    context.fillStyle = real(one.fill);
    if (one.text !== undefined) {
      context.font = `${one.bold ? "600 " : ""}${one.size}px ${FONT}`;
      context.fillText(one.text, one.x, one.y);
    } else {
      context.fillRect(one.x, one.y, one.width, one.height);
      if (one.hatch) {
        context.fillStyle = hatches[one.hatch];
        context.fillRect(one.x, one.y, one.width, one.height);
      }
      if (one.edge) {
        context.strokeStyle = real(one.edge);
        context.setLineDash(one.dashed ? [3] : []);
        context.strokeRect(one.x, one.y, one.width, one.height);
      }
    }
  }
}

function save(name, blob) {
  const to = document.createElement("a");
  to.href = URL.createObjectURL(blob);
  to.download = name;
  to.click();
  setTimeout(() => URL.revokeObjectURL(to.href), 60000);
}

function png(name, picture) {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [picture.width * 2, picture.height * 2];
  const context = canvas.getContext("2d");
  context.scale(2, 2);
  paint(context, picture);
  canvas.toBlob((blob) => save(`${name}.png`, blob));
}

/** Two buttons that save a picture; `make` describes it when it is wanted. */
export const saving = (name, make) => h("span", { class: "saving" },
  h("button", { type: "button", onClick: () => save(`${name}.svg`, new Blob([svgOf(make())], { type: "image/svg+xml" })) }, "Save as SVG"),
  h("button", { type: "button", onClick: () => png(name, make()) }, "PNG"));
