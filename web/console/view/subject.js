// What a question is about, in full: the command with its end always in sight, every field of the input, every change. What is long
// is folded in the middle with a sign; the card knows that, and asks to look first.

import { asJson, classes, h } from "../lib/dom.js";
import { bytes, count, cut, hides, plural, visible } from "../lib/text.js";
import { markdown } from "../lib/markdown.js";
import { Diff } from "./diff.js";
import { Terminal } from "./tool.js";

/** @typedef {import("../state/asked.js").Block} Block */

/** @param {{call: any, blocks: Block[], isOpen: boolean, asked: any}} props `asked` is the question as the agent wrote it */
export function Subject({ call, blocks, isOpen, asked }) {
  const hasCommand = blocks.some((one) => one.kind === "command");
  const isOdd = blocks.some((one) => hides(one.text));
  return h(
    "div",
    { class: "subject" },
    blocks.length ? blocks.map((one, key) => h("div", { key, class: `block is-${one.kind}` }, shown(one, isOpen, hasCommand))) : h("p", { class: "mono what" }, "the agent does not say what"),
    isOdd ? h("p", { class: "warn" }, "There are characters in it that cannot be seen. They are shown by number.") : null,
    call.terminal ? h(Terminal, { text: call.terminal }) : null,
    h("details", { class: "raw" }, h("summary", null, "as the agent wrote it"), h("pre", { class: "code", tabindex: "0" }, visible(asJson(asked, 1 << 20)))),
  );
}

/** @param {Block} one @param {boolean} isOpen @param {boolean} hasCommand */
function shown(one, isOpen, hasCommand) {
  const { kind, text } = one;
  if (kind === "command") return h("pre", { class: "code command-line", tabindex: "0" }, h("span", { class: "muted" }, "$ "), whole(text, isOpen));
  if (kind === "title") return h("p", { class: hasCommand ? "called" : "mono what" }, hasCommand ? h("span", { class: "muted" }, "It calls this: ") : null, whole(text, isOpen));
  if (kind === "where") return h("p", { class: "mono muted where" }, "in ", whole(text, isOpen));
  if (kind === "diff") return h(Diff, { part: one.part, isOpen, isWhole: true });
  if (kind === "field") return field(one, isOpen);
  if (kind === "places") return h("p", { class: "mono muted places" }, places(text.split("\n"), isOpen));
  return hides(text) || one.isLong ? h("pre", { class: "code" }, whole(text, isOpen)) : h("div", { class: "prose" }, markdown(text));
}

/** A field of the input: short ones in a line, long ones below their name. @param {Block} one @param {boolean} isOpen */
function field({ name, text, isRisky }, isOpen) {
  const isInline = text.length <= 100 && !text.includes("\n");
  return h(
    "div",
    { class: classes("asked-field", isInline && "is-inline", isRisky && "is-risky") },
    h("span", { class: "mono name" }, visible(String(name))),
    isInline ? h("span", { class: "mono value" }, visible(text)) : h("pre", { class: "code", tabindex: "0" }, whole(text, isOpen)),
  );
}

/** @param {string[]} all @param {boolean} isOpen */
function places(all, isOpen) {
  const some = isOpen ? all : all.slice(0, 8);
  return [some.map((place, key) => h("span", { key }, visible(place), " ")), all.length > some.length ? h("span", { class: "cut" }, `⋯ ${plural(all.length - some.length, "further place")} folded`) : null];
}

/** All of a text, or its beginning and its end with a sign between them. @param {string} text @param {boolean} isOpen */
export function whole(text, isOpen) {
  const parts = isOpen ? null : cut(text);
  if (!parts) return visible(text);
  const { head, tail, lines, characters } = parts;
  return [...visible(head), h("span", { class: "cut" }, `⋯ ${lines > 2 ? `${count(lines)} lines, ` : ""}${bytes(characters)} folded ⋯`), ...visible(tail)];
}
