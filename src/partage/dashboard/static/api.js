// Reads documents of the scheduler service. An answer that has not changed costs one small 304.
import { heard } from "./format.js";

let token = "";
const known = new Map(); // path to {tag, body}, the few that are on the screen
const KEPT = 32;
// Marks that turn the direction of writing could show a text as another one; their numbers are shown instead.
const TURNS = /[\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]/g;

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** Use this bearer token from now on; it is kept nowhere else. */
export function useToken(given) {
  token = given.trim();
  known.clear();
}

/** The document at a path, whether it is another one than last time, and how its instance stands: leader, standby or rebuilding. */
export async function read(path, signal) {
  const headers = { Accept: "application/json" };
  const before = known.get(path);
  if (before) headers["If-None-Match"] = before.tag;
  if (token) headers.Authorization = `Bearer ${token}`;
  const answer = await fetch(path, { headers, signal, cache: "no-store", credentials: "same-origin" });
  const state = answer.headers.get("Partage-State") || "";
  heard(answer.headers.get("Date"));
  if (answer.status === 304 && before) return { body: before.body, changed: false, state };
  const body = await answer.text().then(parsed).catch(() => ({}));
  if (!answer.ok) throw new Refused(answer.status, body.message || `${answer.status} ${answer.statusText}`);
  const tag = answer.headers.get("ETag");
  const changed = !before || !tag || before.tag !== tag;
  if (tag) {
    known.delete(path);
    known.set(path, { tag, body });
    if (known.size > KEPT) known.delete(known.keys().next().value);
  }
  return { body, changed, state };
}

function parsed(text) {
  return JSON.parse(text.replace(TURNS, (char) => `\\\\u${char.charCodeAt(0).toString(16).padStart(4, "0")}`));
}

/** A path with those parameters that have a value. */
export function withQuery(path, parameters) {
  const given = Object.entries(parameters).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const query = new URLSearchParams(given).toString();
  return query ? `${path}?${query}` : path;
}
