// One session as this page knows it: who is there, what was said, what waits. Pure: every function returns a new session.

import { put, table } from "../lib/table.js";

/** @typedef {{command: string, cwd: string, output: string, exit: any}} Terminal */
/** @typedef {{id: string, name?: string, title: string, kind: string, status: string, content: any[], locations: any[], input: any, output: any, terminal: string, terminals?: Record<string, Terminal>, child?: string, at: number, end: number}} ToolCall */
/** @typedef {{key: number, kind: string, at: number, end?: number, text?: string, parts?: any[], calls?: ToolCall[], open?: boolean, size?: number, [more: string]: any}} Item */
/**
 * `children` are the transcripts of subagents, each a session of its own; `size` is about how many characters are kept, `max` how many at most, and `room` how many subagents. `places` remembers where
 * things stand that have a name; it is only a help to find them, and each is looked at before it is believed.
 * @typedef {{id: string, label: string, role: string, owner: string | null, guests: {client: string, role: string}[], turn: string, turnBy: string | null, turnAt: number, truncated: boolean, loading: boolean, items: Item[], next: number, size: number, max: number, room: number, children: Record<string, Session>, terminals: Record<string, Terminal & {key: number}>, places: Map<string, number>, background: any[], modes: any, models: any, options: any[], commands: any[], title: string, usage: any, history?: string, triedForm?: boolean, cwd?: string, pool?: string, stopAt?: number, isStuck?: boolean, hasDiffs?: boolean}} Session
 */

export const MAX_ITEMS = 20_000;
/** What is kept of one session, in characters: about what a tab can hold of a few of them. */
export const MAX_SIZE = 48e6;

/** @param {string} id @param {Partial<Session>} [more] @returns {Session} */
export const newSession = (id, more) => ({
  id, label: "", role: "control", owner: null, guests: [], turn: "idle", turnBy: null, turnAt: 0, truncated: false, loading: false,
  items: [], next: 0, size: 0, max: MAX_SIZE, room: 32, children: table(), terminals: table(), places: new Map(), background: [], modes: null, models: null, options: [], commands: [], title: "", usage: null, ...more,
});

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
export function place(session, key) {
  const at = session.items.length ? key - session.items[0].key : -1;
  return at >= 0 && at < session.items.length ? at : -1;
}

/** @param {Session} draft @param {Partial<Item> & {kind: string}} item */
export function push(draft, item) {
  closeLast(draft, item.end ?? item.at ?? 0);
  draft.items.push({ at: 0, ...item, key: draft.next });
  draft.next += 1;
  draft.size += item.size ?? 0;
}

/** @param {Session} draft @param {number} where @param {Item} item */
export function replace(draft, where, item) {
  draft.size += (item.size ?? 0) - (draft.items[where].size ?? 0);
  draft.items[where] = item;
}

/** What was said before something else begins has ended. @param {Session} draft @param {number} at */
function closeLast(draft, at) {
  const last = draft.items.at(-1);
  if (last && last.text !== undefined && !last.end && at) draft.items[draft.items.length - 1] = { ...last, end: at };
}

/** The oldest goes when there is too much. @param {Session} draft */
export function trimmed(draft) {
  let from = draft.items.length > MAX_ITEMS ? draft.items.length - MAX_ITEMS + 1000 : 0;
  if (draft.size > draft.max) {
    let size = draft.size;
    for (let at = 0; at < from; at++) size -= draft.items[at].size ?? 0;
    // The last one stays, however long it is.
    while (size > 0.75 * draft.max && from < draft.items.length - 1) size -= draft.items[from++].size ?? 0;
    draft.size = size;
  }
  if (from === 0) return draft;
  draft.items = draft.items.slice(from);
  draft.truncated = true;
  return draft;
}

/** Tables that nobody else has yet, so that they may be changed in place. @type {WeakSet<any>} */
let fresh = new WeakSet();

/** A draft begins: what was made before is somebody's. @param {Session} session @returns {Session} */
export function drafted(session) {
  fresh = new WeakSet();
  return { ...session, items: session.items.slice() };
}

/** A table of a draft, to be changed. @param {Session} draft @param {"children" | "terminals"} name @returns {Record<string, any>} */
export function owned(draft, name) {
  if (!fresh.has(draft[name])) fresh.add((draft[name] = /** @type {any} */ (table(/** @type {any} */ (draft[name])))));
  return draft[name];
}

/** Agents may send anything; what is shown has the shape that it should. @param {any} value @returns {any[]} */
export const objects = (value) => (Array.isArray(value) ? value.filter((one) => one !== null && typeof one === "object") : []);

/** @param {any} value @param {string} [otherwise] @returns {string} */
export const text = (value, otherwise = "") => (typeof value === "string" ? value : otherwise);

/** What can be said in words of a block of content. @param {any} content @returns {string} */
export function contentText(content) {
  if (!content || typeof content !== "object") return typeof content === "string" ? content : "";
  if (content.type === "text") return String(content.text ?? "");
  if (content.type === "resource_link") return `[${content.name ?? content.uri}](${content.uri})`;
  if (content.type === "resource") return String(content.resource?.text ?? `[${content.resource?.uri ?? "resource"}]`);
  return `[${content.type ?? "content"}]`;
}

/** The session with this id: this one, or that of a subagent of it. @param {Session} session @param {string} id @param {number} [depth] @returns {Session | null} */
export function within(session, id, depth = 0) {
  if (session.id === id) return session;
  for (const child of depth < DEPTH ? Object.values(session.children) : []) {
    const found = within(child, id, depth + 1);
    if (found) return found;
  }
  return null;
}

/** Subagents of subagents, so deep. */
const DEPTH = 6;

/** The same with that session changed; null if it is not among them. @param {Session} session @param {string} id @param {(session: Session) => Session} by @param {number} [depth] @returns {Session | null} */
export function changedWithin(session, id, by, depth = 0) {
  if (session.id === id) return by(session);
  for (const key of depth < DEPTH ? Object.keys(session.children) : []) {
    const next = changedWithin(session.children[key], id, by, depth + 1);
    if (next) return next === session.children[key] ? session : { ...session, children: put(session.children, key, next) };
  }
  return null;
}

/** So many places of things that have a name are remembered. */
const PLACES = 10_000;

/** The next item has this name. @param {Session} draft @param {string} name @param {number} [key] */
export function remember(draft, name, key = draft.next) {
  if (draft.places.size >= PLACES) draft.places = new Map([...draft.places].slice(PLACES / 2));
  draft.places.set(name, key);
}

/** Where a call is, if it is still there. @param {Session} session @param {string} id */
export function findCall(session, id) {
  const key = session.places.get(`call ${id}`);
  const where = key === undefined ? -1 : place(session, key);
  return where >= 0 && session.items[where].calls?.some((call) => call.id === id) ? where : -1;
}

/** A call of the session or of one of its subagents. @param {Session | undefined} session @param {unknown} id @param {number} [depth] @returns {ToolCall | undefined} */
export function callOf(session, id, depth = 0) {
  if (!session || typeof id !== "string") return undefined;
  const item = session.items.findLast((one) => one.calls?.some((call) => call.id === id));
  if (item) return item.calls?.find((one) => one.id === id);
  for (const child of depth < DEPTH ? Object.values(session.children) : []) {
    const found = callOf(child, id, depth + 1);
    if (found) return found;
  }
  return undefined;
}

/** The turn is over. @param {Session} session @param {number} at @param {string | undefined} reason @param {any} [usage] @returns {Session} */
export function endTurn(session, at, reason, usage) {
  const more = usage ? { usage: { ...session.usage, ...usage } } : {};
  if (session.turn !== "running") return { ...session, ...more };
  const draft = { ...session, ...more, turn: "idle", turnBy: null, stopAt: 0, isStuck: false, items: session.items.slice() };
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
export const nameOf = (session) => session.title || (session.items.find((item) => item.kind === "user")?.text ?? "").slice(0, 1000).trim().split("\n")[0].slice(0, 80);
