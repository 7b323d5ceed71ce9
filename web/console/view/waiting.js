// Waiting for you: every open question of every session, the oldest first.

import { h } from "../lib/dom.js";
import { plural, visible } from "../lib/text.js";
import { bus } from "../state/app.js";
import { rootOf, sessionOf } from "../state/questions.js";
import { Notices } from "./notices.js";
import { Empty, glyph } from "./parts.js";
import { Decided, Question } from "./question.js";

/** @param {{state: import("../state/reduce.js").State}} props */
export function Waiting({ state }) {
  const questions = [...state.questions].sort((one, other) => one.at - other.at);
  const elsewhere = state.list.filter((view) => view.questions > 0 && !questions.some((question) => rootOf(state, question.session)?.label === view.session));
  const answered = state.answered.slice(-5).reverse();
  return h(
    "section",
    { class: "waiting page", "aria-label": "waiting for you" },
    h("h1", null, questions.length ? `${plural(questions.length, "question")} for you` : "Waiting for you"),
    h(Notices, { notices: state.notices }),
    questions.length === 0 && elsewhere.length === 0 ? h(Calm, { state }) : null,
    h("div", { class: "cards" }, questions.map((question) => card(question, state))),
    elsewhere.length ? h("div", { class: "elsewhere" }, h("h2", null, "Asked elsewhere"), elsewhere.slice(0, 20).map((view) => other(view, state)), elsewhere.length > 20 ? h("p", { class: "muted" }, `and ${elsewhere.length - 20} more`) : null) : null,
    answered.length ? h("div", { class: "answered" }, h("h2", null, "Answered"), answered.map((question) => h(Decided, { key: question.key, question, session: sessionOf(state, question.session) }))) : null,
  );
}

/** @param {any} question @param {any} state */
function card(question, state) {
  const root = rootOf(state, question.session);
  const session = root && question.session !== root.id ? { ...root, items: sessionOf(state, question.session)?.items ?? [] } : root;
  const view = state.list.find((one) => one.session === session?.label);
  return h(Question, { key: question.key, question, session, view, canAnswer: bus.may("approve") });
}

/** A question that this page is not asked. @param {any} view @param {any} state */
function other(view, state) {
  const why = state.unshared[view.session];
  return h("p", { key: view.session, class: "decided" }, glyph("waiting"), h("a", { href: `#/sessions/${view.session}` }, visible(view.asked || view.title || view.session)), h("span", { class: "muted" }, `${view.asked ? `${view.title || view.session} · ` : ""}${view.pool ?? ""} · ${why ? "not shared: answer it in its own client" : bus.may("approve") ? "comes next" : "this link may not answer"}`));
}

/** @param {{state: any}} props */
function Calm({ state }) {
  const running = state.list.filter((view) => view.mood === "running").length;
  if (!state.listed) return h("p", { class: "muted" }, "looking …");
  if (state.link.pools.length === 0) return h(Empty, { title: "No agents yet", text: "This adds those of this machine:", command: "stdio-bus detect --write" });
  const text = running ? `${plural(running, "session")} at work. When an agent needs you, it is shown here.` : state.list.length ? "Nobody needs you. When an agent asks something, it is shown here." : h("span", null, "No session is open. ", h("a", { href: "#/new" }, "Begin one"), ", or start your editor.");
  return h("div", { class: "calm" }, h("p", { class: "calm-sign", "aria-hidden": "true" }, "✓"), h("p", null, text));
}
