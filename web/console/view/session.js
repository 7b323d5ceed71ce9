// A session, live: what was said, who is there, what waits, and a box to write in.

import { asJson, h } from "../lib/dom.js";
import { look } from "../lib/table.js";
import { count, folder, place, plain, visible } from "../lib/text.js";
import { attempt, bus, dispatch, go, note, store } from "../state/app.js";
import { can } from "../state/offers.js";
import { stuck } from "../state/outbox.js";
import { toMarkdown } from "../state/export.js";
import { nameOf, objects } from "../state/transcript.js";
import { Changes, hasChanges } from "./changes.js";
import { copy, Empty, glyph } from "./parts.js";
import { keyOf } from "../state/triage.js";
import { hasChild, Item } from "./items.js";
import { askName, markSession } from "./sessions.js";
import { titleOf } from "./tool.js";
import "../lib/list.js";
import "./prompt.js";

/** @param {{name: string, state: import("../state/reduce.js").State}} props */
export function SessionView({ name, state }) {
  const session = bus.sessions.find(name);
  const view = state.list.find((one) => one.session === (session?.label ?? name));
  const refused = state.unshared[name];
  if (!session) {
    if (refused) return h("section", { class: "session" }, back(), h(Empty, { title: "This session cannot be joined", text: `${plain(refused)}. Its pool may not share its sessions, or it has ended.` }), leftOver(state, name));
    return h("section", { class: "session" }, back(), h("p", { class: "muted pad" }, "joining …"));
  }
  const canAnswer = bus.may("approve") && session.role !== "observe";
  const canPrompt = bus.may("control") && session.role !== "observe";
  return h(
    "section",
    { class: "session", "aria-label": `session ${session.label}`, ...(canPrompt ? { ondragover: (event) => event.preventDefault(), ondrop: dropped } : {}) },
    h("h1", { class: "only-heard narrow" }, "Session"),
    h(Head, { session, view, me: state.link.me, part: state.route.part }),
    state.route.part === "changes" ? h(Changes, { session, state, canPrompt }) : session.items.length === 0 && !session.loading ? h(Empty, { title: "Nothing was said yet", text: canPrompt ? "Write below what the agent should do." : "What the agent says appears here." }) : h("sb-list", { key: session.id, class: "transcript", data: listData(session, view, canAnswer) }),
    state.route.part === "changes" ? null : canPrompt ? h("sb-prompt", { data: { session, out: state.outbox.filter((one) => one.session === session.id), isLive: state.link.status === "live" }, onsent: () => toEnd() }) : [leftOver(state, session.id), h("p", { class: "muted pad" }, why(session))],
  );
}

/** What was written for a session in which nothing can be said any more is still the person's. @param {any} state @param {string} id */
function leftOver(state, id) {
  const entries = stuck(state).filter((one) => one.session === id);
  if (entries.length === 0) return null;
  return h("ol", { class: "queue left-over", "aria-label": "not sent" }, entries.map((one) => h("li", { key: one.key }, h("span", { class: "what" }, "not sent: "), h("span", null, visible(one.text)), h("button", { class: "link", type: "button", onclick: () => copy(one.text, (text) => note(`It ${text}.`)) }, "copy"), h("button", { class: "link", type: "button", onclick: () => bus.talk.takeBack(one) }, "discard"))));
}

/** Why there is no box to write in. @param {any} session */
function why(session) {
  if (bus.may("control")) return "You look on. Take part by the button above.";
  return bus.may("approve") && session.role !== "observe" ? "This link may answer questions, but not prompt." : "This link may only look.";
}

const itemKey = (item) => item.key;

/** @param {any} session @param {any} view @param {boolean} canAnswer */
function listData(session, view, canAnswer) {
  // An item that is as it was is not made again: only what it shows of its session goes in.
  const of = { id: session.id, label: session.label, cwd: session.cwd, pool: session.pool };
  const row = (item) => {
    const isRich = item.kind === "question" || hasChild(item);
    return h(Item, { item, session: isRich ? session : memo(of), view: isRich ? view : null, canAnswer, children: isRich ? session.children : undefined });
  };
  return { items: session.items, row, keyOf: itemKey, estimate: roughHeight, follow: true, label: "what was said" };
}

/** What was said stands in lines of about a hundred characters; what is folded is a line. @param {any} item */
export const roughHeight = ({ kind, text, open }) => 44 + (typeof text === "string" && (open || kind === "agent" || kind === "user") ? Math.min(10_000, Math.floor(text.length / 100) * 20) : 0);

/** @type {Map<string, any>} */
const kept = new Map();

/** The same object for the same session. @param {any} of */
function memo(of) {
  const known = kept.get(of.id);
  if (known && known.label === of.label) return known;
  if (kept.size > 50) kept.clear();
  kept.set(of.id, of);
  return of;
}

/** @param {DragEvent} event */
function dropped(event) {
  event.preventDefault();
  if (event.dataTransfer?.files.length) /** @type {any} */ (document.querySelector("sb-prompt"))?.add([...event.dataTransfer.files]);
}

const toEnd = () => /** @type {any} */ (document.querySelector(".transcript"))?.toEnd();

const back = () => h("a", { class: "back", href: "#/sessions", "aria-label": "back to sessions" }, "‹", h("span", { class: "back-name" }, " Sessions"));

/** @param {{session: any, view: any, me: string, part: string}} props */
function Head({ session, view, me, part }) {
  const isAsking = store.state.questions.some((question) => question.session === session.id);
  const mood = isAsking ? "waiting" : session.turn === "running" ? "running" : (view?.mood ?? "idle");
  const where = folder(view?.folder || session.cwd);
  const title = (view && look(store.state.marks, keyOf(view))?.name) || nameOf(session) || view?.title || session.label;
  const settings = [...pickers(session), ...roles(session)];
  return h(
    "header",
    { class: "session-head" },
    back(),
    h("div", { class: "session-title" }, glyph(mood), h("h2", { class: "ellipsis" }, visible(title)), title === session.label ? null : h("span", { class: "mono muted" }, session.label)),
    h("div", { class: "session-facts muted" }, h("span", null, visible(view ? place(view) : (session.pool ?? ""))), where ? h("span", { class: "mono" }, visible(where)) : null, h(Presence, { session, me }), usage(session.usage), session.background.length ? h("span", { class: "num", title: "work that goes on by itself" }, `${session.background.length} in the background`) : null),
    h("div", { class: "session-tools" }, part === "changes" ? h("a", { class: "button", href: `#/sessions/${encodeURIComponent(session.label)}` }, "Talk") : hasChanges(session) ? h("a", { class: "button", href: `#/sessions/${encodeURIComponent(session.label)}/changes` }, "Changes") : null, menu(session, view, title)),
    settings.length ? h("div", { class: "session-settings" }, settings) : null,
    session.truncated ? h("p", { class: "muted" }, "What was said first is no longer kept.") : null,
  );
}

/** Who owns it, who else is there. @param {{session: any, me: string}} props */
function Presence({ session, me }) {
  const name = (client) => (client === me ? "you" : plain(client));
  const others = session.guests.filter((guest) => guest.client !== session.owner);
  return h(
    "span",
    { class: "presence" },
    h("span", { class: "chip", title: "owns the session: its files, its terminal" }, session.owner ? `${name(session.owner)} own${session.owner === me ? "" : "s"} it` : "nobody owns it"),
    others.slice(0, 4).map((guest) => h("span", { key: guest.client, class: "chip" }, guest.client === me ? `you ${guest.role === "observe" ? "watch" : "take part"}` : `${plain(guest.client)} ${guest.role === "observe" ? "watches" : "controls"}`)),
    others.length > 4 ? h("span", { class: "chip" }, `${others.length - 4} more`) : null,
  );
}

/** @param {any} used */
function usage(used) {
  if (!used) return null;
  const tokens = used.used ?? used.totalTokens;
  const parts = [tokens !== undefined ? `${count(Number(tokens))}${used.size ? ` of ${count(Number(used.size))}` : ""} tokens` : "", used.cost?.amount !== undefined ? `${Number(used.cost.amount).toFixed(2)} ${used.cost.currency ?? ""}` : ""];
  return h("span", { class: "num", title: "usage" }, parts.filter(Boolean).join(" · "));
}

/** The settings for who only looks on. @param {any} session */
function settled(session) {
  const mode = objects(session.modes?.availableModes).find((one) => one.id === session.modes.currentModeId);
  const model = objects(session.models?.availableModels).find((one) => one.modelId === session.models.currentModelId);
  const options = objects(session.options).filter((option) => !(option.category === "mode" && mode));
  const valueName = (option) => objects(option.options).flatMap((one) => (one.options ? objects(one.options) : [one])).find((one) => one.value === option.currentValue)?.name ?? option.currentValue;
  return [mode ? fixed("mode", mode.name ?? mode.id) : null, model ? fixed("model", model.name ?? model.modelId) : null, ...options.map((option) => fixed(option.name ?? option.id ?? option.configId, valueName(option)))].filter(Boolean);
}

/** @param {any} session */
function pickers(session) {
  if (!bus.may("control") || session.role === "observe") return settled(session);
  const out = /** @type {any[]} */ ([]);
  const flat = (options) => objects(options).flatMap((one) => (one.options ? objects(one.options) : [one]));
  const [modes, models] = [objects(session.modes?.availableModes), objects(session.models?.availableModels)];
  if (modes.length) out.push(picker("mode", modes.map((mode) => [mode.id, mode.name]), session.modes.currentModeId, (value) => bus.talk.choose(session.id, "mode", value)));
  if (models.length) out.push(picker("model", models.map((model) => [model.modelId, model.name]), session.models.currentModelId, (value) => bus.talk.choose(session.id, "model", value)));
  for (const option of objects(session.options)) {
    const id = option.id ?? option.configId;
    const name = option.name ?? id;
    if (option.category === "mode" && modes.length) continue;
    if (option.type === "select") out.push(picker(name, flat(option.options).map((one) => [one.value, one.name]), option.currentValue, (value) => bus.talk.choose(session.id, "option", value, id)));
    else if (option.type === "boolean") out.push(toggle(name, option.currentValue === true, (value) => bus.talk.choose(session.id, "option", value, id)));
    else out.push(fixed(name, option.currentValue));
  }
  return out;
}

/** @param {string} label @param {[string, string][]} values @param {string} current @param {(value: string) => any} change */
const picker = (label, values, current, change) =>
  h(
    "label",
    { class: "picker", key: label },
    h("span", { class: "muted" }, visible(String(label).toLowerCase())),
    h("select", { value: current, onchange: (event) => attempt(() => change(event.target.value)) }, values.map(([value, name]) => h("option", { key: value, value, selected: value === current }, plain(name ?? value)))),
  );

/** @param {string} label @param {boolean} current @param {(value: boolean) => any} change */
const toggle = (label, current, change) =>
  h("label", { class: "picker", key: label }, h("input", { type: "checkbox", checked: current, onchange: (event) => attempt(() => change(event.target.checked)) }), h("span", { class: "muted" }, visible(String(label).toLowerCase())));

/** A setting that cannot be changed here. @param {unknown} label @param {unknown} value */
const fixed = (label, value) => h("span", { class: "picker muted", key: String(label) }, visible(`${String(label).toLowerCase()}: ${typeof value === "object" ? asJson(value, 80) : String(value)}`));

/** @param {any} session */
function roles(session) {
  if (session.role === "owner" || !bus.may("control")) return [];
  const turn = (role) => attempt(() => bus.sessions.join(session.id, { role, history: role === "control" ? "pending" : "none" }));
  return [
    session.role === "observe"
      ? h("button", { class: "button", type: "button", onclick: () => turn("control") }, "Take part")
      : h("button", { class: "button", type: "button", title: "hear everything, be asked nothing", onclick: () => turn("observe") }, "Only watch"),
    h("button", { class: "button", type: "button", title: "become the owner; the old one stays as a guest", onclick: () => attempt(() => bus.talk.take(session.id)) }, "Take over"),
  ];
}

/** @param {any} session @param {any} view @param {string} title */
const menu = (session, view, title) =>
  h(
    "details",
    { class: "menu" },
    h("summary", { class: "button", "aria-label": "more" }, "⋯"),
    h(
      "div",
      { class: "menu-items" },
      view ? marks(view, title) : null,
      bus.may("control") && session.pool && can(store.state.offers[session.pool], "fork") ? item("Fork", () => attempt(async () => go("sessions", await bus.own.fork(session)))) : null,
      item("Export as Markdown", () => save(session, "md")),
      item("Export as JSON", () => save(session, "json")),
      item("Copy a link", () => copy(`${location.origin}${location.pathname}#/sessions/${session.label}`, (text) => note(`The link ${text}.`))),
      item("Show on the wire", () => {
        dispatch({ type: "filter", place: "wire", text: session.label });
        go("wire");
      }),
      session.role === "owner" ? item("Close the session", () => dispatch({ type: "dialog", dialog: { kind: "confirm", title: "Close this session?", text: "The agent ends it. What was said is lost unless the agent keeps it.", label: "Close it", act: () => closeSession(session) } })) : null,
    ),
  );

/** What a person does to the session in the list. @param {any} view @param {string} title */
function marks(view, title) {
  const mark = look(store.state.marks, keyOf(view));
  return [
    item(mark?.pin ? "Unpin" : "Pin", () => markSession(view, { pin: !mark?.pin })),
    item("Rename", () => askName(view, title)),
    item(mark?.archived ? "Bring back from the archive" : "Archive", () => markSession(view, { archived: !mark?.archived })),
  ];
}

/** @param {string} label @param {() => void} act */
const item = (label, act) =>
  h("button", { class: "menu-item", type: "button", onclick: (event) => {
    event.target.closest("details").open = false;
    act();
  } }, label);

/** @param {any} session */
async function closeSession(session) {
  await bus.ask("session/close", { sessionId: session.id });
  dispatch({ type: "dropped", session: session.id });
  go("sessions");
}

/** @param {any} session @param {"md" | "json"} kind */
export function save(session, kind) {
  const now = store.state.sessions[session.id] ?? session;
  const text = kind === "md" ? toMarkdown(now, (call) => `${titleOf(call)} (${call.status})`, store.state.verdicts) : JSON.stringify({ session: now.label, title: now.title, items: now.items, usage: now.usage }, null, 2);
  const address = URL.createObjectURL(new Blob([text], { type: kind === "md" ? "text/markdown" : "application/json" }));
  const link = document.createElement("a");
  link.href = address;
  link.download = `${now.label || "session"}.${kind}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}
