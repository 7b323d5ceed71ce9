// What a session has changed, file by file, put together from its tool calls. Pure.

import { diff } from "../lib/diff.js";
import { readPatch } from "../lib/patch.js";
import { look } from "../lib/table.js";
import { verdictKey } from "./questions.js";
import { objects, text } from "./transcript.js";

/** @typedef {import("../lib/diff.js").Line} Line */
/** @typedef {import("./transcript.js").Session} Session */
/** A part of a file's change that is shown by itself: the whole of it, where its steps fit onto each other. @typedef {{old: string | null, now: string, lines?: Line[]}} Step */
/** @typedef {{path: string, operation: string, steps: Step[], parts: {lines: Line[], added: number, removed: number}[], added: number, removed: number, times: number}} Changed */

/**
 * The changes that one part of a tool call tells: a text before and after, or a patch of many files.
 * @param {any} part
 * @returns {{path: string, operation: string, step: Step | null}[]}
 */
export function changesIn(part) {
  if (part?.type !== "diff") return [];
  if (typeof part.newText === "string") {
    const isNew = part.oldText === null || part.oldText === undefined;
    return [{ path: text(part.path, "?"), operation: isNew ? "add" : "modify", step: { old: isNew ? null : text(part.oldText), now: part.newText } }];
  }
  const files = typeof part.patch?.text === "string" ? readPatch(part.patch.text) : [];
  const told = objects(part.changes).filter((one) => typeof one.path === "string");
  const isSame = (path, file) => path === file.path || path.endsWith(`/${file.path}`);
  const found = files.map((file) => ({ path: told.find((one) => isSame(one.path, file))?.path ?? file.path, operation: file.operation, step: { old: null, now: "", lines: file.lines } }));
  const rest = told.filter((one) => !files.some((file) => isSame(one.path, file)));
  return [...found, ...rest.map((one) => ({ path: one.path, operation: text(one.operation, "modify"), step: null }))];
}

/** Puts a step onto those before it: one that begins where the last one ended, or that changes a place in it, is the same change. @param {Step[]} steps @param {Step} next */
export function joined(steps, next) {
  const last = steps.at(-1);
  if (!last || last.lines || next.lines) return [...steps, next];
  if (next.old === last.now) return [...steps.slice(0, -1), { old: last.old, now: next.now }];
  const at = next.old ? last.now.indexOf(next.old) : -1;
  if (at >= 0 && next.old && last.now.indexOf(next.old, at + 1) < 0) return [...steps.slice(0, -1), { old: last.old, now: last.now.slice(0, at) + next.now + last.now.slice(at + next.old.length) }];
  // The same text again, for example told once more with the end of the call.
  if (next.now === last.now && next.old === last.old) return steps;
  return [...steps, next];
}

/** Calls of a session and of its subagents, in their order. @param {Session} session @param {number} [depth] @returns {{call: import("./transcript.js").ToolCall, session: string}[]} */
export function callsOf(session, depth = 0) {
  const out = [];
  for (const item of session.items) {
    for (const call of item.calls ?? []) {
      out.push({ call, session: session.id });
      if (call.child && session.children[call.child] && depth < 6) out.push(...callsOf(session.children[call.child], depth + 1).map((one) => ({ ...one, session: session.id })));
    }
    if (item.kind === "subagent" && session.children[item.child] && depth < 6) out.push(...callsOf(session.children[item.child], depth + 1));
  }
  return out;
}

/** @type {WeakMap<any, {verdicts: any, files: Changed[]}>} */
const known = new WeakMap();

/**
 * All files that were changed. What failed or was denied has changed nothing.
 * @param {Session} session
 * @param {Record<string, any>} verdicts
 * @returns {Changed[]}
 */
export function changesOf(session, verdicts) {
  const before = known.get(session.items);
  if (before && before.verdicts === verdicts) return before.files;
  const files = /** @type {Map<string, {path: string, operation: string, steps: Step[], times: number}>} */ (new Map());
  for (const { call, session: id } of callsOf(session)) {
    if (call.status === "failed" || call.status === "cancelled" || look(verdicts, verdictKey(id, call.id))?.verdict === "denied") continue;
    for (const { path, operation, step } of call.content.flatMap(changesIn)) {
      const file = files.get(path) ?? { path, operation, steps: [], times: 0 };
      files.set(path, { ...file, operation: file.times && operation !== "delete" ? file.operation : operation, steps: step ? joined(file.steps, step) : file.steps, times: file.times + 1 });
    }
  }
  const found = [...files.values()].map(finished).filter((file) => file.parts.length === 0 || file.added + file.removed > 0 || file.operation !== "modify");
  known.set(session.items, { verdicts, files: found });
  return found;
}

/** Differences that were worked out: a file is looked at again and again while its session goes on. @type {Map<string, {old: string | null, now: string, found: ReturnType<typeof diff>}>} */
const worked = new Map();

/** @param {string} name @param {Step} step */
function differences(name, { old, now, lines }) {
  if (lines) return { lines, added: lines.filter((one) => one.kind === "add").length, removed: lines.filter((one) => one.kind === "del").length };
  const before = worked.get(name);
  if (before && before.old === old && before.now === now) return before.found;
  if (worked.size > 500) worked.clear();
  const found = diff(old, now);
  worked.set(name, { old, now, found });
  return found;
}

/** @param {{path: string, operation: string, steps: Step[], times: number}} file @returns {Changed} */
function finished(file) {
  const parts = file.steps.map((step, at) => differences(`${at} ${file.path}`, step));
  const sum = (what) => parts.reduce((all, part) => all + part[what], 0);
  return { ...file, parts, added: sum("added"), removed: sum("removed") };
}

/** @typedef {{key: string, path: string, line: number, sign: string, quote: string, text: string}} Comment */

/** The comments as one prompt that quotes what they are about. @param {Comment[]} comments */
export function reviewText(comments) {
  const fence = (quote) => `> ${quote}`;
  const byFile = [...comments].sort((one, other) => (one.path < other.path ? -1 : one.path > other.path ? 1 : one.line - other.line));
  const said = byFile.map((one) => `${one.path}:${one.line}\n${fence(`${one.sign} ${one.quote}`.trimEnd())}\n\n${one.text.trim()}`);
  return `Comments on your changes:\n\n${said.join("\n\n")}`;
}

/** Whether the line that a comment is about is still there. @param {Comment} comment @param {Changed[]} files */
export function isStale(comment, files) {
  const file = files.find((one) => one.path === comment.path);
  return !file?.parts.some((part) => part.lines.some((line) => (line.new ?? line.old) === comment.line && line.text === comment.quote));
}
