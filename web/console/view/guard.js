// The guard of answers: a click that comes right after a card has changed or moved was meant for something else.

import { store } from "../state/app.js";

export const ARM_MS = 300;
const SAMPLE_MS = 100;
/** Further than this is a move. */
const NEAR_PX = 3;
const CARDS_MAX = 200;

/** What each card showed when it was last drawn, and since when. @type {Map<string, {parts: any[], at: number}>} */
const drawn = new Map();
/** Where the answers of each card were a moment ago. @type {WeakMap<Element, {at: number, left: number, top: number, height: number}[]>} */
let places = new WeakMap();
let timer = 0;

/** A card is drawn. `parts` are all that it shows; if one of them is another than before, the card has changed. @param {string} key @param {any[]} parts */
export function noteDrawn(key, parts) {
  const before = drawn.get(key);
  if (!before || parts.some((part, at) => !Object.is(part, before.parts[at]))) {
    if (drawn.size >= CARDS_MAX) drawn.delete(drawn.keys().next().value ?? "");
    drawn.set(key, { parts, at: Date.now() });
  }
  timer ||= setInterval(sample, SAMPLE_MS);
}

function sample() {
  const rows = document.querySelectorAll(".question .choices");
  for (const row of rows) notePlace(row);
  if (rows.length) return;
  clearInterval(timer);
  timer = 0;
  places = new WeakMap();
}

/** @param {Element} row */
function notePlace(row) {
  const { left, top, height } = row.getBoundingClientRect();
  const now = { at: Date.now(), left, top, height };
  const before = (places.get(row) ?? []).filter((one) => now.at - one.at < 2 * ARM_MS);
  places.set(row, [...before, now]);
  return [...before, now];
}

/** @param {Element} row */
function hasMoved(row) {
  const trail = notePlace(row);
  const now = trail[trail.length - 1];
  const isFar = (one) => Math.abs(one.left - now.left) > NEAR_PX || Math.abs(one.top - now.top) > NEAR_PX || Math.abs(one.height - now.height) > NEAR_PX;
  return trail.some((one) => now.at - one.at < ARM_MS && isFar(one));
}

/** Whether the card has been as it is, and where it is, for long enough. Keys do not aim at a place, so they have no `row`. @param {string} key @param {Element | null} [row] */
export function isArmed(key, row) {
  const since = Math.max(store.state.armedAt, drawn.get(key)?.at ?? Date.now());
  return Date.now() - since >= ARM_MS && !(row && hasMoved(row));
}
