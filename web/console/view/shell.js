// The frame: head, rail, the place that is open, and what floats above it.

import { classes, h } from "../lib/dom.js";
import { look, table } from "../lib/table.js";
import { visible } from "../lib/text.js";
import { bus, dispatch } from "../state/app.js";
import { stuck } from "../state/outbox.js";
import { Dialog } from "./dialogs.js";
import { NewSession } from "./new.js";
import { Empty, ErrorBox, since } from "./parts.js";
import { PastList, PastView } from "./past.js";
import { Pools } from "./pools.js";
import { SessionList } from "./sessions.js";
import { SessionView } from "./session.js";
import { Waiting } from "./waiting.js";
import { Wire } from "./wire.js";

/** @typedef {import("../state/reduce.js").State} State */

/** @param {State} state */
export function shell(state) {
  const { link, route, toasts, dialog, said } = state;
  if (link.status === "signed-out") return [h(SignedOut, { why: link.why })];
  const isStale = link.status !== "live";
  return [
    h(Top, { link, name: state.status?.name ?? "", unsent: h(Unsent, { state }) }),
    h("div", { class: classes("body", `at-${route.place}`, route.id && "has-thing", isStale && "is-stale") }, h(Rail, { place: route.place, waiting: waitingCount(state), canBegin: bus.may("control") }), h("main", { id: "main", tabindex: "-1" }, place(state))),
    h("div", { class: "toasts", role: "status" }, toasts.map((toast) => h("div", { key: toast.key, class: "toast" }, toast.error ? h(ErrorBox, { error: toast.error }) : h("p", null, visible(toast.text ?? "")), h("button", { class: "close", type: "button", "aria-label": "close", onclick: () => dispatch({ type: "untoast", key: toast.key }) }, "✕")))),
    h("div", { class: "only-heard", role: "status", "aria-live": "polite" }, said),
    dialog ? h(Dialog, { key: dialog.serial, dialog, state }) : null,
  ];
}

/** How many questions the rows of a list count: it may be long, and is the same for many frames. */
let listedAt = { list: /** @type {any[]} */ ([]), sum: 0 };

/** How many questions wait, also those that this page is not asked. @param {State} state */
export function waitingCount(state) {
  if (listedAt.list !== state.list) listedAt = { list: state.list, sum: state.list.reduce((sum, view) => sum + view.questions, 0) };
  const listed = listedAt.sum;
  return Math.max(listed && state.questions.length ? state.questions.length : listed, state.questions.length);
}

/** @param {State} state */
function place(state) {
  const { route } = state;
  if (route.place === "sessions") return [h(SessionList, { key: "list", state }), route.id ? h(SessionView, { key: `session ${route.id}`, name: route.id, state }) : null];
  if (route.place === "past") return [h(PastList, { key: "past", state }), route.id ? h(PastView, { key: `past ${route.id}`, id: route.id, state }) : null];
  if (route.place === "pools") return h(Pools, { key: "pools", state });
  if (route.place === "wire") return h(Wire, { key: "wire", state });
  if (route.place === "new") return h(NewSession, { key: "new", state });
  return h(Waiting, { key: "waiting", state });
}

/** Prompts that nobody has yet, wherever they were written. @param {{state: State}} props */
function Unsent({ state }) {
  const waiting = stuck(state);
  if (waiting.length === 0) return h("span", { hidden: true });
  const [{ session }] = waiting;
  return h("a", { class: "chip unsent", href: `#/sessions/${encodeURIComponent(state.sessions[session]?.label || session)}` }, `${waiting.length} not sent`);
}

/** @param {{link: State["link"], name: string, unsent: any}} props */
function Top({ link, name, unsent }) {
  return h(
    "header",
    { class: "top" },
    h("a", { class: "skip", href: "#main", onclick: (event) => (event.preventDefault(), document.getElementById("main")?.focus()) }, "to the content"),
    h("a", { class: "brand", href: "#/waiting" }, h("img", { class: "brand-sign", src: "icon.svg", alt: "" }), "stdio bus", name ? h("span", { class: "muted" }, " · ", visible(name)) : null),
    h("span", { class: "spacer" }),
    unsent,
    link.scope && link.scope !== "admin" ? h("span", { class: "chip", title: "what this link may do" }, link.scope) : null,
    h(Link, { status: link.status, lastWord: link.lastWord }),
    h("button", { class: "button small", type: "button", title: "go to anything", onclick: () => dispatch({ type: "dialog", dialog: { kind: "palette" } }) }, h("span", null, "Go to"), h("kbd", null, /Mac|iPhone/.test(navigator.platform) ? "⌘K" : "Ctrl K")),
  );
}

const LINKS = table({ connecting: " connecting", silent: " not answering" });

/** @param {{status: string, lastWord: number}} props */
function Link({ status, lastWord }) {
  if (status === "live") return h("span", { class: "link is-live" }, h("span", { class: "glyph is-running", "aria-hidden": "true" }, "●"), " live");
  return h("span", { class: "link is-lost", role: "status" }, h("span", { class: "glyph is-kept", "aria-hidden": "true" }, "◌"), look(LINKS, status) ?? " reconnecting", lastWord ? [" · last word ", since(lastWord), " ago"] : null);
}

const ICONS = /** @type {Record<string, string>} */ ({
  waiting: "M2.5 9.5h3l1 2h3l1-2h3M2.5 9.5v4h11v-4M2.5 9.5l2-6.5h7l2 6.5",
  sessions: "M2.5 4h11M2.5 8h11M2.5 12h7",
  pools: "M2.5 2.5h4.5v4.5h-4.5zM9 2.5h4.5v4.5H9zM2.5 9h4.5v4.5h-4.5zM9 9h4.5v4.5H9z",
  past: "M8 2.5a5.5 5.5 0 1 1-5.2 3.7M2.5 2.5v3.7h3.7M8 5v3.2l2.2 1.5",
  wire: "M2.5 5.5h10M10 3l2.5 2.5L10 8M13.5 10.5h-10M6 8l-2.5 2.5L6 13",
  new: "M8 3v10M3 8h10",
});

/** @param {string} id */
const icon = (id) => h("svg", { class: "icon", viewBox: "0 0 16 16", "aria-hidden": "true" }, h("path", { d: ICONS[id] }));

const PLACES = [["waiting", "Waiting", "w"], ["sessions", "Sessions", "s"], ["past", "Past", "h"], ["pools", "Pools", "p"], ["wire", "Wire", "l"]];

/** @param {{place: string, waiting: number, canBegin: boolean}} props */
function Rail({ place: here, waiting, canBegin }) {
  return h(
    "nav",
    { class: "rail", "aria-label": "places" },
    PLACES.map(([id, name, key]) => h("a", { key: id, class: classes("place", `to-${id}`, id === here && "is-here"), href: `#/${id}`, "aria-current": id === here ? "page" : undefined, title: `g ${key}` }, icon(id), h("span", { class: "place-name" }, name), id === "waiting" && waiting ? h("span", { class: "badge num", "aria-label": `${waiting} open` }, String(waiting)) : null)),
    canBegin ? h("a", { class: classes("place to-new", here === "new" && "is-here"), href: "#/new", title: "n" }, icon("new"), h("span", { class: "place-name" }, "New")) : null,
  );
}

const REASONS = table(/** @type {Record<string, [string, string]>} */ ({
  none: ["This page needs a link", "It is opened by a link that is good once. This prints one:"],
  refused: ["This link is used up", "A link is good once, and for ten minutes. This prints another:"],
  revoked: ["This page may no longer come in", "Its token was revoked or is not known any more. This prints a new link:"],
  unreachable: ["Nobody answers", "The web door of the bus is not running. Start the bus, then:"],
}));

/** @param {{why: string}} props */
function SignedOut({ why }) {
  const [title, text] = look(REASONS, why) ?? REASONS.none;
  return h("main", { class: "signed-out" }, h("h1", { class: "only-heard" }, "stdio bus"), h(Empty, { title, text, command: "stdio-bus web url" }), h("form", { class: "choices", onsubmit: comeIn }, h("input", { name: "link", type: "text", autocomplete: "off", "aria-label": "link", placeholder: "or paste a link here" }), h("button", { class: "button", type: "submit" }, "Come in")));
}

/** A page on a Home Screen has no address to paste a link into. @param {any} event */
function comeIn(event) {
  event.preventDefault();
  const code = /#c=([^&\s]+)/.exec(String(new FormData(event.target).get("link") ?? ""))?.[1];
  if (!code) return;
  location.hash = `c=${code}`;
}
