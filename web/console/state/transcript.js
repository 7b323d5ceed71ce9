// One session as this page knows it: who is there, what was said, what waits. Pure: every function returns a new session.

import { look, table } from "../lib/table.js";

/** @typedef {{id: string, title: string, kind: string, status: string, content: any[], locations: any[], input: any, output: any, terminal: string, at: number, end: number}} ToolCall */
/** @typedef {{key: number, kind: string, at: number, end?: number, text?: string, calls?: ToolCall[], open?: boolean, [more: string]: any}} Item */
/** @typedef {{id: string, label: string, role: string, owner: string | null, guests: {client: string, role: string}[], turn: string, turnBy: string | null, turnAt: number, truncated: boolean, loading: boolean, items: Item[], next: number, plan: any[], modes: any, models: any, options: any[], commands: any[], title: string, usage: any, history?: string, triedForm?: boolean, cwd?: string, pool?: string}} Session */

export const MAX_ITEMS = 20_000;
export const MAX_TEXT = 12_000;
export const MAX_TERMINAL = 128 << 10;
/** Calls of these kinds that follow each other are one line. */
const RUNS = new Set(["read", "search", "fetch"]);

/** @param {string} id @param {Partial<Session>} [more] @returns {Session} */
export const newSession = (id, more) => ({
  id, label: "", role: "control", owner: null, guests: [], turn: "idle", turnBy: null, turnAt: 0, truncated: false, loading: false,
  items: [], next: 0, plan: [], modes: null, models: null, options: [], commands: [], title: "", usage: null, ...more,
});

/**
 * Adds many updates at once, so that the list is copied once.
 * @param {Session} session
 * @param {{update: any, at: number}[]} updates `at` is 0 for what is told again.
 */
export function addUpdates(session, updates) {
  const draft = { ...session, items: session.items.slice() };
  for (const { update, at } of updates) {
    try {
      addUpdate(draft, update ?? {}, at);
    } catch (fault) {
      // One that makes no sense is kept as it is; those before and after it are shown.
      push(draft, { kind: "unshown", at, update, why: String(fault) });
    }
  }
  return trimmed(draft);
}

/** @param {Session} session @param {Partial<Item> & {kind: string}} item */
export function addItem(session, item) {
  const draft = { ...session, items: session.items.slice() };
  push(draft, item);
  return trimmed(draft);
}

/** @param {Session} session @param {number} key @param {Partial<Item>} change */
export function changeItem(session, key, change) {
  const at = place(session, key);
  if (at < 0) return session;
  const items = session.items.slice();
  items[at] = { ...items[at], ...change };
  return { ...session, items };
}

/** Items are numbered in their order, and the first ones may be gone. @param {Session} session @param {number} key */
function place(session, key) {
  const at = session.items.length ? key - session.items[0].key : -1;
  return at >= 0 && at < session.items.length ? at : -1;
}

/** @param {Session} draft @param {Partial<Item> & {kind: string}} item */
function push(draft, item) {
  closeLast(draft, item.end ?? item.at ?? 0);
  draft.items.push({ at: 0, ...item, key: draft.next });
  draft.next += 1;
}

/** What was said before something else begins has ended. @param {Session} draft @param {number} at */
function closeLast(draft, at) {
  const last = draft.items.at(-1);
  if (last && last.text !== undefined && !last.end && at) draft.items[draft.items.length - 1] = { ...last, end: at };
}

/** @param {Session} draft */
function trimmed(draft) {
  if (draft.items.length > MAX_ITEMS) {
    draft.items = draft.items.slice(draft.items.length - MAX_ITEMS + 1000);
    draft.truncated = true;
  }
  return draft;
}

const SPEAKERS = table({ user_message_chunk: "user", agent_message_chunk: "agent", agent_thought_chunk: "thought" });

/** @param {Session} draft @param {any} update @param {number} at */
function addUpdate(draft, update, at) {
  const kind = update.sessionUpdate;
  const speaker = look(SPEAKERS, kind);
  if (speaker) return addChunk(draft, speaker, update, at);
  if (kind === "tool_call" || kind === "tool_call_update") return addCall(draft, update, at);
  if (kind === "plan") return addPlan(draft, update, at);
  if (kind === "available_commands_update") draft.commands = objects(update.availableCommands).filter((command) => typeof command.name === "string");
  else if (kind === "current_mode_update") draft.modes = { ...draft.modes, currentModeId: update.currentModeId };
  else if (kind === "config_option_update" || kind === "config_options_update") draft.options = objects(update.configOptions);
  else if (kind === "session_info_update") draft.title = typeof update.title === "string" ? update.title : draft.title;
  else if (kind === "usage_update") draft.usage = { ...draft.usage, ...update, sessionUpdate: undefined };
}

/** @param {Session} draft @param {string} kind @param {any} update @param {number} at */
function addChunk(draft, kind, update, at) {
  const said = contentText(update.content);
  const last = draft.items.at(-1);
  const isSame = last?.kind === kind && (!update.messageId || !last.message || last.message === update.messageId);
  // A long text goes on in another item at the end of a line, so that one item is never expensive to show.
  const isFull = isSame && (last?.text?.length ?? 0) > MAX_TEXT && /\n\n\s*$/.test((last?.text ?? "").slice(-4));
  const isTooLong = isSame && (last?.text?.length ?? 0) > 4 * MAX_TEXT;
  if (last && isSame && !isFull && !isTooLong && !(kind === "user" && last.mine)) {
    draft.items[draft.items.length - 1] = { ...last, text: last.text + said };
    return;
  }
  push(draft, { kind, text: said, at, message: update.messageId, goesOn: isFull || isTooLong });
}

/** What can be shown of a block of content. @param {any} content @returns {string} */
export function contentText(content) {
  if (!content || typeof content !== "object") return typeof content === "string" ? content : "";
  if (content.type === "text") return String(content.text ?? "");
  if (content.type === "resource_link") return `[${content.name ?? content.uri}](${content.uri})`;
  if (content.type === "resource") return String(content.resource?.text ?? `[${content.resource?.uri ?? "resource"}]`);
  return `[${content.type ?? "content"}]`;
}

/** @param {Session} draft @param {any} update @param {number} at */
function addCall(draft, update, at) {
  const id = String(update.toolCallId);
  const where = findCall(draft, id, update.sessionUpdate === "tool_call" ? 50 : 2000);
  if (where >= 0) {
    const item = draft.items[where];
    const calls = (item.calls ?? []).map((call) => (call.id === id ? changedCall(call, update, at) : call));
    draft.items[where] = { ...item, calls };
    return;
  }
  const call = changedCall(
    { id, title: "", kind: "other", status: "pending", content: [], locations: [], input: undefined, output: undefined, terminal: "", at, end: 0 },
    update,
    at,
  );
  const last = draft.items.at(-1);
  if (last?.kind === "tools" && RUNS.has(call.kind) && last.calls?.[0].kind === call.kind && last.calls.length < 100) {
    draft.items[draft.items.length - 1] = { ...last, calls: [...last.calls, call] };
    return;
  }
  push(draft, { kind: "tools", calls: [call], at });
}

/** Where a call is, not further back than this. @param {Session} session @param {string} id @param {number} depth */
export function findCall(session, id, depth) {
  const last = session.items.length - 1;
  for (let at = last; at >= 0 && at > last - depth; at--) {
    if (session.items[at].calls?.some((call) => call.id === id)) return at;
  }
  return -1;
}

/** @param {ToolCall} call @param {any} update @param {number} at @returns {ToolCall} */
export function changedCall(call, update, at) {
  const status = text(update.status, call.status);
  const isOver = status === "completed" || status === "failed" || status === "cancelled";
  const terminal = update._meta?.terminal_output?.data;
  return {
    ...call,
    title: text(update.title, call.title),
    kind: text(update.kind, call.kind),
    status,
    content: objects(update.content ?? call.content),
    locations: objects(update.locations ?? call.locations).filter((place) => typeof place.path === "string"),
    input: update.rawInput ?? call.input,
    output: update.rawOutput ?? call.output,
    terminal: typeof terminal === "string" ? (call.terminal + terminal).slice(-MAX_TERMINAL) : call.terminal,
    end: isOver && !call.end ? at : call.end,
  };
}

/** A plan is one item that changes, as long as the turn goes on. @param {Session} draft @param {any} update @param {number} at */
function addPlan(draft, update, at) {
  draft.plan = objects(update.entries);
  for (let where = draft.items.length - 1; where >= 0 && where > draft.items.length - 200; where--) {
    const item = draft.items[where];
    if (item.kind === "user" || item.kind === "turn") break;
    if (item.kind === "plan") {
      draft.items[where] = { ...item, entries: draft.plan };
      return;
    }
  }
  push(draft, { kind: "plan", entries: draft.plan, at });
}

/** Agents may send anything; what is shown has the shape that it should. @param {any} value @returns {any[]} */
export const objects = (value) => (Array.isArray(value) ? value.filter((one) => one !== null && typeof one === "object") : []);

/** @param {any} value @param {string} otherwise @returns {string} */
const text = (value, otherwise) => (typeof value === "string" ? value : otherwise);

/** The turn is over. @param {Session} session @param {number} at @param {string | undefined} reason @param {any} [usage] */
export function endTurn(session, at, reason, usage) {
  const more = usage ? { usage: { ...session.usage, ...usage } } : {};
  if (session.turn !== "running") return { ...session, ...more };
  const draft = { ...session, ...more, turn: "idle", turnBy: null, items: session.items.slice() };
  const took = at && session.turnAt ? at - session.turnAt : 0;
  push(draft, { kind: "turn", at: session.turnAt, end: at, reason: reason ?? "", took });
  return draft;
}

/** A turn has begun; the prompt that was just told is by the same client. @param {Session} session @param {number} at @param {string | null} by @returns {Session} */
export function beginTurn(session, at, by) {
  const next = { ...session, turn: "running", turnBy: by, turnAt: session.turn === "running" ? session.turnAt : at };
  const last = session.items.at(-1);
  return by && last?.kind === "user" && !last.mine && !last.by ? changeItem(next, last.key, { by }) : next;
}

/** What a session is called: its title, else how its first prompt begins. @param {Session} session */
export const nameOf = (session) => session.title || (session.items.find((item) => item.kind === "user")?.text ?? "").trim().split("\n")[0].slice(0, 80);

/** What was said so far as Markdown. @param {Session} session @param {(call: ToolCall) => string} describe */
export function toMarkdown(session, describe) {
  const out = [`# ${session.title || session.label}`];
  for (const item of session.items) {
    if (item.kind === "user") out.push(`## ${item.by ?? "User"}\n\n${item.text}`);
    else if (item.kind === "agent") out.push(item.text ?? "");
    else if (item.kind === "thought") out.push((item.text ?? "").split("\n").map((line) => `> ${line}`).join("\n"));
    else if (item.kind === "tools") out.push((item.calls ?? []).map((call) => `- ${describe(call)}`).join("\n"));
    else if (item.kind === "plan") out.push(item.entries.map((entry) => `- [${entry.status === "completed" ? "x" : " "}] ${entry.content}`).join("\n"));
    else if (item.kind === "error") out.push(`**Error:** ${item.text}`);
  }
  return out.join("\n\n") + "\n";
}
