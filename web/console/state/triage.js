// Many sessions in order: pinned ones, names and archives that a person gave them here, groups, and states to choose from. Pure.

import { look, table } from "../lib/table.js";

/** What this browser keeps of a session. @typedef {{pin?: boolean, name?: string, archived?: boolean}} Mark */
/** @typedef {Record<string, Mark>} Marks */

/** So many are kept; the oldest go. */
const MARKS_MAX = 500;
export const STATES = ["all", "waiting", "running", "idle", "archived"];

/** What a session is known by over a restart of the bus: its transcript, else its label, which is good as long as the bus runs. @param {any} view */
export const keyOf = (view) => view.history || `${view.pool} ${view.session}`;

/** What was kept, as far as it makes sense. @param {unknown} kept @returns {Marks} */
export function readMarks(kept) {
  const marks = table();
  for (const [key, mark] of Object.entries(kept !== null && typeof kept === "object" ? kept : {})) {
    if (mark !== null && typeof mark === "object") marks[key] = { pin: mark.pin === true, name: typeof mark.name === "string" ? mark.name.slice(0, 200) : "", archived: mark.archived === true };
  }
  return marks;
}

/** @param {Marks} marks @param {string} key @param {Mark} more @returns {Marks} */
export function marked(marks, key, more) {
  const next = table(marks);
  const mark = { ...look(marks, key), ...more };
  delete next[key];
  if (mark.pin || mark.name || mark.archived) next[key] = mark;
  for (const old of Object.keys(next).slice(0, -MARKS_MAX)) delete next[old];
  return next;
}

/** A session that is archived is out of sight until it asks something. @param {any} view @param {Marks} marks */
export const isArchived = (view, marks) => look(marks, keyOf(view))?.archived === true && view.mood !== "waiting";

/** Whether a session is in a state that was chosen. What is lost waits for a person too. @param {any} view @param {string} state */
function isIn(view, state) {
  if (state === "waiting") return view.mood === "waiting" || view.mood === "lost";
  if (state === "idle") return view.mood === "idle" || view.mood === "kept";
  return state === "all" || view.mood === state;
}

/** How many there are in each state. @param {any[]} list @param {Marks} marks */
export function counted(list, marks) {
  const counts = table(Object.fromEntries(STATES.map((state) => [state, 0])));
  for (const view of list) {
    if (isArchived(view, marks)) counts.archived += 1;
    else for (const state of STATES.slice(0, -1)) counts[state] += Number(isIn(view, state));
  }
  return counts;
}

/**
 * The rows of the list: what needs a person first, then what is pinned, then the rest in its order; in groups by folder where that is
 * wanted, each with a row that names it.
 * @param {any[]} list in the order of attention
 * @param {Marks} marks
 * @param {{state: string, isGrouped: boolean, matches: (view: any, name: string) => boolean}} how
 */
export function arranged(list, marks, { state, isGrouped, matches }) {
  const shown = list.filter((view) => (state === "archived" ? isArchived(view, marks) : !isArchived(view, marks) && isIn(view, state)) && matches(view, look(marks, keyOf(view))?.name ?? ""));
  const isPinned = (view) => look(marks, keyOf(view))?.pin === true;
  const needs = (view) => view.mood === "waiting" || view.mood === "lost";
  const rows = Object.keys(marks).length ? [...shown.filter(needs), ...shown.filter((view) => !needs(view) && isPinned(view)), ...shown.filter((view) => !needs(view) && !isPinned(view))] : shown;
  if (!isGrouped) return rows;
  const groups = new Map();
  for (const view of rows) {
    if (!groups.has(view.folder)) groups.set(view.folder, []);
    groups.get(view.folder).push(view);
  }
  return [...groups].flatMap(([folder, views]) => [{ isGroup: true, session: `group ${folder}`, folder, count: views.length, waiting: views.filter(needs).length }, ...views]);
}

/** The other sessions of the same process, which are hit when it is restarted. @param {any[]} list @param {any} view */
export const othersOf = (list, view) => list.filter((one) => one.session !== view.session && one.pool === view.pool && one.worker === view.worker && (one.node ?? null) === (view.node ?? null));
