// All sessions, those that wait for a person first.

import { classes, h } from "../lib/dom.js";
import { ago, folder, place, plain, plural, visible } from "../lib/text.js";
import { bus, dispatch } from "../state/app.js";
import { nameOf } from "../state/transcript.js";
import { Empty, glyph } from "./parts.js";
import "../lib/list.js";

const ROW = () => (matchMedia("(pointer: coarse)").matches || innerWidth < 700 ? 44 : 32);

/** Sessions that have all the words in what is shown of them. @param {any[]} list @param {string} text */
export function filtered(list, text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  if (words.length === 0) return list;
  return list.filter((view) => {
    const hay = `${view.session} ${view.title} ${view.pool} ${view.client} ${view.folder} ${view.mood}`.toLowerCase();
    return words.every((word) => hay.includes(word));
  });
}

/** @param {{state: import("../state/reduce.js").State}} props */
export function SessionList({ state }) {
  const text = state.filters.sessions;
  const items = filtered(state.list, text);
  const here = bus.sessions.find(state.route.id)?.label ?? state.route.id;
  const titles = titlesOf(state.sessions);
  const row = (view) => h(Row, { view, isHere: view.session === here, title: titles.get(view.session) ?? view.title });
  return h(
    "section",
    { class: classes("session-list", state.list.some((view) => view.folder) && "has-folders"), "aria-label": "sessions" },
    h(
      "div",
      { class: "list-head" },
      h("h1", null, "Sessions"),
      h("input", { class: "filter", type: "search", placeholder: "Filter", "aria-label": "filter sessions", value: text, oninput: (event) => dispatch({ type: "filter", place: "sessions", text: event.target.value }) }),
      h("span", { class: "num muted" }, text ? `${items.length} of ${state.list.length}` : plural(state.list.length, "session")),
    ),
    items.length ? h("div", { class: "session-row names", "aria-hidden": "true" }, ["", "Session", "", "Pool", "Owner", "Folder", "Age", "Idle"].map((name, at) => h("span", { key: at, class: ["glyph", "title", "col label", "col pool", "col client", "col folder", "col age", "idle"][at] }, name))) : null,
    items.length ? h("sb-list", { data: { items, row, keyOf, fixed: ROW(), label: "sessions" } }) : state.listed ? h(Empty, { title: text ? "None matches" : "No session yet", text: text ? "Try fewer words." : h("span", null, h("a", { href: "#/new" }, "Begin one"), ", or connect an editor: ", h("code", null, "stdio-bus ide NAME"), " prints its settings.") }) : h("p", { class: "muted pad" }, "looking …"),
  );
}

const keyOf = (view) => view.session;

/** Titles that this page has heard. @param {Record<string, any>} sessions @returns {Map<string, string>} */
export function titlesOf(sessions) {
  return new Map(Object.values(sessions).filter((one) => nameOf(one)).map((one) => [one.label, nameOf(one)]));
}

/** @param {{view: any, isHere: boolean, title: string}} props */
function Row({ view, isHere, title }) {
  const guests = view.guests.length;
  return h(
    "a",
    { class: classes("session-row", isHere && "is-here", `is-${view.mood}`), href: `#/sessions/${view.session}`, "aria-current": isHere ? "page" : undefined },
    glyph(view.mood),
    h("span", { class: "title ellipsis" }, visible(title || view.session)),
    h("span", { class: "col label mono muted" }, title ? view.session : ""),
    h("span", { class: "col pool ellipsis" }, visible(place(view))),
    h("span", { class: "col client ellipsis muted" }, visible(view.client ?? "nobody"), guests ? ` +${guests}` : ""),
    h("span", { class: "col folder mono ellipsis muted" }, visible(folder(view.folder))),
    h("span", { class: "col age num muted", title: "age" }, ago(view.age_sec)),
    h("span", { class: "idle num muted", title: `last word ${ago(view.idle_sec)} ago; ${plain(view.mood)}` }, ago(view.idle_sec)),
  );
}
