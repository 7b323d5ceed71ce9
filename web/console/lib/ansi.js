// Terminal output to nodes: colours and weights are kept, everything else that a terminal would obey is dropped.

import { h } from "./dom.js";

// CSI sequences, OSC and other strings up to their end, and two-character escapes.
const ESCAPE = /\u001b\[([0-9;:?<=>]*)[ -/]*([@-~])|\u001b[\]PX^_][^\u0007\u001b]*(?:\u0007|\u001b\\)?|\u001b[ -/]*[0-~]?/g;
const CONTROL = /[\u0000-\u0008\u000b-\u001a\u001c-\u001f\u007f]/g;

/** @typedef {{fg: any, bg: any, bold: boolean, dim: boolean, italic: boolean, under: boolean, inverse: boolean}} Pen */

/** @returns {Pen} */
const plainPen = () => ({ fg: null, bg: null, bold: false, dim: false, italic: false, under: false, inverse: false });

/**
 * What is left on the screen of lines that a carriage return has written over.
 * @param {string} text
 */
export function settle(text) {
  if (!text.includes("\r")) return text;
  return text.replace(/\r+\n/g, "\n").split("\n").map((line) => line.slice(line.lastIndexOf("\r", line.length - 2) + 1)).join("\n");
}

/** The same as text alone. @param {string} raw */
export const settledText = (raw) => settle(raw).replace(ESCAPE, "").replace(CONTROL, "");

/**
 * Text and spans of a terminal's output.
 * @param {string} raw
 * @returns {import("./dom.js").Child[]}
 */
export function ansi(raw) {
  const text = settle(raw);
  const parts = /** @type {import("./dom.js").Child[]} */ ([]);
  let pen = plainPen();
  let from = 0;
  const say = (piece) => {
    const shown = piece.replace(CONTROL, "");
    if (shown) parts.push(span(shown, pen));
  };
  for (const found of text.matchAll(ESCAPE)) {
    if (found.index > from) say(text.slice(from, found.index));
    if (found[2] === "m") pen = turned(pen, found[1]);
    from = found.index + found[0].length;
  }
  if (from < text.length) say(text.slice(from));
  return parts;
}

/** @param {string} text @param {Pen} pen */
function span(text, pen) {
  const [fg, bg] = pen.inverse ? [pen.bg ?? "bg", pen.fg ?? "fg"] : [pen.fg, pen.bg];
  const names = [];
  const css = /** @type {Record<string, string>} */ ({});
  if (typeof fg === "number") names.push(`f${fg}`);
  else if (fg === "bg") names.push("f-bg");
  else if (fg) css.color = fg;
  if (typeof bg === "number") names.push(`b${bg}`);
  else if (bg === "fg") names.push("b-fg");
  else if (bg) css["background-color"] = bg;
  for (const name of /** @type {const} */ (["bold", "dim", "italic", "under"])) if (pen[name]) names.push(name);
  if (names.length === 0 && Object.keys(css).length === 0) return text;
  return h("span", { class: names.join(" "), css }, text);
}

/** @param {Pen} pen @param {string} codes @returns {Pen} */
function turned(pen, codes) {
  const next = { ...pen };
  const list = codes.split(/[;:]/).map(Number);
  for (let at = 0; at < list.length; at++) {
    const code = list[at];
    if (code === 0) Object.assign(next, plainPen());
    else if (code === 1) next.bold = true;
    else if (code === 2) next.dim = true;
    else if (code === 3) next.italic = true;
    else if (code === 4) next.under = true;
    else if (code === 7) next.inverse = true;
    else if (code === 22) next.bold = next.dim = false;
    else if (code === 23) next.italic = false;
    else if (code === 24) next.under = false;
    else if (code === 27) next.inverse = false;
    else if (code >= 30 && code <= 37) next.fg = code - 30;
    else if (code >= 90 && code <= 97) next.fg = code - 82;
    else if (code === 39) next.fg = null;
    else if (code >= 40 && code <= 47) next.bg = code - 40;
    else if (code >= 100 && code <= 107) next.bg = code - 92;
    else if (code === 49) next.bg = null;
    else if (code === 38 || code === 48) {
      const isIndexed = list[at + 1] === 5;
      next[code === 38 ? "fg" : "bg"] = isIndexed ? indexed(list[at + 2]) : rgb(list[at + 2], list[at + 3], list[at + 4]);
      at += isIndexed ? 2 : 4;
    }
  }
  return next;
}

/** @param {...number} parts */
const rgb = (...parts) => `rgb(${parts.map((part) => Math.min(255, part || 0)).join(",")})`;

/** A colour of the table of 256. @param {number} at */
function indexed(at) {
  if (!(at >= 0 && at <= 255)) return null;
  if (at < 16) return at;
  if (at >= 232) return rgb(8 + (at - 232) * 10, 8 + (at - 232) * 10, 8 + (at - 232) * 10);
  const level = (part) => (part === 0 ? 0 : 55 + part * 40);
  const cube = at - 16;
  return rgb(level(Math.floor(cube / 36)), level(Math.floor(cube / 6) % 6), level(cube % 6));
}
