// Markdown to nodes. What an agent writes is text: no HTML, no images that load, links only to http and https.

import { h } from "./dom.js";
import { highlight } from "./highlight.js";

/** @typedef {import("./dom.js").Child} Child */
/** @typedef {import("./dom.js").VNode} VNode */

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`]*)$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
/** Quotes and lists inside each other, so deep. */
const DEPTH = 6;
/** What a mark may span is bounded, so that one without its other half costs no more than that. */
const INLINE =
  /(`+)([\s\S]{0,1000}?[^`])\1(?!`)|!?\[([^\]\n]{0,300})\]\(\s{0,9}<?([^\s)>]{0,2000})>?(?:\s{1,9}"[^"]{0,300}")?\s{0,9}\)|\*\*(?=\S)([\s\S]{0,1000}?\S)\*\*|__(?=\S)([\s\S]{0,1000}?\S)__(?!\w)|~~(?=\S)([\s\S]{0,1000}?\S)~~|\*(?=[^\s*])([\s\S]{0,1000}?[^\s*])\*(?!\*)|(?<!\w)_(?=[^\s_])([\s\S]{0,1000}?[^\s_])_(?!\w)|(https?:\/\/[^\s<>"'`)\]]*[^\s<>"'`)\].,;:!?])|\\([!-/:-@[-`{-~])/g;

/**
 * The blocks of a text. A block whose text is as it was is not looked at again, so a text that grows costs its last block.
 * @param {string} text
 * @returns {VNode[]}
 */
export const markdown = (text) => nested(text, 0);

/** @param {string} text @param {number} depth */
const nested = (text, depth) => blocks(text).map((block, key) => h(Block, { key, block, depth }));

/** @param {{block: string, depth: number}} props */
const Block = ({ block, depth }) => (depth > DEPTH ? h("p", null, block) : blockNode(block, depth));

/** Splits a text at blank lines that are in no fence; a list stays whole. @param {string} text */
export function blocks(text) {
  const out = /** @type {string[]} */ ([]);
  let current = /** @type {string[]} */ ([]);
  let fence = "";
  const flush = () => {
    if (current.length) out.push(current.join("\n"));
    current = [];
  };
  for (const line of text.split("\n")) {
    const mark = FENCE.exec(line);
    if (fence) {
      current.push(line);
      if (mark && mark[1].startsWith(fence) && !mark[2].trim()) {
        fence = "";
        flush();
      }
    } else if (mark) {
      flush();
      fence = mark[1];
      current.push(line);
    } else if (!line.trim()) {
      flush();
    } else {
      if (/^ {0,3}#{1,6}\s/.test(line) || (current.length && /^ {0,3}#{1,6}\s/.test(current[0]))) flush();
      if (current.length && ITEM.test(line) && !ITEM.test(current[0])) flush();
      current.push(line);
    }
  }
  flush();
  return out;
}

/** @param {string} block @param {number} depth @returns {VNode} */
function blockNode(block, depth) {
  const list = block.split("\n");
  const fence = FENCE.exec(list[0]);
  if (fence) {
    const isClosed = list.length > 1 && FENCE.exec(list.at(-1) ?? "")?.[1].startsWith(fence[1]);
    const text = list.slice(1, isClosed ? -1 : undefined).join("\n");
    return h("div", { class: "code-block" }, h("pre", { class: "code", tabindex: "0" }, h("code", null, highlight(text, fence[2]))), h("button", { class: "button small copy-code", type: "button", "aria-label": "copy this code", onclick: copyCode }, "copy"));
  }
  const heading = /^ {0,3}(#{1,6})\s+(.*?)\s*#*$/.exec(list[0]);
  // The page has headings of its own, so those of an agent come below.
  if (heading) return h(`h${Math.min(6, heading[1].length + 2)}`, null, inline(heading[2]));
  if (RULE.test(block)) return h("hr", null);
  if (list.every((line) => /^ {0,3}>/.test(line))) {
    return h("blockquote", null, nested(list.map((line) => line.replace(/^ {0,3}> ?/, "")).join("\n"), depth + 1));
  }
  if (ITEM.test(list[0])) return listNode(list, depth);
  if (list.length > 1 && list[0].includes("|") && /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/.test(list[1])) return table(list);
  return h("p", null, inline(block));
}

/** Copies the block that the button belongs to. Where a page may not, the block is selected. @param {{currentTarget: EventTarget | null}} event */
async function copyCode({ currentTarget }) {
  const button = /** @type {HTMLElement} */ (currentTarget);
  const code = /** @type {HTMLElement} */ (button.previousElementSibling);
  const word = /** @type {Text} */ (button.firstChild);
  try {
    await navigator.clipboard.writeText(code.textContent ?? "");
    word.data = "copied";
  } catch {
    getSelection()?.selectAllChildren(code);
    word.data = "selected";
  }
  setTimeout(() => (word.data = "copy"), 1500);
}

/** A list; items that stand further right are lists inside. @param {string[]} lines @param {number} depth @returns {VNode} */
function listNode(lines, depth) {
  const first = /** @type {RegExpExecArray} */ (ITEM.exec(lines[0]));
  const indent = first[1].length;
  const items = /** @type {{text: string[], inner: string[]}[]} */ ([]);
  for (const line of lines) {
    const found = ITEM.exec(line);
    const last = items.at(-1);
    if (found && (found[1].length <= indent || !last)) items.push({ text: [found[3]], inner: [] });
    else if (last && (found || last.inner.length)) last.inner.push(line);
    else last?.text.push(line.trim());
  }
  const isOrdered = /\d/.test(first[2]);
  const start = isOrdered ? Number.parseInt(first[2], 10) : undefined;
  return h(isOrdered ? "ol" : "ul", start && start !== 1 ? { start: String(start) } : null, items.map((item) => itemNode(item, depth + 1)));
}

/** @param {{text: string[], inner: string[]}} item @param {number} depth */
function itemNode({ text, inner }, depth) {
  const joined = text.join("\n");
  const box = /^\[([ xX])\]\s+/.exec(joined);
  const rest = inner.length ? (ITEM.test(inner[0]) && depth <= DEPTH ? listNode(inner, depth) : nested(inner.map((line) => line.trim()).join("\n"), depth + 1)) : null;
  if (!box) return h("li", null, inline(joined), rest);
  const isDone = box[1] !== " ";
  return h("li", { class: "task" }, h("span", { role: "img", "aria-label": isDone ? "done" : "open" }, isDone ? "☑ " : "☐ "), inline(joined.slice(box[0].length)), rest);
}

/** @param {string[]} lines @returns {VNode} */
function table(lines) {
  const cells = (line) => line.trim().replace(/^\||\|$/g, "").split(/(?<!\\)\|/).map((cell) => cell.trim());
  const row = (line, tag) => h("tr", null, cells(line).map((cell) => h(tag, null, inline(cell))));
  return h("div", { class: "scroll", tabindex: "0" }, h("table", null, h("thead", null, row(lines[0], "th")), h("tbody", null, lines.slice(2).map((line) => row(line, "td")))));
}

/**
 * Text with its emphasis, code and links. There is no link in the words of a link.
 * @param {string} text
 * @param {number} [depth]
 * @param {boolean} [isLinked]
 * @returns {Child[]}
 */
export function inline(text, depth = 0, isLinked = false) {
  if (depth > DEPTH) return [text];
  const out = /** @type {Child[]} */ ([]);
  let from = 0;
  for (const found of text.matchAll(INLINE)) {
    if (found.index < from) continue;
    if (found.index > from) out.push(text.slice(from, found.index));
    out.push(spanNode(found, depth + 1, isLinked));
    from = found.index + found[0].length;
  }
  if (from < text.length) out.push(text.slice(from));
  return out;
}

/** @param {RegExpMatchArray} found @param {number} depth @param {boolean} isLinked @returns {Child} */
function spanNode(found, depth, isLinked) {
  const [whole, , code, label, url, bold, bold2, struck, italic, italic2, bare, escaped] = found;
  if (code !== undefined) return h("code", null, code.replace(/^ (.+) $/, "$1"));
  if (label !== undefined) {
    if (isLinked) return whole;
    if (whole.startsWith("!")) return link(url, [`image: ${label || url}`]);
    return link(url, inline(label || url, depth, true));
  }
  if (bold ?? bold2) return h("strong", null, inline(bold ?? bold2, depth, isLinked));
  if (struck !== undefined) return h("s", null, inline(struck, depth, isLinked));
  if (italic ?? italic2) return h("em", null, inline(italic ?? italic2, depth, isLinked));
  if (bare !== undefined) return isLinked ? bare : link(bare, [bare]);
  return escaped ?? whole;
}

/** @param {string} url @param {Child[]} children @returns {Child} */
function link(url, children) {
  if (!/^https?:\/\//i.test(url)) return h("span", { class: "no-link", title: url }, children);
  return h("a", { href: url, title: url, target: "_blank", rel: "noopener noreferrer" }, children);
}
