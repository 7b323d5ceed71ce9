// Prompts that a person has sent and the agent does not have yet. A prompt stands here until the bus is known to have it; only then
// is it among what was said. Pure.

/** @typedef {import("./reduce.js").State} State */
/**
 * `unsent`: kept here. `sent`: on its way. `waits`: the bus has it, until another's turn is over. `unsure`: the connection was lost
 * before it was known to have come. `refused`: the bus did not take it.
 * @typedef {{key: string, session: string, text: string, state: "unsent" | "sent" | "waits" | "unsure" | "refused", rpc?: any, said?: number, isSlow?: boolean}} Entry
 */

/** What a reloaded page knows of them. @param {unknown} kept @returns {Entry[]} */
export function restored(kept) {
  const isEntry = (one) => one && typeof one.key === "string" && typeof one.session === "string" && typeof one.text === "string";
  return (Array.isArray(kept) ? kept : []).filter(isEntry).map(stranded);
}

/** The connection is lost: whether it has come is not known. @param {Entry} entry @returns {Entry} */
export const stranded = (entry) => (entry.state === "sent" || entry.state === "waits" ? { ...entry, state: "unsure", rpc: undefined } : entry);

/** How often a text was said in a session. @param {State} state @param {string} session @param {string} text */
export function timesSaid(state, session, text) {
  const items = state.sessions[session]?.items ?? [];
  return items.reduce((sum, item) => sum + (item.kind === "user" ? (item.text ?? "").split(text).length - 1 : 0), 0);
}

/** Those that turned out to have come: they are in what was told anew. @param {State} state @param {string} session */
export const arrived = (state, session) => state.outbox.filter((one) => one.session === session && one.state === "unsure" && timesSaid(state, session, one.text) > (one.said ?? Infinity));

/** Those that a person should know of. @param {State} state */
export const stuck = (state) => state.outbox.filter((one) => one.state !== "sent" && one.state !== "waits");
