// Differences of two texts, by lines and by words inside changed lines.

/** @typedef {{text: string, changed: boolean}} Part */
/** @typedef {{kind: "same" | "add" | "del" | "gap", old?: number, new?: number, text: string, parts?: Part[], count?: number}} Line */

const CONTEXT = 3;
const EFFORT = 800;

/**
 * The lines of a unified view of two texts, with so much context, and how many were added and removed.
 * @param {string | null | undefined} before
 * @param {string | null | undefined} after
 * @returns {{lines: Line[], added: number, removed: number}}
 */
export function diff(before, after) {
  const [old, now] = [lines(before), lines(after)];
  const all = /** @type {Line[]} */ ([]);
  let [at, to] = [0, 0];
  for (const [kind, length] of script(old, now)) {
    for (let done = 0; done < length; done++) {
      if (kind === "same") all.push({ kind, old: at + 1, new: to + 1, text: old[at] });
      else if (kind === "del") all.push({ kind, old: at + 1, text: old[at] });
      else all.push({ kind, new: to + 1, text: now[to] });
      if (kind !== "add") at++;
      if (kind !== "del") to++;
    }
  }
  markWords(all);
  const of = (kind) => all.filter((line) => line.kind === kind).length;
  return { lines: folded(all), added: of("add"), removed: of("del") };
}

/** @param {string | null | undefined} text */
function lines(text) {
  if (typeof text !== "string" || text === "") return [];
  const list = text.split("\n");
  if (list.at(-1) === "") list.pop();
  return list;
}

/** Long runs of equal lines become gaps. @param {Line[]} all */
function folded(all) {
  const near = new Uint8Array(all.length);
  all.forEach((line, at) => {
    if (line.kind !== "same") near.fill(1, Math.max(0, at - CONTEXT), at + CONTEXT + 1);
  });
  const out = /** @type {Line[]} */ ([]);
  for (let at = 0; at < all.length; at++) {
    if (near[at]) {
      out.push(all[at]);
      continue;
    }
    let end = at;
    while (end < all.length && !near[end]) end++;
    if (end - at === 1) out.push(all[at]);
    else out.push({ kind: "gap", text: "", count: end - at });
    at = end - 1;
  }
  return out;
}

/**
 * The edit script of two lists (Myers), as runs. Very different lists are given up on and replaced whole.
 * @template T
 * @param {T[]} old
 * @param {T[]} now
 * @returns {["same" | "add" | "del", number][]}
 */
export function script(old, now) {
  let head = 0;
  while (head < old.length && head < now.length && old[head] === now[head]) head++;
  let tail = 0;
  while (tail < old.length - head && tail < now.length - head && old[old.length - 1 - tail] === now[now.length - 1 - tail]) tail++;
  const runs = /** @type {["same" | "add" | "del", number][]} */ ([]);
  if (head) runs.push(["same", head]);
  runs.push(...middle(old.slice(head, old.length - tail), now.slice(head, now.length - tail)));
  if (tail) runs.push(["same", tail]);
  return runs;
}

/** @template T @param {T[]} old @param {T[]} now @returns {["same" | "add" | "del", number][]} */
function middle(old, now) {
  const [rows, columns] = [old.length, now.length];
  const whole = /** @type {["same" | "add" | "del", number][]} */ ([["del", rows], ["add", columns]]);
  if (rows === 0 || columns === 0) return whole.filter(([, length]) => length > 0);
  const limit = Math.min(rows + columns, EFFORT);
  const reach = new Int32Array(2 * limit + 3);
  const base = limit + 1;
  const trail = [];
  for (let cost = 0; cost <= limit; cost++) {
    trail.push(reach.slice(base - cost - 1, base + cost + 2));
    for (let k = -cost; k <= cost; k += 2) {
      const isDown = k === -cost || (k !== cost && reach[base + k - 1] < reach[base + k + 1]);
      let x = isDown ? reach[base + k + 1] : reach[base + k - 1] + 1;
      while (x < rows && x - k < columns && old[x] === now[x - k]) x++;
      reach[base + k] = x;
      if (x >= rows && x - k >= columns) return back(trail, cost, rows, columns);
    }
  }
  return whole;
}

/** Walks the found path back. @param {Int32Array[]} trail @param {number} cost @param {number} x @param {number} y */
function back(trail, cost, x, y) {
  const steps = /** @type {("same" | "add" | "del")[]} */ ([]);
  for (; cost > 0; cost--) {
    const reach = trail[cost];
    const at = (k) => reach[k + cost + 1];
    const k = x - y;
    const isDown = k === -cost || (k !== cost && at(k - 1) < at(k + 1));
    const from = isDown ? k + 1 : k - 1;
    const [px, py] = [at(from), at(from) - from];
    while (x > px && y > py && x - 1 >= (isDown ? px : px + 1) && y - 1 >= (isDown ? py + 1 : py)) {
      steps.push("same");
      x--;
      y--;
    }
    steps.push(isDown ? "add" : "del");
    [x, y] = [px, py];
  }
  for (; x > 0; x--) steps.push("same");
  const runs = /** @type {["same" | "add" | "del", number][]} */ ([]);
  for (const step of steps.reverse()) {
    const last = runs.at(-1);
    if (last && last[0] === step) last[1]++;
    else runs.push([step, 1]);
  }
  return runs;
}

/** In a run of removed lines followed by as many added ones, the words that differ are marked. @param {Line[]} all */
function markWords(all) {
  for (let at = 0; at < all.length; at++) {
    if (all[at].kind !== "del") continue;
    let middle = at;
    while (all[middle]?.kind === "del") middle++;
    let end = middle;
    while (all[end]?.kind === "add") end++;
    if (end - middle === middle - at && middle - at <= 60) {
      for (let pair = 0; pair < middle - at; pair++) markPair(all[at + pair], all[middle + pair]);
    }
    at = end - 1;
  }
}

/** @param {Line} del @param {Line} add */
function markPair(del, add) {
  if (del.text.length > 2000 || add.text.length > 2000) return;
  const words = (text) => text.match(/[\p{L}\p{N}_]+|\s+|[^\p{L}\p{N}_\s]/gu) ?? [];
  const [old, now] = [words(del.text), words(add.text)];
  const runs = script(old, now);
  const same = runs.filter(([kind]) => kind === "same").reduce((sum, [, length]) => sum + length, 0);
  // Lines that have hardly a word in common were not changed but replaced.
  if (same * 3 < Math.max(old.length, now.length)) return;
  del.parts = parts(runs, old, "del");
  add.parts = parts(runs, now, "add");
}

/** @param {[string, number][]} runs @param {string[]} words @param {"add" | "del"} side @returns {Part[]} */
function parts(runs, words, side) {
  const out = [];
  let at = 0;
  for (const [kind, length] of runs) {
    if (kind !== "same" && kind !== side) continue;
    out.push({ text: words.slice(at, at + length).join(""), changed: kind === side });
    at += length;
  }
  return out;
}
