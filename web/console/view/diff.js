// A diff: unified, changed words marked, long ones folded.

import { h } from "../lib/dom.js";
import { diff } from "../lib/diff.js";
import { count, visible } from "../lib/text.js";

const SHOWN = 400;

/** @param {{path: string, before: string | null | undefined, after: string | null | undefined}} props */
export function Diff({ path, before, after }) {
  const { lines, added, removed } = diff(before, after);
  const shown = lines.slice(0, SHOWN);
  return h(
    "figure",
    { class: "diff" },
    h(
      "figcaption",
      null,
      h("span", { class: "mono path" }, visible(path)),
      before === null || before === undefined ? h("span", { class: "muted" }, "new file") : null,
      h("span", { class: "num added" }, `+${count(added)}`),
      h("span", { class: "num removed" }, `−${count(removed)}`),
    ),
    h("div", { class: "diff-lines", tabindex: "0", role: "group", "aria-label": `changes of ${path}` }, shown.map(line)),
    lines.length > SHOWN ? h("p", { class: "muted diff-more" }, `${lines.length - SHOWN} more lines`) : null,
  );
}

/** @param {import("../lib/diff.js").Line} one */
function line(one) {
  if (one.kind === "gap") return h("div", { class: "dl gap" }, h("span", { class: "muted" }, `⋯ ${one.count} lines as before`));
  const sign = { same: " ", add: "+", del: "−" }[one.kind];
  const text = one.parts ? one.parts.map((part) => h(part.changed ? "mark" : "span", null, part.changed ? spaced(part.text) : visible(part.text))) : one.kind === "same" ? visible(one.text) : trailing(one.text);
  return h("div", { class: `dl ${one.kind}` }, h("span", { class: "dn num", "aria-hidden": "true" }, one.new ?? one.old), h("span", { class: "ds" }, sign), h("span", { class: "dt" }, text));
}

/** In a changed part that is only space, the space is shown. @param {string} text */
const spaced = (text) => (/^\s+$/.test(text) ? text.replace(/ /g, "·").replace(/\t/g, "→\t") : visible(text));

/** Space at the end of a line that changed is shown. @param {string} text */
function trailing(text) {
  const end = /[ \t\r]+$/.exec(text)?.[0] ?? "";
  return [...visible(text.slice(0, text.length - end.length)), end ? h("span", { class: "trailing" }, end.replace(/ /g, "·").replace(/\t/g, "→").replace(/\r/g, "␍")) : null];
}

/** How many lines the diffs of a tool call add and remove. @param {any[]} content */
export function changes(content) {
  let [added, removed] = [0, 0];
  for (const part of content) {
    if (part?.type !== "diff") continue;
    const found = diff(part.oldText, part.newText);
    added += found.added;
    removed += found.removed;
  }
  return { added, removed };
}
