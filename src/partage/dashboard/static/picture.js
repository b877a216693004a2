// Pictures to send to somebody: a description of boxes and texts, written as SVG or painted as PNG.
import { h } from "./draw.js";

const FONT = "system-ui, sans-serif";
const NAMESPACE = "http://www.w3.org/2000/svg";

/** The colour that a name of the style sheet stands for now. */
export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/** A box; `edge` may be null, `dashed` is for what is not bound yet. */
export const box = (x, y, width, height, fill, edge = null, dashed = false) => ({ x, y, width, height, fill, edge, dashed });

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
  const drawn = shapes.map((one) => (one.text !== undefined
    ? `<text x="${one.x}" y="${one.y}" font-size="${one.size}" fill="${colour(one.fill)}"${one.bold ? ' font-weight="600"' : ""}>${escaped(one.text)}</text>`
    : `<rect x="${one.x}" y="${one.y}" width="${one.width}" height="${one.height}" fill="${colour(one.fill)}"${
      one.edge ? ` stroke="${colour(one.edge)}"${one.dashed ? ' stroke-dasharray="3"' : ""}` : ""}/>`));
  return `<svg xmlns="${NAMESPACE}" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" font-family="${FONT}"><title>${escaped(title)}</title>`
    + `<rect width="100%" height="100%" fill="${colour("panel")}"/>${drawn.join("\n")}</svg>`;
}

/** Paint the picture. */
export function paint(context, { width, height, shapes }) {
  const known = new Map();
  const real = (name) => known.get(name) || known.set(name, colour(name)).get(name);
  context.fillStyle = real("panel");
  context.fillRect(0, 0, width, height);
  for (const one of shapes) {
    context.fillStyle = real(one.fill);
    if (one.text !== undefined) {
      context.font = `${one.bold ? "600 " : ""}${one.size}px ${FONT}`;
      context.fillText(one.text, one.x, one.y);
    } else {
      context.fillRect(one.x, one.y, one.width, one.height);
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
