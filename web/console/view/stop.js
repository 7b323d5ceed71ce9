// Stop that stops: it cancels the turn, and where that has no effect it offers to restart the process.

import { h } from "../lib/dom.js";
import { place, plain, plural } from "../lib/text.js";
import { attempt, bus, dispatch, note, store } from "../state/app.js";
import { othersOf } from "../state/triage.js";

/** @param {{session: string, label: string, stopAt: number, isStuck: boolean}} props */
export function StopButton({ session, label, stopAt, isStuck }) {
  if (isStuck) return h("button", { class: "button deny stop", type: "button", title: "restart the agent's process", onclick: () => forceStop(label) }, "Force stop");
  if (stopAt) return h("button", { class: "button stop", type: "button", title: "the agent was told to stop", onclick: () => bus.talk.stop(session) }, "Stopping …");
  return h("button", { class: "button stop", type: "button", title: "stop the turn", onclick: () => bus.talk.stop(session) }, "Stop");
}

const SHOWN = 5;

/** What others have named, in a sentence of ours. @param {unknown} name */
const quoted = (name) => plain(name).replaceAll("`", "'").slice(0, 60);

/** Whom else a restart hits, in words. @param {any[]} others */
function hits(others) {
  if (others.length === 0) return "No other session is in this process.";
  const names = others.slice(0, SHOWN).map((view) => `${view.session}${view.title ? ` “${quoted(view.title)}”` : ""}${view.client ? ` of ${quoted(view.client)}` : ""}${view.mood === "running" ? ", at work" : ""}`);
  const more = others.length > SHOWN ? `, and ${others.length - SHOWN} more` : "";
  return `${plural(others.length, "other session")} in this process ${others.length === 1 ? "is" : "are"} hit too: ${names.join("; ")}${more}.`;
}

/** Asks first, and says whom it hits; who may not do it is told how it is done. @param {string} label */
export function forceStop(label) {
  const { list } = store.state;
  const view = list.find((one) => one.session === label);
  if (!view || view.worker === null || view.worker === undefined) return note("No process works for this session any more.");
  const who = hits(othersOf(list, view));
  const name = `${view.pool}/${view.worker}`;
  if (!bus.may("admin")) {
    dispatch({ type: "dialog", dialog: { kind: "note", title: "This link may not restart processes", text: `A link of the scope admin may (\`stdio-bus web url --scope admin\`), or in a terminal: \`stdio-bus restart --now ${name}\`. ${who}` } });
    return;
  }
  const text = `The process ${place(view)} is ended now and started again. The turns in it are answered with an error; sessions go on in the new process where the agent can load them. ${who}`;
  dispatch({ type: "dialog", dialog: { kind: "confirm", title: `Force stop ${label}?`, text, label: "Force stop", act: () => attempt(() => bus.ask("_bus/restart", { pool: view.pool, worker: view.worker, now: true })) } });
}
