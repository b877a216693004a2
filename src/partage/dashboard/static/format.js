// Amounts and times as people write them.

/** Bytes. */
export function bytes(amount) {
  let value = amount;
  for (const unit of ["", "Ki", "Mi", "Gi", "Ti"]) {
    if (value < 1024 || unit === "Ti") return `${Number(value.toFixed(value < 100 ? 1 : 0))}${unit}`;
    value /= 1024;
  }
  return `${amount}`;
}

/** A card's model without the vendor, as lists of nodes name it. */
export const plainModel = (model) => model.replace(/^nvidia[ -]+/i, "").replaceAll(" ", "-");

/** Bytes to compare, as `partage explain` writes them: exact where that is short, else hundredths of GiB, rounded down or `up`. */
export function exact(amount, up = false) {
  const units = ["", "Ki", "Mi", "Gi", "Ti"];
  let [value, unit] = [amount, 0];
  while (value && value % 1024 === 0 && unit < units.length - 1) [value, unit] = [value / 1024, unit + 1];
  const text = `${value}${units[unit]}`;
  if (text.length > 8) return `${((up ? Math.ceil : Math.floor)((100 * amount) / 2 ** 30) / 100).toFixed(2)}Gi`;
  return value && !unit ? `${text} bytes` : text;
}

/** Thousandths of a card as percent; of more than one card as cards. */
export const percent = (milli) => (milli > 1000 ? cards(milli) : `${Number((milli / 10).toFixed(1))}%`);

/** Thousandths of a card as cards. */
export const cardsOf = (milli) => `${Number((milli / 1000).toFixed(1)).toLocaleString("en")}`;

/** Thousandths of a card in words. */
export const cards = (milli) => (milli === 1000 ? "1 card" : `${cardsOf(milli)} cards`);

/** A whole number with separators. */
export const count = (number) => number.toLocaleString("en");

/** So many of something, in the singular where it is one. */
export const many = (number, one, more = `${one}s`) => `${count(number)} ${number === 1 ? one : more}`;

/** The part used, from 0 to 1. */
export const part = (amount) => (amount.total ? Math.max(0, Math.min(1, amount.used / amount.total)) : 0);

/** A part as percent: never 0 % of something, never 100 % of less. */
export function share(amount) {
  const value = 100 * part(amount);
  if (value > 0 && value < 1) return `${Number(value.toPrecision(1))}%`;
  return value > 99 && value < 100 ? "99%" : `${Math.round(value)}%`;
}

/** Seconds as kubectl writes an age. */
export function span(seconds) {
  const s = Math.max(0, Math.floor(seconds));
  if (s < 120) return `${s}s`;
  if (s < 7200) return `${Math.floor(s / 60)}m`;
  return s < 172800 ? `${Math.floor(s / 3600)}h` : `${Math.floor(s / 86400)}d`;
}

/** How long ago a moment was; empty where it is not known. */
export const age = (moment) => (moment ? span((Date.now() - ahead - Date.parse(moment)) / 1000) : "");

let ahead = 0; // of this computer's clock before the service's, in milliseconds
const CLOSE = 2000; // clocks this close may differ by the way of the answer alone

/** Count ages by the service's clock from now on, which said this just now. */
export function heard(moment) {
  const off = Date.now() - Date.parse(moment);
  ahead = Math.abs(off) > CLOSE ? off : 0;
}

/** A moment in the reader's own words. */
export const date = (moment) => new Date(moment).toLocaleString();
