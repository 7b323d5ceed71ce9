// What was said before: the list that is shown of it, and the transcript that is open. Pure.

import { addItem, beginTurn, contentText, endTurn, newSession, objects } from "./transcript.js";
import { addUpdates } from "./updates.js";

/** @typedef {{id: string, row: any, why: string, session: import("./transcript.js").Session, next: number | null, isReading: boolean}} Open */

/** What narrows the list: a pool, a folder with all in it, and the last days in which something was said. Empty: all. @typedef {{pool: string, folder: string, days: string}} Filter */

export const newPast = () => ({
  text: "",
  filter: /** @type {Filter} */ ({ pool: "", folder: "", days: "" }),
  rows: /** @type {any[]} */ ([]),
  next: /** @type {string | null} */ (null),
  isLooking: false,
  isListed: false,
  why: "",
  open: /** @type {Open | null} */ (null),
  usage: /** @type {any} */ (null),
});

/** @typedef {ReturnType<typeof newPast>} Past */

/** What happened to the list or to the transcript. @param {Past} past @param {any} action @returns {Past} */
export function changedPast(past, { what, ...more }) {
  switch (what) {
    case "looks":
      return { ...past, text: more.text, filter: more.filter, isLooking: true };
    case "listed":
      // An answer to what was asked for before is of no use any more.
      if (more.text !== past.text || more.filter !== past.filter) return past;
      return { ...past, rows: more.isMore ? [...past.rows, ...more.rows] : more.rows, next: more.next, isLooking: false, isListed: true, why: "" };
    case "failed":
      if (!more.id) return { ...past, isLooking: false, isListed: true, why: more.why };
      return past.open && past.open.id === more.id ? { ...past, open: { ...past.open, isReading: false, why: more.why } } : past;
    case "opens":
      return { ...past, open: { id: more.id, row: null, why: "", session: newSession(nameOfPast(more.id), { role: "observe", loading: true }), next: null, isReading: true } };
    case "read":
      if (!past.open || past.open.id !== more.id) return past;
      return { ...past, open: { ...past.open, row: more.row, session: { ...addEntries(past.open.session, more.entries), loading: false, cwd: more.row.folder ?? "", pool: more.row.pool }, next: more.next, isReading: false } };
    case "reads":
      return { ...past, open: past.open && { ...past.open, isReading: past.open.isReading || past.open.id === more.id } };
    case "gone":
      return { ...past, rows: past.rows.filter((row) => row.id !== more.id), open: past.open?.id === more.id ? null : past.open };
    case "usage":
      return { ...past, usage: more.usage };
    default:
      return past;
  }
}

const DAY_MS = 86_400_000;

/** What the door is asked for. @param {string} text @param {Filter} filter @param {string} before where the next page begins @param {number} now */
export function queryOf(text, { pool, folder, days }, before, now) {
  const since = days ? new Date(now - Number(days) * DAY_MS).toISOString() : "";
  const all = { query: text, pool, folder: folder.trim(), since, before, limit: "50" };
  return new URLSearchParams(Object.entries(all).filter(([, value]) => value));
}

/** Whether anything narrows the list. @param {Filter} filter */
export const narrows = (filter) => Object.values(filter).some((value) => value.trim());

/** The pools to choose from: those of the bus, those of what is listed, and the one that is chosen. @param {Past} past @param {string[]} pools */
export const poolsOf = (past, pools) => [...new Set([...pools, ...past.rows.map((row) => words(row.pool)), past.filter.pool])].filter(Boolean).sort();

/** No session of a bus is called so. @param {string} id */
export const nameOfPast = (id) => `past ${id}`;

/** @param {any} value */
const words = (value) => (typeof value === "string" ? value : "");

/** Adds entries of a transcript. @param {import("./transcript.js").Session} session @param {any[]} entries */
export function addEntries(session, entries) {
  let next = session;
  for (const entry of objects(entries)) next = addEntry(next, entry);
  return next;
}

/** @param {import("./transcript.js").Session} session @param {any} entry */
function addEntry(session, { at, by, message, gap, event, cut }) {
  const when = Date.parse(at) || 0;
  const note = (text) => addItem(session, { kind: "note", at: when, text });
  if (gap) return note(`${gap.lines ? `${gap.lines} lines are` : "Something is"} missing here: ${words(gap.why)}`);
  if (event) return note(event === "closed" ? "The session was closed." : "It was opened again.");
  if (!message || typeof message !== "object") return session;
  const { method, params, result, error } = message;
  if (method === "session/prompt") {
    const text = objects(params?.prompt).map(contentText).join("\n");
    return beginTurn(addItem(session, { kind: "user", at: when, end: when, text, by: words(by) }), 0, null);
  }
  if (method === "session/update") {
    const next = addUpdates(session, [{ update: params?.update, at: when }]);
    return cut ? addItem(next, { kind: "note", at: when, text: `${cut} bytes of this were not kept.` }) : next;
  }
  if (method === "session/request_permission" || method === "elicitation/create") return note(`The agent asked: ${words(params?.toolCall?.title) || words(params?.message) || "a question"}`);
  if (result?.outcome) return note(`${words(by)} answered: ${words(result.outcome.optionId) || words(result.outcome.outcome)}`);
  if (error) return endTurn(addItem(session, { kind: "error", at: when, error }), 0, "error");
  if (result?.stopReason) return endTurn(session, 0, words(result.stopReason), result.usage);
  return session;
}
