// What floats: the palette, the keys, confirmations. Each is a <dialog>, so the browser keeps the focus inside.

import { classes, h } from "../lib/dom.js";
import { visible } from "../lib/text.js";
import { signOut } from "../net/login.js";
import { attempt, bus, dispatch, go, store } from "../state/app.js";
import { can } from "../state/offers.js";
import { begins, withCode } from "./parts.js";
import { titlesOf } from "./sessions.js";

const close = () => dispatch({ type: "dialog", dialog: null });

/** @param {any} el */
function opened(el) {
  queueMicrotask(() => {
    if (!el.isConnected || el.open) return;
    el.showModal();
    el.querySelector("[data-first]")?.focus();
  });
}

/** @param {{dialog: any, state: import("../state/reduce.js").State}} props */
export function Dialog({ dialog, state }) {
  const props = { key: dialog.serial, class: `dialog ${dialog.kind}`, ref: opened, onclose: () => dispatch({ type: "dialogClosed", serial: dialog.serial }), onclick: (event) => void (event.target.tagName === "DIALOG" && close()) };
  if (dialog.kind === "palette") return h("dialog", { ...props, "aria-label": "go to" }, h(Palette, { dialog, state }));
  if (dialog.kind === "rename") return h("dialog", { ...props, "aria-label": "rename" }, h(Rename, { dialog }));
  if (dialog.kind === "keys") return h("dialog", { ...props, "aria-label": "keys" }, keys());
  return h(
    "dialog",
    { ...props, "aria-label": dialog.title },
    h("h2", null, visible(dialog.title)),
    h("p", null, dialog.kind === "note" ? withCode(dialog.text) : visible(dialog.text)),
    dialog.kind === "note" ? h("div", { class: "choices" }, h("button", { class: "button", type: "button", "data-first": "", onclick: close }, "Close")) : h("div", { class: "choices" }, h("button", { class: "button deny", type: "button", onclick: () => (close(), dialog.act()) }, dialog.label), h("button", { class: "button", type: "button", "data-first": "", onclick: close }, "Leave it")),
  );
}

/** A name for a session: at its agent where that takes one, else in this browser. @param {{dialog: any}} props */
function Rename({ dialog }) {
  const known = bus.sessions.find(dialog.session);
  const isTold = !!known && known.role !== "observe" && bus.may("control") && can(store.state.offers[known.pool ?? ""], "title");
  const save = (event) => {
    event.preventDefault();
    const name = String(new FormData(event.target).get("name") ?? "").trim();
    close();
    dispatch({ type: "mark", key: dialog.key, mark: { name: isTold ? "" : name } });
    if (isTold && known && name) attempt(() => bus.talk.rename(known.id, name));
  };
  return h(
    "form",
    { class: "form", onsubmit: save },
    h("label", { class: "field" }, h("span", null, `Name of ${dialog.session}`), h("input", { name: "name", type: "text", maxlength: "200", autocomplete: "off", "data-first": "", ref: begins("value", dialog.name) })),
    h("p", { class: "muted" }, isTold ? "The agent is told, and all who are in the session see it." : "Its agent takes no names, or this page is not in the session: the name is kept in this browser."),
    h("div", { class: "choices" }, h("button", { class: "button primary", type: "submit" }, "Rename"), h("button", { class: "button", type: "button", onclick: close }, "Leave it")),
  );
}

const KEYS = [
  ["g w", "waiting for you"], ["g s", "sessions"], ["g h", "past sessions"], ["g p", "pools"], ["g l", "wire"], ["n", "new session"], ["j k", "down, up"], ["enter", "open"], ["esc", "back"],
  ["/", "filter"], ["p", "pin, on a session"], ["e", "archive, on a session"], ["r", "rename, on a session"], ["a", "allow once, on a question"], ["A", "allow always, on a question"], ["d", "deny, on a question"], ["Ctrl K", "go to anything"], ["?", "these keys"],
];

const keys = () => [h("h2", null, "Keys"), h("dl", { class: "key-list" }, KEYS.map(([key, what]) => h("div", { key }, h("dt", null, h("kbd", null, key)), h("dd", null, what)))), h("button", { class: "button", type: "button", "data-first": "", onclick: close }, "Close")];

/** Everything that one can go to or do. @param {import("../state/reduce.js").State} state */
function entries(state) {
  const act = (name, hint, run) => ({ name, hint, run });
  const here = bus.sessions.find(state.route.id);
  const mayBegin = bus.may("control");
  const titles = titlesOf(state.sessions);
  return [
    act("Waiting for you", "g w", () => go("waiting")),
    act("Sessions", "g s", () => go("sessions")),
    act("Past", "g h", () => go("past")),
    act("Pools", "g p", () => go("pools")),
    act("Wire", "g l", () => go("wire")),
    ...(mayBegin ? [act("New session", "n", () => go("new"))] : []),
    ...(here ? [act(`Changes of ${here.label}`, "", () => go("sessions", here.label, "changes"))] : []),
    ...(here && mayBegin && here.turn === "running" ? [act(`Stop ${here.label}`, "", () => bus.talk.stop(here.id))] : []),
    act("Keys", "?", () => setTimeout(() => dispatch({ type: "dialog", dialog: { kind: "keys" } }))),
    act("Sign out", "", () => attempt(() => signOut(bus.token))),
    ...state.list.map((view) => act(titles.get(view.session) || view.title || view.session, `${view.session} · ${view.pool ?? ""} · ${view.mood}`, () => go("sessions", view.session))),
    ...state.link.pools.map((pool) => act(pool, "pool", () => go("pools"))),
  ];
}

/** Places in the sessions of this page where all of it was said. @param {import("../state/reduce.js").State} state @param {string} text */
function said(state, text) {
  if (text.trim().length < 3) return [];
  const wanted = text.trim().toLowerCase();
  const found = [];
  for (const session of Object.values(state.sessions)) {
    for (let at = session.items.length - 1; at >= 0 && found.length < 6; at--) {
      const where = (session.items[at].text ?? "").toLowerCase().indexOf(wanted);
      if (where < 0) continue;
      const name = (session.items[at].text ?? "").slice(Math.max(0, where - 20), where + 60).replace(/\s+/g, " ");
      found.push({ name: `“${name}”`, hint: session.label, run: () => reveal(session.label, at) });
    }
  }
  return found;
}

/** @param {string} label @param {number} at */
function reveal(label, at) {
  go("sessions", label);
  setTimeout(() => /** @type {any} */ (document.querySelector(".transcript"))?.reveal(at), 100);
}

/** @param {{dialog: any, state: import("../state/reduce.js").State}} props */
function Palette({ dialog, state }) {
  const words = String(dialog.text ?? "").toLowerCase().split(/\s+/).filter(Boolean);
  const named = entries(state).filter((one) => words.every((word) => `${one.name} ${one.hint}`.toLowerCase().includes(word)));
  const found = [...named.slice(0, 10), ...said(state, String(dialog.text ?? ""))].slice(0, 14);
  const at = Math.min(dialog.at ?? 0, Math.max(0, found.length - 1));
  const run = (one) => {
    close();
    one?.run();
  };
  const pressed = (event) => {
    const step = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0;
    if (step && found.length) dispatch({ type: "dialog", dialog: { ...dialog, at: (at + step + found.length) % found.length } });
    else if (event.key === "Enter") run(found[at]);
    else return;
    event.preventDefault();
  };
  return h(
    "div",
    { class: "palette-box" },
    h("input", { type: "text", role: "combobox", "aria-expanded": "true", "aria-controls": "palette-list", "aria-activedescendant": found.length ? `palette-${at}` : undefined, "data-first": "", placeholder: "Go to a session, a pool, a place, or to what was said", "aria-label": "go to", autocomplete: "off", value: dialog.text ?? "", oninput: (event) => dispatch({ type: "dialog", dialog: { ...dialog, text: event.target.value, at: 0 } }), onkeydown: pressed }),
    h("ul", { id: "palette-list", role: "listbox", "aria-label": "found" }, found.map((one, key) => h("li", { key, id: `palette-${key}`, role: "option", "aria-selected": String(key === at), class: classes(key === at && "is-picked"), onclick: () => run(one) }, h("span", { class: "ellipsis" }, visible(one.name)), h("span", { class: "muted" }, visible(one.hint))))),
    found.length ? null : h("p", { class: "muted pad" }, "Nothing of that name."),
  );
}
