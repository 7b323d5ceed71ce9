// A new session: pool, folder, what its agent is set to, first prompt.

import { h } from "../lib/dom.js";
import { folder, visible } from "../lib/text.js";
import { attempt, bus, dispatch, go } from "../state/app.js";
import { choicesOf, offerWords } from "../state/offers.js";
import { begins, Empty, glyph } from "./parts.js";

/** @param {{state: import("../state/reduce.js").State}} props */
export function NewSession({ state }) {
  const { pools } = state.link;
  if (!bus.may("control")) return h("section", { class: "page" }, h(Empty, { title: "This link may not begin sessions", text: "A link with more rights:", command: "stdio-bus web url --scope control" }));
  if (pools.length === 0) return h("section", { class: "page" }, h(Empty, { title: "No agents yet", text: "This adds those of this machine:", command: "stdio-bus detect --write" }));
  const folders = [...new Set([...state.folders, ...state.list.map((view) => view.folder).filter(Boolean)])].slice(0, 20);
  const chosen = [state.newPool, state.primer?.pool, pools[0]].find((pool) => pool && pools.includes(pool)) ?? pools[0];
  return h(
    "section",
    { class: "page new", "aria-label": "new session" },
    h("h1", null, "New session"),
    h(
      "form",
      { class: "form", onsubmit: (event) => begin(event, state) },
      h("fieldset", { class: "pool-choice" }, h("legend", null, "Agent"), pools.map((pool) => h("label", { key: pool, class: "choice" }, h("input", { type: "radio", name: "pool", value: pool, checked: pool === chosen, onchange: () => dispatch({ type: "newPool", pool }) }), h("span", null, visible(pool)), isDown(state, pool) ? glyph("broken") : null))),
      h(Offers, { key: `offers ${chosen}`, pool: chosen, offer: state.offers[chosen], view: state.status?.pools.find((one) => one.id === chosen) ?? null }),
      h("label", { class: "field" }, h("span", null, "Folder"), h("input", { name: "cwd", class: "mono", type: "text", required: true, pattern: "/.*", title: "a path from the root", autocomplete: "off", spellcheck: "false", list: "folders", ref: begins("value", state.primer?.cwd || usual(state)) })),
      h("datalist", { id: "folders" }, folders.map((one) => h("option", { key: one, value: one }))),
      folders.length > 1 ? h("div", { class: "folders", role: "group", "aria-label": "last folders" }, folders.slice(0, 5).map((one) => h("button", { key: one, class: "button small mono", type: "button", onclick: (event) => fill(event, one) }, visible(folder(one))))) : null,
      h("label", { class: "field" }, h("span", null, "First prompt"), h("textarea", { name: "prompt", rows: state.primer ? "14" : "4", placeholder: "What should it do?", ref: begins("value", state.primer?.text ?? ""), onkeydown: (event) => submits(event) })),
      h("div", { class: "choices" }, h("button", { class: "button primary", type: "submit", disabled: state.isBeginning }, state.isBeginning ? "Starting the agent …" : "Begin", matchMedia("(pointer: coarse)").matches ? null : h("kbd", null, "⏎"))),
    ),
  );
}

/** What the agent of a pool is, and what can be set before it begins. @param {{pool: string, offer: any, view: any}} props */
function Offers({ pool, offer, view }) {
  const choices = choicesOf(offer);
  const words = [offerWords(offer), view ? `${view.sessions} of ${view.max_sessions * Math.max(view.max_instances, view.workers.length, 1)} sessions` : ""].filter(Boolean).join(" · ");
  return h(
    "div",
    { class: "offers" },
    h("p", { class: "muted" }, visible(words || "What it offers is known after its first session here.")),
    choices.length
      ? h("div", { class: "offer-choices" }, choices.map((choice) => h("label", { key: choice.id, class: "field" }, h("span", { class: "muted" }, visible(choice.name)), h("select", { name: `set ${pool} ${choice.what} ${choice.id}` }, h("option", { value: "", selected: true }, "as the agent likes"), choice.values.map(([, name], at) => h("option", { key: at, value: String(at) }, visible(name)))))))
      : null,
  );
}

/** @param {Event} event @param {string} path */
function fill(event, path) {
  const input = /** @type {any} */ (/** @type {HTMLElement} */ (event.target).closest("form")).elements.namedItem("cwd");
  input.value = path;
  input.focus();
}

/** Where the last one was, else where the bus has its configuration. @param {any} state */
function usual(state) {
  const config = typeof state.status?.config === "string" ? state.status.config.replace(/\/[^/]*$/, "") : "";
  return state.folders[0] || state.list.find((view) => view.folder)?.folder || config || "/";
}

/** Whether none of the pool's processes can be started. @param {any} state @param {string} pool */
const isDown = (state, pool) => state.status?.pools.some((one) => one.id === pool && one.broken > 0 && one.up === 0);

/** @param {KeyboardEvent} event */
function submits(event) {
  const isPlain = !event.ctrlKey && !event.metaKey && matchMedia("(pointer: coarse)").matches;
  if (event.key !== "Enter" || event.shiftKey || event.isComposing || isPlain) return;
  event.preventDefault();
  /** @type {any} */ (event.target).form.requestSubmit();
}

/** @param {SubmitEvent} event @param {import("../state/reduce.js").State} state */
async function begin(event, state) {
  event.preventDefault();
  const form = /** @type {HTMLFormElement} */ (event.target);
  const data = new FormData(form);
  const [pool, cwd, prompt] = ["pool", "cwd", "prompt"].map((name) => String(data.get(name) ?? "").trim());
  const wanted = choicesOf(state.offers[pool]).flatMap((choice) => {
    const at = data.get(`set ${pool} ${choice.what} ${choice.id}`);
    return at ? [{ ...choice, value: choice.values[Number(at)]?.[0] }] : [];
  });
  dispatch({ type: "beginning", on: true });
  await attempt(async () => {
    const label = await bus.own.open({ pool, cwd });
    const { id } = /** @type {any} */ (bus.sessions.find(label));
    // One that cannot be set is said to be, and the session begins all the same.
    for (const { what, id: option, value } of wanted) await attempt(() => bus.talk.choose(id, what, value, option));
    dispatch({ type: "folder", cwd });
    dispatch({ type: "primer", primer: null });
    go("sessions", label);
    if (prompt) bus.talk.prompt(id, prompt);
    // What comes next is most likely the next prompt.
    focusBox(label);
  });
  dispatch({ type: "beginning", on: false });
}

/** The box of this session gets the focus once it is drawn, unless something else has it by then. @param {string} label */
function focusBox(label, frames = 600) {
  const area = /** @type {any} */ (document.querySelector(".prompt-box textarea"));
  if (area) return document.activeElement === document.body && area.focus();
  if (frames > 0 && location.hash.endsWith(`/${label}`)) requestAnimationFrame(() => focusBox(label, frames - 1));
}
