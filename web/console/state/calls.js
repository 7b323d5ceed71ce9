// Tool calls and terminals of a session. Pure.

import { put, table } from "../lib/table.js";
import { textOf } from "../lib/media.js";
import { findCall, objects, owned, place, push, remember, replace, text } from "./transcript.js";

/** @typedef {import("./transcript.js").Session} Session */
/** @typedef {import("./transcript.js").ToolCall} ToolCall */

export const MAX_TERMINAL = 128 << 10;
/** So many terminals of a session are kept. */
const TERMINALS = 64;
/** Calls of these kinds that follow each other are one line. */
const RUNS = new Set(["read", "search", "fetch"]);

/** @param {Session} draft @param {any} update @param {number} at @param {number} size */
export function addCall(draft, update, at, size) {
  const id = String(update.toolCallId);
  const where = findCall(draft, id);
  if (where >= 0) return changeCall(draft, where, id, (call) => changedCall(call, update, at), size);
  const call = changedCall(newCall(id, at), update, at);
  const last = draft.items.at(-1);
  if (last?.kind === "tools" && RUNS.has(call.kind) && last.calls?.[0].kind === call.kind && last.calls.length < 100) {
    remember(draft, `call ${id}`, last.key);
    replace(draft, draft.items.length - 1, { ...last, calls: [...last.calls, call], size: (last.size ?? 0) + size });
  } else {
    remember(draft, `call ${id}`);
    push(draft, { kind: "tools", calls: [call], at, size });
  }
  noteContent(draft, call);
}

/** @param {Session} draft @param {ToolCall} call */
function noteContent(draft, call) {
  if (call.content.some((part) => part.type === "diff")) draft.hasDiffs = true;
  showTerminals(draft, call);
}

/** @param {string} id @param {number} at @returns {ToolCall} */
const newCall = (id, at) => ({ id, title: "", kind: "other", status: "pending", content: [], locations: [], input: undefined, output: undefined, terminal: "", at, end: 0 });

/** @param {Session} draft @param {number} where @param {string} id @param {(call: ToolCall) => ToolCall} by @param {number} size */
function changeCall(draft, where, id, by, size) {
  const item = draft.items[where];
  const calls = (item.calls ?? []).map((call) => (call.id === id ? by(call) : call));
  // Most agents tell all of a call again when a part of it changes.
  replace(draft, where, { ...item, calls, size: Math.max(item.size ?? 0, size) });
  const call = calls.find((one) => one.id === id);
  if (call) noteContent(draft, call);
}

/** One more piece of what a call has to show. @param {Session} draft @param {any} update @param {number} at @param {number} size */
export function addCallContent(draft, update, at, size) {
  const id = String(update.toolCallId);
  const more = objects([update.content]);
  const where = findCall(draft, id);
  if (where < 0) {
    remember(draft, `call ${id}`);
    return push(draft, { kind: "tools", calls: [{ ...newCall(id, at), content: more }], at, size });
  }
  const total = (draft.items[where].size ?? 0) + size;
  changeCall(draft, where, id, (call) => ({ ...call, content: [...call.content, ...more] }), total);
}

/** @param {ToolCall} call @param {any} update @param {number} at @returns {ToolCall} */
export function changedCall(call, update, at) {
  const status = text(update.status, call.status);
  const isOver = status === "completed" || status === "failed" || status === "cancelled";
  const terminal = update._meta?.terminal_output?.data;
  return {
    ...call,
    name: text(update.name, call.name ?? ""),
    title: text(update.title, call.title),
    kind: text(update.kind, call.kind),
    status,
    content: objects(update.content ?? call.content),
    locations: objects(update.locations ?? call.locations).filter((one) => typeof one.path === "string"),
    input: update.rawInput ?? call.input,
    output: update.rawOutput ?? call.output,
    terminal: typeof terminal === "string" ? (call.terminal + terminal).slice(-MAX_TERMINAL) : call.terminal,
    end: isOver && !call.end ? at : call.end,
  };
}

/** A terminal of the agent's: what runs in it, and what it has put out. @param {Session} draft @param {any} update @param {number} at @param {number} size */
export function addTerminal(draft, update, at, size) {
  const id = text(update.terminalId);
  const before = draft.terminals[id];
  const { rest = "", output = "" } = /** @type {any} */ (before ?? {});
  const isChunk = update.sessionUpdate === "terminal_output_chunk";
  const said = isChunk ? textOf(rest, update.data) : update.output === null ? { text: "", rest: "" } : update.output ? textOf("", update.output.data) : null;
  const next = {
    key: before?.key ?? draft.next,
    command: update.command === null ? "" : text(update.command, before?.command ?? ""),
    cwd: update.cwd === null ? "" : text(update.cwd, before?.cwd ?? ""),
    output: (isChunk ? output + (said?.text ?? "") : (said?.text ?? output)).slice(-MAX_TERMINAL),
    rest: said?.rest ?? rest,
    exit: update.exitStatus ?? before?.exit ?? null,
  };
  if (!before) {
    push(draft, { kind: "terminal", at, size: Math.min(size, MAX_TERMINAL), id });
    const names = Object.keys(draft.terminals);
    if (names.length >= TERMINALS) delete owned(draft, "terminals")[names[0]];
  }
  owned(draft, "terminals")[id] = next;
  showTerminal(draft, id, next);
}

/** Where a terminal stands: among what was said, or in a call. @param {Session} draft @param {string} id @param {any} terminal */
function showTerminal(draft, id, terminal) {
  const where = place(draft, terminal.key);
  if (where < 0) return;
  const item = draft.items[where];
  const shows = (call) => call.content.some((part) => part.type === "terminal" && part.terminalId === id);
  if (item.kind === "terminal") replace(draft, where, { ...item, terminal });
  else if (item.calls?.some(shows)) replace(draft, where, { ...item, calls: item.calls.map((call) => (shows(call) ? { ...call, terminals: put(call.terminals ?? table(), id, terminal) } : call)) });
}

/** A terminal that a call names stands in that call from now on. @param {Session} draft @param {ToolCall} call */
function showTerminals(draft, call) {
  for (const { type, terminalId: id } of call.content) {
    const terminal = type === "terminal" && typeof id === "string" ? draft.terminals[id] : undefined;
    const where = findCall(draft, call.id);
    if (!terminal || where < 0 || call.terminals?.[id] === terminal) continue;
    const old = place(draft, terminal.key);
    if (old >= 0 && draft.items[old].kind === "terminal") replace(draft, old, { ...draft.items[old], isElsewhere: true });
    const moved = { ...terminal, key: draft.items[where].key };
    owned(draft, "terminals")[id] = moved;
    showTerminal(draft, id, moved);
  }
}
