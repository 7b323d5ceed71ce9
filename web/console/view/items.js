// What was said in a session, item by item.

import { asJson, classes, classWord, h } from "../lib/dom.js";
import { duration, hides, visible } from "../lib/text.js";
import { markdown } from "../lib/markdown.js";
import { look, table } from "../lib/table.js";
import { stopWords } from "../lib/explain.js";
import { dispatch, store } from "../state/app.js";
import { ErrorBox } from "./parts.js";
import { Question } from "./question.js";
import { Tools } from "./tool.js";
import { turnOf, Waterfall } from "./waterfall.js";

/** @param {{session: any, item: any, view: any, canAnswer: boolean}} props */
export function Item({ session, item, view, canAnswer }) {
  switch (item.kind) {
    case "user":
      return h("div", { class: "item user" }, h("div", { class: "who" }, item.mine ? "you" : visible(item.by ?? "prompt")), h("div", { class: "said" }, visible(item.text)));
    case "agent":
      return h("div", { class: classes("item agent prose", item.goesOn && "goes-on") }, markdown(item.text), hides(item.text) && /[\u202a-\u202e\u2066-\u2069]/.test(item.text) ? h("p", { class: "warn" }, "This text turns its direction.") : null);
    case "thought":
      return h(Thought, { session: session.id, item });
    case "tools":
      return h("div", { class: "item" }, h(Tools, { session: session.id, item }));
    case "plan":
      return h("div", { class: "item" }, h(Plan, { entries: item.entries }));
    case "question":
      return h("div", { class: "item" }, h(Question, { question: item.question, session, view, canAnswer, isInline: true }));
    case "turn":
      return h(Turn, { session, item });
    case "unshown":
      return h("details", { class: "item unshown muted" }, h("summary", null, "this could not be shown"), h("pre", { class: "code", tabindex: "0" }, visible(asJson(item.update, 20_000))));
    case "error":
      return h("div", { class: "item" }, h(ErrorBox, { error: item.error }));
    default:
      return h("p", { class: "item note muted" }, visible(item.text ?? ""));
  }
}

/** @param {{session: string, item: any}} props */
function Thought({ session, item }) {
  const took = item.at && item.end ? ` for ${duration(item.end - item.at)}` : "";
  const words = item.end || !item.at ? `thought${took}` : "thinking";
  return h(
    "div",
    { class: "item thought" },
    h("button", { class: "fold-line", type: "button", "aria-expanded": String(!!item.open), onclick: () => dispatch({ type: "toggle", session, key: item.key, open: !item.open }) }, h("span", { "aria-hidden": "true" }, "┄ "), words),
    item.open ? h("div", { class: "prose muted" }, markdown(item.text)) : null,
  );
}

const BOXES = table({ completed: "☑", in_progress: "◐", pending: "☐" });

/** @param {{entries: any[]}} props */
export function Plan({ entries }) {
  const done = entries.filter((entry) => entry.status === "completed").length;
  return h(
    "section",
    { class: "plan", "aria-label": "plan" },
    h("div", { class: "plan-head muted" }, "plan ", h("span", { class: "num" }, `${done}/${entries.length}`)),
    h("ul", null, entries.map((entry, key) => h("li", { key, class: `is-${classWord(entry.status)}` }, h("span", { class: "box", role: "img", "aria-label": String(entry.status).replace("_", " ") }, look(BOXES, entry.status) ?? "☐"), visible(String(entry.content ?? ""))))),
  );
}

/** The end of a turn; opened, it tells where the time went. @param {{session: any, item: any}} props */
function Turn({ session, item }) {
  const words = `${stopWords(item.reason)}${item.took ? ` in ${duration(item.took)}` : ""}`;
  return h(
    "div",
    { class: classes("item turn", item.reason === "error" && "is-failed") },
    item.took
      ? h("button", { class: "turn-line", type: "button", "aria-expanded": String(!!item.open), title: "where did the time go", onclick: () => dispatch({ type: "toggle", session: session.id, key: item.key, open: !item.open }) }, words)
      : h("span", { class: "turn-line" }, words),
    item.open ? h(Waterfall, turnOf(store.state.sessions[session.id]?.items ?? [], item)) : null,
  );
}
