// A diff: unified, changed words marked, long ones folded.

import { asJson, h } from "../lib/dom.js";
import { look, table } from "../lib/table.js";
import { count, plain, plural, visible } from "../lib/text.js";
import { diffOf } from "../state/asked.js";
import { changesIn } from "../state/changes.js";

const SHOWN = 400;
/** In a question: so many lines at the beginning and at the end while it is folded, and so many as nodes when it is not. */
const [HEAD, TAIL, NODES] = [40, 10, 2000];
const SIGNS = { same: " ", add: "+", del: "−", gap: " " };

/** @param {{part: any, isOpen?: boolean, isWhole?: boolean}} props `isWhole`: all of it can be seen, once it is open */
export function Diff({ part, isOpen, isWhole }) {
  const { path, oldText, newText } = part;
  if (typeof newText !== "string") return h(Patch, { part });
  const { lines, added, removed } = diffOf(part);
  const name = String(path ?? "");
  return h(
    "figure",
    { class: "diff" },
    h(
      "figcaption",
      null,
      h("span", { class: "mono path" }, visible(name)),
      oldText === null || oldText === undefined ? h("span", { class: "muted" }, "new file") : null,
      h("span", { class: "num added" }, `+${count(added)}`),
      h("span", { class: "num removed" }, `−${count(removed)}`),
    ),
    h("div", { class: "diff-lines", tabindex: "0", role: "group", "aria-label": `changes of ${name}` }, isWhole ? wholeLines(lines, !!isOpen) : lines.slice(0, SHOWN).map(line)),
    !isWhole && lines.length > SHOWN ? h("p", { class: "muted diff-more" }, `${lines.length - SHOWN} more lines`) : null,
  );
}

const LETTERS = table({ add: "new file", delete: "deleted", move: "moved", copy: "copied" });

/** What a change did to a file as a whole. @param {string} operation */
export const operationWords = (operation) => look(LETTERS, operation) ?? (operation === "modify" ? "" : operation);

/** Changes of several files, as a patch or by their names alone. @param {{part: any}} props */
function Patch({ part }) {
  const files = changesIn(part);
  if (files.length === 0) return h("pre", { class: "code", tabindex: "0" }, visible(asJson(part, 2000)));
  return h("div", { class: "parts" }, files.map(({ path, operation, step }, key) => h("figure", { key, class: "diff" }, h("figcaption", null, h("span", { class: "mono path" }, visible(path)), h("span", { class: "muted" }, visible(operationWords(operation)))), step?.lines?.length ? h("div", { class: "diff-lines", tabindex: "0", role: "group", "aria-label": `changes of ${plain(path)}` }, step.lines.slice(0, SHOWN).map(line)) : null, (step?.lines?.length ?? 0) > SHOWN ? h("p", { class: "muted diff-more" }, "more lines follow") : null)));
}

/** @param {import("../lib/diff.js").Line[]} lines @param {boolean} isOpen */
function wholeLines(lines, isOpen) {
  if (!isOpen && lines.length > HEAD + TAIL + 10) {
    return [lines.slice(0, HEAD).map(line), h("div", { class: "dl gap" }, h("span", { class: "cut" }, `⋯ ${plural(lines.length - HEAD - TAIL, "line")} folded ⋯`)), lines.slice(-TAIL).map(line)];
  }
  const rest = lines.slice(NODES);
  return [lines.slice(0, NODES).map(line), rest.length ? h("pre", { class: "code" }, visible(rest.map((one) => `${SIGNS[one.kind]} ${one.kind === "gap" ? `⋯ ${one.count} lines as before` : one.text}`).join("\n"))) : null];
}

/** @param {import("../lib/diff.js").Line} one */
export function line(one) {
  if (one.kind === "gap") return h("div", { class: "dl gap" }, h("span", { class: "muted" }, `⋯ ${one.count} lines as before`));
  const text = one.parts ? one.parts.map((part) => h(part.changed ? "mark" : "span", null, part.changed ? spaced(part.text) : visible(part.text))) : one.kind === "same" ? visible(one.text) : trailing(one.text);
  return h("div", { class: `dl ${one.kind}` }, h("span", { class: "dn num", "aria-hidden": "true" }, one.new ?? one.old), h("span", { class: "ds" }, SIGNS[one.kind]), h("span", { class: "dt" }, text));
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
    if (typeof part.newText !== "string") {
      for (const { step } of changesIn(part)) for (const one of step?.lines ?? []) [added, removed] = [added + Number(one.kind === "add"), removed + Number(one.kind === "del")];
      continue;
    }
    const found = diffOf(part);
    added += found.added;
    removed += found.removed;
  }
  return { added, removed };
}
