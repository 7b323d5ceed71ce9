// Text for people: times, sizes, and characters that would otherwise not be seen.

import { h } from "./dom.js";

const NAMES = new Map(Object.entries({
  0x00ad: "soft hyphen", 0x061c: "arabic letter mark", 0x200b: "zero width space", 0x200c: "zero width non-joiner",
  0x200d: "zero width joiner", 0x200e: "left-to-right mark", 0x200f: "right-to-left mark", 0x2028: "line separator",
  0x2029: "paragraph separator", 0x202a: "left-to-right embedding", 0x202b: "right-to-left embedding",
  0x202c: "pop directional formatting", 0x202d: "left-to-right override", 0x202e: "right-to-left override",
  0x2060: "word joiner", 0x2066: "left-to-right isolate", 0x2067: "right-to-left isolate", 0x2068: "first strong isolate",
  0x2069: "pop directional isolate", 0xfeff: "byte order mark", 0x00a0: "no-break space", 0x3164: "hangul filler",
}).map(([code, name]) => [Number(code), name]));
// Control and format characters, odd spaces, private use and lone surrogates; tab and newline are left alone.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u00a0\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb]|[\ue000-\uf8ff]|\p{Cs}|[\u{e0000}-\u{e0fff}]/gu;

/**
 * Text in which nothing hides: characters that cannot be seen, or that turn the direction, are shown by number.
 * @param {string} text
 * @returns {import("./dom.js").Child[]}
 */
export function visible(text) {
  const parts = [];
  let from = 0;
  for (const found of text.matchAll(HIDDEN)) {
    if (found.index > from) parts.push(text.slice(from, found.index));
    const code = found[0].codePointAt(0) ?? 0;
    const number = "U+" + code.toString(16).toUpperCase().padStart(4, "0");
    parts.push(h("span", { class: "hidden-char", title: NAMES.get(code) ?? "character that cannot be seen" }, number));
    from = found.index + found[0].length;
  }
  if (from < text.length) parts.push(text.slice(from));
  return parts;
}

/** Whether `visible` would show more than the plain text. @param {string} text */
export const hides = (text) => text.search(HIDDEN) >= 0;

/** The same as plain text, for titles and names. @param {unknown} text */
export const plain = (text) =>
  String(text ?? "").replace(HIDDEN, (found) => "\\u" + (found.codePointAt(0) ?? 0).toString(16).padStart(4, "0"));

const CUT = { lines: 16, characters: 1600, headLines: 10, head: 1000, tailLines: 5, tail: 500 };

/**
 * The beginning and the end of a long text, and how much is between them. `null`: it is short enough to be shown whole.
 * @param {string} text
 * @returns {{head: string, tail: string, lines: number, characters: number} | null}
 */
export function cut(text) {
  const breaks = text.split("\n", CUT.lines + 1).length;
  if (breaks <= CUT.lines && text.length <= CUT.characters) return null;
  const head = text.split("\n", CUT.headLines).join("\n").slice(0, CUT.head);
  const rest = text.slice(head.length);
  const tail = rest.slice(-CUT.tail).split("\n").slice(-CUT.tailLines).join("\n");
  const middle = rest.slice(0, rest.length - tail.length);
  return { head, tail, lines: middle.split("\n").length, characters: middle.length };
}

/** A duration in seconds, short. @param {number} seconds */
export function ago(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} m`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h`;
  return `${Math.floor(whole / 86400)} d`;
}

/** A duration in milliseconds, as exact as it matters. @param {number} ms */
export function duration(ms) {
  if (ms < 1) return `${Math.round(ms * 1000)} µs`;
  if (ms < 100) return `${ms < 10 ? ms.toFixed(1) : Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(1)} s`;
  return `${Math.floor(ms / 60_000)} m ${Math.round((ms % 60_000) / 1000)} s`;
}

/** @param {number} count */
export function bytes(count) {
  if (count < 1000) return `${count} B`;
  if (count < 1e6) return `${(count / 1e3).toFixed(count < 1e4 ? 1 : 0)} kB`;
  return count < 1e9 ? `${(count / 1e6).toFixed(count < 1e7 ? 1 : 0)} MB` : `${(count / 1e9).toFixed(1)} GB`;
}

/** @param {number} number */
export function count(number) {
  if (number < 10_000) return String(Math.round(number * 10) / 10);
  return number < 1e6 ? `${(number / 1e3).toFixed(number < 1e5 ? 1 : 0)} k` : `${(number / 1e6).toFixed(1)} M`;
}

/** "1 file", "2 files". @param {number} number @param {string} noun */
export const plural = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;

/** The time of day. @param {number} ms since 1970 */
export function clock(ms) {
  const date = new Date(ms);
  const two = (part) => String(part).padStart(2, "0");
  return `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}.${String(date.getMilliseconds()).padStart(3, "0")}`;
}

/** Where a session is: "claude/0", and "claude/0 at n17" if that is on another machine. @param {{pool?: string | null, worker?: number | null, node?: string | null}} view */
export function place(view) {
  const worker = view.worker === null || view.worker === undefined ? "" : `/${view.worker}`;
  return `${view.pool ?? "–"}${worker}${view.node ? ` at ${view.node}` : ""}`;
}

/** A folder, with the home folder as `~`. @param {string | null | undefined} path */
export const folder = (path) => (path ?? "").replace(/^\/(?:home|Users)\/[^/]+(?=\/|$)/, "~");

/** A text in pieces of at most so many characters, at ends of lines where there are any. @param {string} text @param {number} longest */
export function pieces(text, longest) {
  const out = [];
  let from = 0;
  while (text.length - from > longest) {
    const line = text.lastIndexOf("\n", from + longest - 1) + 1;
    const to = line > from + longest / 4 ? line : from + longest - (/[\ud800-\udbff]/.test(text[from + longest - 1]) ? 1 : 0);
    out.push(text.slice(from, to));
    from = to;
  }
  return [...out, text.slice(from)];
}
