// Keys that hold everywhere on the page, except while something is typed.

import { table } from "../lib/table.js";
import { dispatch, go, store } from "../state/app.js";

const PLACES = table({ w: "waiting", s: "sessions", h: "past", p: "pools", l: "wire" });
let isGoing = false;

/** @param {KeyboardEvent} event */
export function onKey(event) {
  const target = /** @type {HTMLElement} */ (event.target);
  if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
    event.preventDefault();
    dispatch({ type: "dialog", dialog: store.state.dialog ? null : { kind: "palette" } });
    return;
  }
  // The browser closes a dialog that is shown; one that comes with the next frame is closed here.
  if (event.key === "Escape" && store.state.dialog) return dispatch({ type: "dialog", dialog: null });
  if (event.ctrlKey || event.metaKey || event.altKey || store.state.dialog) return;
  const isTyping = /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName) && /** @type {any} */ (target).type !== "radio";
  if (event.key === "Escape") return escaped(target, isTyping);
  if (isTyping) return;
  if (isGoing && PLACES[event.key]) {
    isGoing = false;
    event.preventDefault();
    go(PLACES[event.key]);
    return;
  }
  isGoing = event.key === "g";
  if (event.key === "n") act(event, () => go("new"));
  else if (event.key === "?") act(event, () => dispatch({ type: "dialog", dialog: { kind: "keys" } }));
  else if (event.key === "/") act(event, () => /** @type {any} */ (document.querySelector(".filter"))?.focus());
  else if (event.key === "j" || event.key === "k") act(event, () => move(event.key === "j" ? 1 : -1));
}

/** @param {KeyboardEvent} event @param {() => void} what */
function act(event, what) {
  event.preventDefault();
  what();
}

/** @param {HTMLElement} target @param {boolean} isTyping */
function escaped(target, isTyping) {
  if (isTyping) return target.blur();
  const menu = /** @type {any} */ (document.querySelector("details.menu[open]"));
  if (menu) return void (menu.open = false);
  const { place, id, part } = store.state.route;
  if (store.state.wireRow !== null && place === "wire") dispatch({ type: "wireRow", key: store.state.wireRow });
  else if (part) go(place, id);
  else if (id) go(place);
}

/** The next thing in the list that is shown: a question, a session, a message. @param {number} step */
function move(step) {
  const all = /** @type {HTMLElement[]} */ ([...document.querySelectorAll("main .question, main a.session-row, main a.past-row, main .wire-row, main .pool-row button, main .transcript .tool-head, main .file-head, main .comment-on")]);
  const shown = all.filter((one) => one.getClientRects().length > 0);
  const at = shown.indexOf(/** @type {HTMLElement} */ (document.activeElement?.closest(".question") ?? document.activeElement));
  const next = shown[at < 0 ? (step > 0 ? 0 : shown.length - 1) : Math.max(0, Math.min(shown.length - 1, at + step))];
  next?.focus();
  next?.scrollIntoView({ block: "nearest" });
}
