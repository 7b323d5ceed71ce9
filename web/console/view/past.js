// What was said before: the list with its search, and one transcript, page by page.

import { classes, h } from "../lib/dom.js";
import { ago, bytes, folder, place, plural, visible } from "../lib/text.js";
import { attempt, bus, dispatch, go, note } from "../state/app.js";
import { narrows, poolsOf } from "../state/past.js";
import { hasChild, Item } from "./items.js";
import { Empty } from "./parts.js";
import { Filters } from "./past_filters.js";
import { roughHeight } from "./session.js";
import "../lib/list.js";

/** @param {{state: import("../state/reduce.js").State}} props */
export function PastList({ state }) {
  const { past, route } = state;
  const items = past.next ? [...past.rows, { id: "more", isMore: true }] : past.rows;
  const row = (one) => (one.isMore ? h(More, { isBusy: past.isLooking, act: () => bus.past.list(past.next ?? "") }) : h(Row, { row: one, isHere: one.id === route.id }));
  return h(
    "section",
    { class: "session-list past-list", "aria-label": "past sessions" },
    h(
      "div",
      { class: "list-head" },
      h("h1", null, "Past"),
      h("input", { class: "filter", type: "search", placeholder: "Search what was said", "aria-label": "search what was said", value: past.text, oninput: (event) => bus.past.search(event.target.value) }),
      past.isLooking ? h("span", { class: "muted", role: "status" }, "looking …") : null,
    ),
    h(Filters, { past, pools: poolsOf(past, state.link.pools), narrow: (change) => bus.past.narrow(change) }),
    past.why ? h(Empty, { title: "It cannot be read", text: visible(past.why) }) : null,
    past.rows.length ? h("sb-list", { data: { items, row, keyOf, estimate: 52, label: "past sessions" } }) : past.isListed && !past.why ? h(Empty, past.text || narrows(past.filter) ? { title: "Nothing was found", text: past.text ? "Every word must be there, as it was said." : "Nothing was said there in that time." } : { title: "Nothing is kept yet", text: "What is said through the bus is kept here, unless bus.json says otherwise." }) : null,
  );
}

const keyOf = (one) => one.id;

/** @param {{isBusy: boolean, act: () => void}} props */
const More = ({ isBusy, act }) => h("div", { class: "past-more" }, h("button", { class: "button", type: "button", disabled: isBusy, onclick: act }, isBusy ? "looking …" : "More"));

/** @param {string} at */
const age = (at) => ago(Math.max(0, (Date.now() - Date.parse(at)) / 1000));

/** @param {{row: any, isHere: boolean}} props */
function Row({ row, isHere }) {
  const found = Array.isArray(row.found) ? row.found.slice(0, 3) : [];
  return h(
    "a",
    { class: classes("past-row", isHere && "is-here"), href: `#/past/${row.id}`, "aria-current": isHere ? "page" : undefined },
    h("span", { class: "title ellipsis" }, visible(row.title || row.id.slice(0, 8))),
    h("span", { class: "idle num muted", title: row.last ? new Date(row.last).toLocaleString() : "" }, row.last ? age(row.last) : ""),
    h("span", { class: "past-facts ellipsis muted" }, row.state === "open" ? h("span", { class: "chip" }, "open") : null, visible(place(row)), row.folder ? h("span", { class: "mono" }, ` ${visible(folder(row.folder))}`) : null, ` · ${plural(row.prompts, "prompt")}`),
    found.map((one, key) => h("span", { key, class: "past-found muted" }, marked(String(one.text)))),
  );
}

/** What was found, with the words marked. @param {string} text */
const marked = (text) => text.split(/[\u0002\u0003]/).map((part, at) => (at % 2 ? h("mark", { key: at }, visible(part)) : visible(part)));

/** @param {{id: string, state: import("../state/reduce.js").State}} props */
export function PastView({ id, state }) {
  const { open } = state.past;
  if (!open || open.id !== id || !open.row) {
    const why = open?.id === id ? open.why : "";
    return h("section", { class: "session" }, back(), why ? h(Empty, { title: "It is not there", text: visible(why) }) : h("p", { class: "muted pad" }, "reading …"));
  }
  const items = open.next === null ? open.session.items : [...open.session.items, { key: "more", kind: "more" }];
  const row = (item) => (item.kind === "more" ? h(More, { isBusy: open.isReading, act: () => bus.past.page(id, open.next ?? 0) }) : h(Item, { item, session: open.session, view: null, canAnswer: false, children: hasChild(item) ? open.session.children : undefined }));
  return h(
    "section",
    { class: "session", "aria-label": "a past session" },
    h("h1", { class: "only-heard narrow" }, "Past session"),
    h(Head, { row: open.row }),
    items.length ? h("sb-list", { key: id, class: "transcript", data: { items, row, keyOf: (item) => item.key, estimate: roughHeight, label: "what was said" } }) : h(Empty, { title: "Nothing was said", text: "Only what can be said was told." }),
  );
}

const back = () => h("a", { class: "back", href: "#/past", "aria-label": "back to past sessions" }, "‹", h("span", { class: "back-name" }, " Past"));

/** @param {{row: any}} props */
function Head({ row }) {
  const isOpen = row.state === "open";
  return h(
    "header",
    { class: "session-head" },
    back(),
    h("div", { class: "session-title" }, h("h2", { class: "ellipsis" }, visible(row.title || row.id.slice(0, 8))), h("span", { class: "mono muted" }, row.id.slice(0, 8))),
    h("div", { class: "session-facts muted" }, h("span", null, visible(place(row))), row.folder ? h("span", { class: "mono" }, visible(folder(row.folder))) : null, h("span", null, new Date(row.opened).toLocaleString()), h("span", { class: "num" }, bytes(row.bytes))),
    h(
      "div",
      { class: "session-tools" },
      isOpen ? h("a", { class: "button", href: `#/sessions/${encodeURIComponent(row.label)}` }, "Go to it") : bus.may("control") ? h("button", { class: "button primary", type: "button", onclick: () => attempt(() => goOn(row)) }, "Continue") : null,
      h(
        "details",
        { class: "menu" },
        h("summary", { class: "button", "aria-label": "more" }, "⋯"),
        h(
          "div",
          { class: "menu-items" },
          [["md", "Markdown"], ["html", "HTML"], ["json", "JSON"]].map(([format, name]) => item(`Export as ${name}`, () => attempt(() => bus.past.save(row.id, format)))),
          bus.may("control") && !isOpen ? item("Delete", () => dispatch({ type: "dialog", dialog: { kind: "confirm", title: "Delete this session?", text: "What was said in it is removed from the disk of the bus, and from what is searched. What the agent keeps itself stays.", label: "Delete it", act: () => attempt(() => remove(row.id)) } })) : null,
        ),
      ),
    ),
  );
}

/** @param {string} label @param {() => void} act */
const item = (label, act) =>
  h("button", { key: label, class: "menu-item", type: "button", onclick: (event) => {
    event.target.closest("details").open = false;
    act();
  } }, label);

/** @param {string} id */
async function remove(id) {
  await bus.past.delete(id);
  go("past");
  note("It is deleted.");
}

/** Goes on at the agent; where it cannot, offers a new session that begins with what was said last. @param {any} row */
async function goOn(row) {
  const label = await bus.past.resume(row);
  if (label) return go("sessions", label);
  const text = await bus.past.primer(row.id);
  const act = () => {
    dispatch({ type: "primer", primer: { pool: row.pool, cwd: row.folder ?? "", text } });
    go("new");
  };
  dispatch({ type: "dialog", dialog: { kind: "confirm", title: "The agent cannot open it again", text: "A new session can begin with what was said last as its first prompt. You see it before it is sent.", label: "Begin a new session", act } });
}
