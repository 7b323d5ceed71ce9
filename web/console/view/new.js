// A new session: pool, folder, first prompt.

import { h } from "../lib/dom.js";
import { visible } from "../lib/text.js";
import { attempt, bus, dispatch, go } from "../state/app.js";
import { begins, Empty, glyph } from "./parts.js";

const FOLDER = "stdio-bus.folder";

/** @param {{state: import("../state/reduce.js").State}} props */
export function NewSession({ state }) {
  const { pools } = state.link;
  if (!bus.may("control")) return h("section", { class: "page" }, h(Empty, { title: "This link may not begin sessions", text: "A link with more rights:", command: "stdio-bus web url --scope control" }));
  if (pools.length === 0) return h("section", { class: "page" }, h(Empty, { title: "No agents yet", text: "This adds those of this machine:", command: "stdio-bus detect --write" }));
  const folders = [...new Set(state.list.map((view) => view.folder).filter(Boolean))].slice(0, 20);
  return h(
    "section",
    { class: "page new", "aria-label": "new session" },
    h("h1", null, "New session"),
    h(
      "form",
      { class: "form", onsubmit: (event) => begin(event) },
      h("fieldset", { class: "pool-choice" }, h("legend", null, "Agent"), pools.map((pool, at) => h("label", { key: pool, class: "choice" }, h("input", { type: "radio", name: "pool", value: pool, ref: begins("checked", at === 0) }), h("span", null, visible(pool)), isDown(state, pool) ? glyph("broken") : null))),
      h("label", { class: "field" }, h("span", null, "Folder"), h("input", { name: "cwd", class: "mono", type: "text", required: true, pattern: "/.*", title: "a path from the root", autocomplete: "off", spellcheck: "false", list: "folders", ref: begins("value", usual(state)) })),
      h("datalist", { id: "folders" }, folders.map((one) => h("option", { key: one, value: one }))),
      h("label", { class: "field" }, h("span", null, "First prompt"), h("textarea", { name: "prompt", rows: "4", placeholder: "What should it do?", onkeydown: (event) => submits(event) })),
      h("div", { class: "choices" }, h("button", { class: "button primary", type: "submit", disabled: state.isBeginning }, state.isBeginning ? "Starting the agent …" : "Begin", h("kbd", null, "⏎"))),
    ),
  );
}

/** Where the last one was, else where the bus has its configuration. @param {any} state */
function usual(state) {
  const config = typeof state.status?.config === "string" ? state.status.config.replace(/\/[^/]*$/, "") : "";
  return localStorage.getItem(FOLDER) || state.list.find((view) => view.folder)?.folder || config || "/";
}

/** Whether none of the pool's processes can be started. @param {any} state @param {string} pool */
const isDown = (state, pool) => state.status?.pools.some((one) => one.id === pool && one.broken > 0 && one.up === 0);

/** @param {KeyboardEvent} event */
function submits(event) {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  /** @type {any} */ (event.target).form.requestSubmit();
}

/** @param {SubmitEvent} event */
async function begin(event) {
  event.preventDefault();
  const form = /** @type {HTMLFormElement} */ (event.target);
  const data = new FormData(form);
  const [pool, cwd, prompt] = ["pool", "cwd", "prompt"].map((name) => String(data.get(name) ?? "").trim());
  dispatch({ type: "beginning", on: true });
  await attempt(async () => {
    const label = await bus.own.open({ pool, cwd });
    localStorage.setItem(FOLDER, cwd);
    go("sessions", label);
    if (prompt) bus.talk.prompt(/** @type {any} */ (bus.sessions.find(label)).id, prompt);
    // What comes next is most likely the next prompt.
    requestAnimationFrame(() => requestAnimationFrame(() => /** @type {any} */ (document.querySelector("sb-prompt textarea"))?.focus()));
  });
  dispatch({ type: "beginning", on: false });
}
