// What agents tell of a session, update by update. Pure. Every kind leaves something; one that is not known is kept as it is.

import { look, table } from "../lib/table.js";
import { pieces } from "../lib/text.js";
import { addCall, addCallContent, addTerminal } from "./calls.js";
import { beginTurn, contentText, drafted, endTurn, findCall, newSession, objects, owned, place, push, remember, replace, text, trimmed } from "./transcript.js";

/** @typedef {import("./transcript.js").Session} Session */
/** @typedef {import("./transcript.js").Item} Item */

export const MAX_TEXT = 12_000;
/** So many updates of one unknown kind are kept in a row. */
const UNKNOWN_KEPT = 20;

/**
 * Adds many updates at once, so that the list is copied once.
 * @param {Session} session
 * @param {{update: any, at: number, size?: number}[]} updates `at` is 0 for what is told again, `size` how long the message was.
 * @returns {Session}
 */
export function addUpdates(session, updates) {
  const draft = drafted(session);
  for (let at = 0; at < updates.length; at++) {
    const parent = parentOf(updates[at].update);
    // What a subagent says in a row is added to its transcript at once.
    let end = at + 1;
    while (parent && end < updates.length && parentOf(updates[end].update) === parent) end++;
    if (parent && addToCall(draft, parent, updates.slice(at, end))) at = end - 1;
    else addSafely(draft, updates[at]);
  }
  return trimmed(draft);
}

/** @param {Session} draft @param {{update: any, at: number, size?: number}} one */
function addSafely(draft, { update, at, size = 0 }) {
  try {
    addUpdate(draft, update ?? {}, at, size);
  } catch (fault) {
    // One that makes no sense is kept as it is; those before and after it are shown.
    push(draft, { kind: "unshown", at, update, size, why: String(fault) });
  }
}

/** Some agents name the tool call that a subagent works for. @param {any} update @returns {string} */
function parentOf(update) {
  const parent = update?._meta?.claudeCode?.parentToolUseId ?? update?._meta?.parentToolUseId;
  return typeof parent === "string" ? parent : "";
}

/** Adds to the transcript of the subagent of a call. @param {Session} draft @param {string} parent @param {any[]} updates @returns {boolean} whether there is such a call */
function addToCall(draft, parent, updates) {
  const key = `${draft.id} call ${parent}`;
  if (!draft.children[key]) {
    const where = findCall(draft, parent);
    if (where < 0 || updates.some(({ update }) => update.toolCallId === parent)) return deeper(draft, parent, updates);
    const item = draft.items[where];
    replace(draft, where, { ...item, calls: item.calls?.map((call) => (call.id === parent ? { ...call, child: key } : call)) });
    addChild(draft, key, {});
  }
  const bare = updates.map((one) => ({ ...one, update: { ...one.update, _meta: { ...one.update._meta, claudeCode: undefined, parentToolUseId: undefined } } }));
  const next = addUpdates(draft.children[key], bare);
  owned(draft, "children")[key] = next;
  return true;
}

/** The call may be one of a subagent. @param {Session} draft @param {string} parent @param {any[]} updates */
function deeper(draft, parent, updates) {
  for (const key of Object.keys(draft.children)) {
    const child = { ...draft.children[key], items: draft.children[key].items.slice() };
    if (!addToCall(child, parent, updates)) continue;
    owned(draft, "children")[key] = trimmed(child);
    return true;
  }
  return false;
}

/** @param {Session} draft @param {string} id @param {Partial<Session>} more */
function addChild(draft, id, more) {
  if (draft.room < 1) return;
  const children = owned(draft, "children");
  const names = Object.keys(children);
  if (names.length >= draft.room) delete children[names[0]];
  children[id] = newSession(id, { role: draft.role, pool: draft.pool, cwd: draft.cwd, max: draft.max / 32, room: Math.floor(draft.room / 4), ...more });
}

/** @type {Record<string, (draft: Session, update: any, at: number, size: number) => void>} */
const KINDS = table({
  user_message_chunk: (draft, update, at, size) => addChunk(draft, "user", update, at, size),
  agent_message_chunk: (draft, update, at, size) => addChunk(draft, "agent", update, at, size),
  agent_thought_chunk: (draft, update, at, size) => addChunk(draft, "thought", update, at, size),
  user_message: (draft, update, at, size) => addMessage(draft, "user", update, at, size),
  agent_message: (draft, update, at, size) => addMessage(draft, "agent", update, at, size),
  agent_thought: (draft, update, at, size) => addMessage(draft, "thought", update, at, size),
  tool_call: addCall,
  tool_call_update: addCall,
  tool_call_content_chunk: addCallContent,
  terminal_update: addTerminal,
  terminal_output_chunk: addTerminal,
  plan: (draft, { entries }, at, size) => addPlan(draft, { planId: undefined, entries: objects(entries) }, at, size),
  plan_update: addPlanVariant,
  plan_removed: removePlan,
  notice: (draft, update, at, size) => push(draft, { kind: "notice", at, size, severity: text(update.severity, "info"), title: text(update.title, "notice"), text: text(update.description) }),
  compaction_update: addCompaction,
  compaction_summary_chunk: addCompaction,
  subagent_update: addSubagent,
  session_message: addSessionMessage,
  session_message_chunk: addSessionMessage,
  state_update: (draft, update, at) => turned(draft, update, at),
  quota_update: addQuota,
  available_commands_update: (draft, update) => {
    draft.commands = objects(update.availableCommands).filter((command) => typeof command.name === "string");
  },
  current_mode_update: changeMode,
  config_option_update: (draft, update) => {
    draft.options = objects(update.configOptions);
  },
  config_options_update: (draft, update) => {
    draft.options = objects(update.configOptions);
  },
  session_info_update: (draft, { title }) => {
    draft.title = title === null ? "" : text(title, draft.title);
  },
  usage_update: (draft, update) => {
    draft.usage = { ...draft.usage, ...update, sessionUpdate: undefined };
  },
});

/** @param {Session} draft @param {any} update @param {number} at @param {number} size */
function addUpdate(draft, update, at, size) {
  const kind = look(KINDS, update.sessionUpdate);
  if (kind) return kind(draft, update, at, size);
  addUnknown(draft, update, at, size);
}

/** Those of one unknown kind that follow each other are one line. @param {Session} draft @param {any} update @param {number} at @param {number} size */
function addUnknown(draft, update, at, size) {
  const name = text(update.sessionUpdate);
  const last = draft.items.at(-1);
  if (last?.kind !== "unknown" || last.name !== name) return push(draft, { kind: "unknown", at, size, name, count: 1, updates: [update] });
  replace(draft, draft.items.length - 1, { ...last, count: last.count + 1, updates: [...last.updates, update].slice(-UNKNOWN_KEPT), size: Math.min((last.size ?? 0) + size, UNKNOWN_KEPT * size) });
}

/** Where the item of this kind and name stands, if it is still there. @param {Session} draft @param {string} kind @param {string} name */
function find(draft, kind, name) {
  const key = draft.places.get(`${kind} ${name}`);
  const where = key === undefined ? -1 : place(draft, key);
  return where >= 0 && draft.items[where].kind === kind && draft.items[where].name === name ? where : -1;
}

/** @param {Session} draft @param {Partial<Item> & {kind: string, name: string}} item */
function pushNamed(draft, item) {
  if (item.name) remember(draft, `${item.kind} ${item.name}`);
  push(draft, item);
}

/** Changes the item of this kind and name, or adds it. @param {Session} draft @param {Partial<Item> & {kind: string, name: string}} item */
function upsert(draft, item) {
  const where = item.name ? find(draft, item.kind, item.name) : -1;
  if (where < 0) return pushNamed(draft, item);
  const before = draft.items[where];
  replace(draft, where, { ...before, ...item, at: before.at, size: Math.max(before.size ?? 0, item.size ?? 0) });
}

/** @param {Session} draft @param {string} kind @param {any} update @param {number} at @param {number} size */
function addChunk(draft, kind, update, at, size) {
  const { content } = update;
  const isText = !content || typeof content !== "object" || content.type === "text";
  const last = draft.items.at(-1);
  const isSame = last?.kind === kind && !(kind === "user" && last.mine) && (!update.messageId || !last.message || last.message === update.messageId);
  if (!isText) return addPart(draft, isSame ? last : undefined, { kind, at, size, content, message: update.messageId });
  const said = contentText(content);
  const length = isSame ? (last?.text?.length ?? 0) : 0;
  // A long text goes on in another item at the end of a line, so that one item is never expensive to show.
  const isFull = length > MAX_TEXT && /\n\n\s*$/.test((last?.text ?? "").slice(-4));
  const fits = isSame && !isFull && length + said.length <= 4 * MAX_TEXT;
  if (last && fits) return replace(draft, draft.items.length - 1, { ...last, text: last.text + said, size: (last.size ?? 0) + said.length });
  for (const [part, words] of pieces(said, 4 * MAX_TEXT).entries()) pushNamed(draft, { kind, name: text(update.messageId), text: words, size: words.length, at, message: update.messageId, goesOn: isSame || part > 0 });
}

/** What is no text: of an agent it stands for itself, else with the words that it came with. @param {Session} draft @param {Item | undefined} last @param {{kind: string, at: number, size: number, content: any, message: any}} one */
function addPart(draft, last, { kind, at, size, content, message }) {
  if (kind === "agent") return push(draft, { kind: "content", at, size, content });
  if (!last) return push(draft, { kind, text: "", parts: [content], at, size, message });
  replace(draft, draft.items.length - 1, { ...last, parts: [...(last.parts ?? []), content], size: (last.size ?? 0) + size });
}

/** A whole message, which replaces what was told of it before. @param {Session} draft @param {string} kind @param {any} update @param {number} at @param {number} size */
function addMessage(draft, kind, update, at, size) {
  const message = text(update.messageId);
  const blocks = objects(update.content);
  const said = blocks.filter((one) => one.type === "text").map(contentText).join("");
  const last = draft.items.at(-1);
  // What this page has said itself is among what was said already.
  if (kind === "user" && last?.mine && !last.message && last.text === said) return replace(draft, draft.items.length - 1, { ...last, message, name: message });
  const rest = pieces(said, 4 * MAX_TEXT);
  upsert(draft, { kind, name: message, text: rest[0], parts: blocks.filter((one) => one.type !== "text"), at, size: Math.max(0, size - said.length + rest[0].length), message });
  for (let part = 1; part < rest.length; part++) upsert(draft, { kind, name: partName(message, part), text: rest[part], at, size: rest[part].length, message, goesOn: true });
  // The message may have been longer before.
  for (let part = rest.length; message && find(draft, kind, partName(message, part)) >= 0; part++) upsert(draft, { kind, name: partName(message, part), text: "", at, size: 0, message, goesOn: true });
}

/** @param {string} message @param {number} part */
const partName = (message, part) => (message ? `${message} part ${part}` : "");

/** A plan is one item that changes, as long as the turn goes on. @param {Session} draft @param {any} plan @param {number} at @param {number} size */
function addPlan(draft, plan, at, size) {
  for (let where = draft.items.length - 1; where >= 0 && where > draft.items.length - 200; where--) {
    const item = draft.items[where];
    if (item.kind === "user" || item.kind === "turn") break;
    if (item.kind !== "plan" || item.planId !== plan.planId) continue;
    return replace(draft, where, { ...item, entries: undefined, text: undefined, uri: undefined, ...plan, isGone: false, size });
  }
  pushNamed(draft, { kind: "plan", ...plan, name: text(plan.planId), at, size });
}

/** @param {Session} draft @param {any} update @param {number} at @param {number} size */
function addPlanVariant(draft, update, at, size) {
  const { type, planId, entries, uri, content } = update.plan ?? {};
  if (type === "items") addPlan(draft, { planId, entries: objects(entries) }, at, size);
  else if (type === "markdown") addPlan(draft, { planId, markdown: text(content) }, at, size);
  else if (type === "file") addPlan(draft, { planId, uri: text(uri) }, at, size);
  else addUnknown(draft, update, at, size);
}

/** @param {Session} draft @param {any} update @param {number} at @param {number} size */
function removePlan(draft, update, at, size) {
  const where = find(draft, "plan", text(update.planId));
  if (where < 0) addUnknown(draft, update, at, size);
  else replace(draft, where, { ...draft.items[where], isGone: true });
}

/** @param {Session} draft @param {any} update @param {number} at @param {number} size */
function addCompaction(draft, update, at, size) {
  const name = text(update.compactionId);
  const before = draft.items[find(draft, "compaction", name)];
  const isChunk = update.sessionUpdate === "compaction_summary_chunk";
  const said = isChunk ? (before?.text ?? "") + contentText(update.content) : Array.isArray(update.summary) ? objects(update.summary).map(contentText).join("\n") : (before?.text ?? "");
  const status = isChunk ? (before?.status ?? "in_progress") : text(update.status, "in_progress");
  upsert(draft, { kind: "compaction", name, at, status, text: said, why: text(update.error, before?.why ?? ""), size: isChunk ? (before?.size ?? 0) + size : size, end: status === "in_progress" ? undefined : at });
}

/** A subagent with a session of its own, of which more is told under its name. @param {Session} draft @param {any} update @param {number} at @param {number} size */
function addSubagent(draft, update, at, size) {
  const child = text(update.sessionId);
  const before = draft.items[find(draft, "subagent", child)];
  if (!draft.children[child] && child && child !== draft.id) addChild(draft, child, { cwd: text(update.cwd, draft.cwd) });
  const known = draft.children[child];
  const state = update.state ? text(update.state.state, "unknown") : (before?.state ?? "");
  upsert(draft, { kind: "subagent", name: child, child, at, size, title: text(update.title, before?.title ?? ""), text: text(update.description, before?.text ?? ""), state });
  if (!known || !update.state) return;
  const next = { ...known, title: text(update.title, known.title), items: known.items.slice() };
  turned(next, update.state, at);
  owned(draft, "children")[child] = next;
}

/** What sessions say to each other. @param {Session} draft @param {any} update @param {number} at @param {number} size */
function addSessionMessage(draft, update, at, size) {
  const name = text(update.messageId);
  const before = draft.items[find(draft, "message", name)];
  const isChunk = update.sessionUpdate === "session_message_chunk";
  const said = isChunk ? (before?.text ?? "") + contentText(update.content) : Array.isArray(update.content) ? objects(update.content).map(contentText).join("\n") : (before?.text ?? "");
  upsert(draft, { kind: "message", name, at, text: said, from: text(update.senderSessionId, before?.from ?? ""), to: text(update.recipientSessionId, before?.to ?? ""), size: isChunk ? (before?.size ?? 0) + size : size });
}

/** The agent tells itself when a turn begins and ends. @param {Session} draft @param {any} update @param {number} at */
function turned(draft, update, at) {
  if (Array.isArray(update.background)) draft.background = objects(update.background);
  if (update.state === "running" || update.state === "requires_action") {
    if (draft.turn !== "running") Object.assign(draft, beginTurn(draft, at, draft.turnBy));
    if (update.state === "requires_action") push(draft, { kind: "note", at, text: "The agent needs somebody to act." });
  } else if (update.state === "idle") {
    if (update.error) push(draft, { kind: "error", at, error: update.error });
    Object.assign(draft, endTurn(draft, at, text(update.stopReason, "end_turn"), update.usage));
  } else {
    addUnknown(draft, { ...update, sessionUpdate: "state_update" }, at, 0);
  }
}

/** What is left of an account, the last word only. @param {Session} draft @param {any} update @param {number} at @param {number} size */
function addQuota(draft, update, at, size) {
  upsert(draft, { kind: "quota", name: "quota", at, size, update });
}

/** @param {Session} draft @param {any} update @param {number} at */
function changeMode(draft, { currentModeId }, at) {
  const isOther = draft.modes?.currentModeId !== currentModeId;
  draft.modes = { ...draft.modes, currentModeId };
  const name = objects(draft.modes.availableModes).find((mode) => mode.id === currentModeId)?.name ?? currentModeId;
  if (isOther) push(draft, { kind: "note", at, text: `The mode is now: ${typeof name === "string" ? name : "another"}` });
}
