// Prompts that a person has sent and the agent does not have yet. A prompt stands here until the bus is known to have it; only then
// is it among what was said. Pure.

import { objects } from "./transcript.js";

/** @typedef {import("./reduce.js").State} State */
/**
 * `queued`: kept here until the turn that runs is over. `unsent`: kept here until the bus is there. `sent`: on its way. `waits`: the bus
 * has it, until another's turn is over. `unsure`: the connection was lost before it was known to have come. `refused`: the bus did
 * not take it.
 * @typedef {{key: string, session: string, text: string, parts?: any[], state: "queued" | "unsent" | "sent" | "waits" | "unsure" | "refused", rpc?: any, said?: number, isSlow?: boolean, isHeld?: boolean}} Entry
 */

/** What a reloaded page knows of them. @param {unknown} kept @returns {Entry[]} */
export function restored(kept) {
  const isEntry = (one) => one && typeof one.key === "string" && typeof one.session === "string" && typeof one.text === "string";
  return (Array.isArray(kept) ? kept : []).filter(isEntry).map((one) => stranded({ ...one, parts: objects(one.parts) }));
}

/** The connection is lost: whether it has come is not known. @param {Entry} entry @returns {Entry} */
export const stranded = (entry) => (entry.state === "sent" || entry.state === "waits" ? { ...entry, state: "unsure", rpc: undefined } : entry);

/** How often a text was said in a session. @param {State} state @param {string} session @param {string} text */
export function timesSaid(state, session, text) {
  const items = text ? (state.sessions[session]?.items ?? []) : [];
  return items.reduce((sum, item) => sum + (item.kind === "user" ? (item.text ?? "").split(text).length - 1 : 0), 0);
}

/** Those that turned out to have come: they are in what was told anew. @param {State} state @param {string} session */
export const arrived = (state, session) => state.outbox.filter((one) => one.session === session && one.state === "unsure" && timesSaid(state, session, one.text) > (one.said ?? Infinity));

/** Those that a person should know of. @param {State} state */
export const stuck = (state) => state.outbox.filter((one) => !["sent", "waits", "queued"].includes(one.state));

/** The next one that is to be sent when a turn is over. Those that were held when a turn was stopped are not. @param {State} state @param {string} session */
export function nextQueued(state, session) {
  const known = state.sessions[session];
  if (!known || known.turn === "running") return undefined;
  if (state.outbox.some((one) => one.session === session && ["unsent", "sent", "waits"].includes(one.state))) return undefined;
  return state.outbox.find((one) => one.session === session && one.state === "queued" && !one.isHeld);
}

/** The queue with one prompt a place further up or down among those of its session. @param {Entry[]} outbox @param {string} key @param {number} step */
export function moved(outbox, key, step) {
  const entry = outbox.find((one) => one.key === key);
  const own = outbox.filter((one) => one.session === entry?.session && one.state === "queued");
  const other = own[own.findIndex((one) => one.key === key) + step];
  if (!entry || entry.state !== "queued" || !other) return outbox;
  return outbox.map((one) => (one === entry ? other : one === other ? entry : one));
}
