// All sessions, those that need a person first; pinned, named, put away, grouped and chosen by state.

import { classes, h } from "../lib/dom.js";
import { look } from "../lib/table.js";
import { ago, folder, place, plain, plural, visible } from "../lib/text.js";
import { bus, dispatch } from "../state/app.js";
import { nameOf } from "../state/transcript.js";
import { arranged, counted, isArchived, keyOf, STATES } from "../state/triage.js";
import { Empty, glyph } from "./parts.js";
import "../lib/list.js";

const ROW = () => (matchMedia("(pointer: coarse)").matches || innerWidth < 700 ? 44 : 32);
const NAMES = { all: "All", waiting: "Waiting", running: "Running", idle: "Idle", archived: "Archived" };

/** Whether a session has all the words in what is shown of it. @param {string} text @returns {(view: any, name: string) => boolean} */
export function matcher(text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  if (words.length === 0) return () => true;
  return (view, name) => {
    const hay = `${name} ${view.session} ${view.title} ${view.pool} ${view.client} ${view.folder} ${view.mood}`.toLowerCase();
    return words.every((word) => hay.includes(word));
  };
}

/** @type {{parts: any[], items: any[], counts: any, shown: number, hasFolders: boolean}} */
let last = { parts: [], items: [], counts: {}, shown: 0, hasFolders: false };

/** The rows, which are not put in order again while nothing of them has changed. @param {import("../state/reduce.js").State} state */
function rowsOf(state) {
  const parts = [state.list, state.marks, state.listState, state.isGrouped, state.filters.sessions];
  if (!parts.every((part, at) => part === last.parts[at])) {
    const items = arranged(state.list, state.marks, { state: state.listState, isGrouped: state.isGrouped, matches: matcher(state.filters.sessions) });
    last = { parts, items, counts: counted(state.list, state.marks), shown: items.filter((one) => !one.isGroup).length, hasFolders: state.list.some((view) => view.folder) };
  }
  return last;
}

/** @param {{state: import("../state/reduce.js").State}} props */
export function SessionList({ state }) {
  const text = state.filters.sessions;
  const { items, counts, shown, hasFolders } = rowsOf(state);
  const here = bus.sessions.find(state.route.id)?.label ?? state.route.id;
  const titles = titlesOf(state.sessions);
  const row = (view) => (view.isGroup ? h(Group, { group: view }) : h(Row, { view, isHere: view.session === here, title: titles.get(view.session) ?? view.title, mark: look(state.marks, keyOf(view)) ?? null, isAway: isArchived(view, state.marks) }));
  return h(
    "section",
    { class: classes("session-list", hasFolders && "has-folders"), "aria-label": "sessions" },
    h(
      "div",
      { class: "list-head" },
      h("h1", null, "Sessions"),
      h("input", { class: "filter", type: "search", placeholder: "Filter", "aria-label": "filter sessions", value: text, oninput: (event) => dispatch({ type: "filter", place: "sessions", text: event.target.value }) }),
      h("span", { class: "num muted" }, text || state.listState !== "all" ? `${shown} of ${state.list.length}` : plural(shown, "session")),
    ),
    state.list.length ? h(States, { counts, chosen: state.listState, isGrouped: state.isGrouped }) : null,
    items.length && !state.isGrouped ? h("div", { class: "session-row names", "aria-hidden": "true" }, ["", "Session", "", "Pool", "Owner", "Folder", "Age", "Idle"].map((name, at) => h("span", { key: at, class: ["glyph", "title", "col label", "col pool", "col client", "col folder", "col age", "idle"][at] }, name))) : null,
    items.length ? h("sb-list", { data: { items, row, keyOf: rowKey, fixed: ROW(), label: "sessions" } }) : state.listed ? none(state, text) : h("p", { class: "muted pad" }, "looking …"),
  );
}

const rowKey = (view) => view.session;

/** @param {import("../state/reduce.js").State} state @param {string} text */
function none(state, text) {
  if (text) return h(Empty, { title: "None matches", text: "Try fewer words." });
  if (state.list.length) return h(Empty, { title: "None is in this state", text: "Choose another one above." });
  return h(Empty, { title: "No session yet", text: h("span", null, h("a", { href: "#/new" }, "Begin one"), ", or connect an editor: ", h("code", null, "stdio-bus ide NAME"), " prints its settings.") });
}

/** The states to choose from, with how many are in each. @param {{counts: any, chosen: string, isGrouped: boolean}} props */
function States({ counts, chosen, isGrouped }) {
  const shown = STATES.filter((state) => state === "all" || state === chosen || counts[state] > 0);
  return h(
    "div",
    { class: "states", role: "group", "aria-label": "which sessions" },
    shown.map((state) => h("button", { key: state, class: classes("state", state === chosen && "is-on"), type: "button", "aria-pressed": String(state === chosen), onclick: () => dispatch({ type: "listState", state }) }, NAMES[state], " ", h("span", { class: "num" }, String(counts[state])))),
    h("span", { class: "spacer" }),
    h("button", { class: classes("state", isGrouped && "is-on"), type: "button", "aria-pressed": String(isGrouped), title: "group by folder", onclick: () => dispatch({ type: "grouped", on: !isGrouped }) }, "By folder"),
  );
}

/** Titles that this page has heard. @param {Record<string, any>} sessions @returns {Map<string, string>} */
export function titlesOf(sessions) {
  return new Map(Object.values(sessions).filter((one) => nameOf(one)).map((one) => [one.label, nameOf(one)]));
}

/** @param {{group: any}} props */
const Group = ({ group }) => h("div", { class: "group-row" }, h("span", { class: "mono ellipsis" }, visible(folder(group.folder) || "no folder")), h("span", { class: "num muted" }, String(group.count)), group.waiting ? glyph("waiting") : null);

/** Marks a session here. @param {any} view @param {any} mark */
export const markSession = (view, mark) => dispatch({ type: "mark", key: keyOf(view), mark });

/** Asks for another name. @param {any} view @param {string} name */
export const askName = (view, name) => dispatch({ type: "dialog", dialog: { kind: "rename", session: view.session, key: keyOf(view), name } });

/** Keys of the row that has the focus. @param {KeyboardEvent} event @param {any} view @param {any} mark @param {string} name */
function pressed(event, view, mark, name) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "p") markSession(view, { pin: !mark?.pin });
  else if (event.key === "e") markSession(view, { archived: !mark?.archived });
  else if (event.key === "r") askName(view, name);
  else return;
  event.preventDefault();
  event.stopPropagation();
}

/** @param {{view: any, isHere: boolean, title: string, mark: any, isAway: boolean}} props */
function Row({ view, isHere, title, mark, isAway }) {
  const guests = view.guests.length;
  const name = mark?.name || title || "";
  const act = (sign, label, run) => h("button", { key: label, class: "row-act", type: "button", tabindex: "-1", "aria-label": `${label} ${view.session}`, title: label, onclick: run }, sign);
  return h(
    "div",
    { class: "session-line" },
    h(
      "a",
      { class: classes("session-row", isHere && "is-here", `is-${view.mood}`), href: `#/sessions/${view.session}`, "aria-current": isHere ? "page" : undefined, onkeydown: (event) => pressed(event, view, mark, name) },
      glyph(view.mood),
      h("span", { class: "title ellipsis" }, mark?.pin ? h("span", { class: "pin", role: "img", "aria-label": "pinned" }, "★ ") : null, visible(name || view.session)),
      h("span", { class: "col label mono muted" }, name ? view.session : ""),
      h("span", { class: "col pool ellipsis" }, visible(place(view))),
      h("span", { class: "col client ellipsis muted" }, visible(view.client ?? "nobody"), guests ? ` +${guests}` : ""),
      h("span", { class: "col folder mono ellipsis muted" }, visible(folder(view.folder))),
      h("span", { class: "col age num muted", title: "age" }, ago(view.age_sec)),
      h("span", { class: "idle num muted", title: `last word ${ago(view.idle_sec)} ago; ${plain(view.mood)}` }, ago(view.idle_sec)),
    ),
    h("span", { class: "row-acts" }, act(mark?.pin ? "★" : "☆", mark?.pin ? "unpin" : "pin", () => markSession(view, { pin: !mark?.pin })), act("✎", "rename", () => askName(view, name)), act(isAway ? "↥" : "↧", isAway ? "bring back" : "archive", () => markSession(view, { archived: !isAway }))),
  );
}
