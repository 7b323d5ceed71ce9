// Prompts that the agent does not have yet: why they wait, and what can be done with them.

import { h } from "../lib/dom.js";
import { look, table } from "../lib/table.js";
import { plural, visible } from "../lib/text.js";
import { bus, dispatch } from "../state/app.js";
import { nextFrame } from "../state/store.js";

/** @typedef {import("../state/outbox.js").Entry} Entry */

/** What is said of a prompt that the agent does not have yet. */
const STATES = table({ queued: "waits: ", unsent: "not sent yet: ", sent: "on its way: ", waits: "waits: ", unsure: "may not have arrived: ", refused: "was refused: " });

/** @param {{out: Entry[], editing: string | null, session: string, edit: (key: string | null) => void, takeBack: (entry: Entry) => void}} props */
export function Queue({ out, editing, session, edit, takeBack }) {
  const queued = out.filter((one) => one.state === "queued");
  return h(
    "div",
    { class: "queue-box" },
    h("ol", { class: "queue", "aria-label": "waiting prompts" }, out.map((one) => h("li", { key: one.key, "data-prompt": one.key, class: `is-${one.state}` }, one.key === editing ? editor(one, edit) : line(one, queued, edit, takeBack)))),
    queued.some((one) => one.isHeld) ? h("p", { class: "held" }, "You stopped the turn, so these are held. ", h("button", { class: "link", type: "button", onclick: () => bus.talk.goOn(session) }, "Go on with them")) : null,
  );
}

/** @param {Entry} one @param {Entry[]} queued @param {(key: string) => void} edit @param {(entry: Entry) => void} takeBack */
function line(one, queued, edit, takeBack) {
  const isMine = one.state === "unsure" || one.state === "refused";
  const place = queued.indexOf(one);
  const act = (name, label, run) => h("button", { key: name, class: "link", type: "button", "aria-label": label, title: label, onclick: run }, name);
  return [
    h("span", { class: "what" }, look(STATES, one.state)),
    h("span", { class: "ellipsis" }, visible(one.text), one.parts?.length ? h("span", { class: "muted" }, ` with ${plural(one.parts.length, "attachment")}`) : null),
    isMine ? h("button", { class: "link", type: "button", onclick: () => bus.talk.sendAgain(one) }, "send again") : null,
    place > 0 ? act("↑", "earlier", () => move(one.key, "earlier")) : null,
    place >= 0 && place < queued.length - 1 ? act("↓", "later", () => move(one.key, "later")) : null,
    place >= 0 ? act("edit", "edit", () => edit(one.key)) : null,
    place >= 0 ? act("send now", "send now, although a turn is running", () => bus.talk.sendAgain(one)) : null,
    // What is on its way is no longer here.
    one.state === "sent" ? null : h("button", { class: "link", type: "button", onclick: () => takeBack(one) }, "take back"),
  ];
}

/** The focus goes with the prompt; where it cannot go on in this direction, to the other one. @param {string} key @param {"earlier" | "later"} where */
function move(key, where) {
  dispatch({ type: "outMoved", key, step: where === "earlier" ? -1 : 1 });
  nextFrame(() => {
    const line = document.querySelector(`[data-prompt="${CSS.escape(key)}"]`);
    /** @type {HTMLElement | null | undefined} */ (line?.querySelector(`[aria-label="${where}"]`) ?? line?.querySelector('[aria-label="earlier"], [aria-label="later"]'))?.focus();
  });
}

/** @param {Entry} one @param {(key: string | null) => void} edit */
function editor(one, edit) {
  const save = (area) => {
    const text = area.value.trim();
    if (text || one.parts?.length) dispatch({ type: "outChanged", key: one.key, text });
    edit(null);
  };
  const pressed = (event) => {
    event.stopPropagation();
    if (event.key === "Escape") edit(null);
    else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) save(event.target);
    else return;
    event.preventDefault();
  };
  const begin = (area) => {
    area.value = one.text;
    queueMicrotask(() => area.focus());
  };
  return [h("textarea", { class: "edit", rows: "2", "aria-label": "change this prompt", ref: begin, onkeydown: pressed }), h("button", { class: "button small", type: "button", onclick: (event) => save(event.target.closest("li").querySelector("textarea")) }, "Save")];
}
