// A question of an agent: what it wants to do, in full, and the answers that it offers.

import { classes, h } from "../lib/dom.js";
import { folder, hides, plain, visible } from "../lib/text.js";
import { changedCall, nameOf, objects } from "../state/transcript.js";
import { bus, go, note, store } from "../state/app.js";
import { since } from "./parts.js";
import { commandOf, ToolBody } from "./tool.js";
import { Form } from "./form.js";

/** A click that comes sooner than this after the cards have moved was meant for something else. */
const ARM_MS = 300;

/** When each question was first drawn, which on a busy machine is long after it has come. @type {WeakMap<any, number>} */
const drawnAt = new WeakMap();

const VERBS = /** @type {Record<string, string>} */ ({
  execute: "run a command", edit: "change a file", delete: "delete a file", move: "move a file", read: "read", search: "search", fetch: "fetch from the network", switch_mode: "switch its mode", think: "think",
});

const KEYS = /** @type {Record<string, string>} */ ({ allow_once: "a", allow_always: "A", reject_once: "d", reject_always: "D" });

/** The answers, each with its key; a kind that comes twice has a key only once. @param {any[]} options */
export function choices(options) {
  const used = new Set();
  return options.map((option) => {
    const key = used.has(option.kind) ? undefined : KEYS[option.kind];
    used.add(option.kind);
    return { ...option, key };
  });
}

/** @param {any} question @param {any} result @param {string} choice */
function answer(question, result, choice) {
  const moved = Math.max(store.state.armedAt, drawnAt.get(question) ?? 0);
  if (Date.now() - moved >= ARM_MS && question.state === "open") bus.talk.answer(question, result, choice);
}

/** @param {any} question @param {any} option */
const choose = (question, option) => answer(question, { outcome: { outcome: "selected", optionId: option.optionId } }, String(option.name ?? option.kind));

/** An answer whose name says the opposite of what it does. @param {any} option */
const misleads = (option) => option.kind in KEYS && option.kind.startsWith("allow") === /\b(deny|reject|refuse|no|not|never|cancel|don't)\b/i.test(String(option.name));

/** The tool call that a permission is about, with what the agent has said of it before. @param {any} question @param {any} session */
function callOf(question, session) {
  const asked = question.params.toolCall ?? {};
  const known = session?.items.findLast((item) => item.calls?.some((call) => call.id === asked.toolCallId));
  const call = known?.calls.find((one) => one.id === asked.toolCallId);
  const blank = { id: "", title: "", kind: "other", status: "pending", content: [], locations: [], input: undefined, output: undefined, terminal: "", at: 0, end: 0 };
  return changedCall(call ?? blank, asked, 0);
}

/** @param {{question: any, session: any, view: any, canAnswer: boolean, isInline?: boolean}} props */
export function Question({ question, session, view, canAnswer, isInline }) {
  if (question.state !== "open") return h(Decided, { question, session });
  if (!drawnAt.has(question)) drawnAt.set(question, Date.now());
  const isForm = question.method === "elicitation/create";
  const call = isForm ? null : callOf(question, session);
  const who = view?.pool ?? session?.pool ?? "The agent";
  const wants = isForm ? "asks you" : `wants to ${VERBS[call?.kind ?? ""] ?? "do this"}`;
  const options = isForm ? [] : choices(objects(question.params.options));
  return h(
    "article",
    {
      key: question.key, class: "question", tabindex: "0", "data-question": question.key, "aria-label": `${who} ${wants}`,
      onkeydown: (event) => pressed(event, question, options, canAnswer),
    },
    h(
      "header",
      null,
      h("span", { class: "glyph is-waiting", role: "img", "aria-label": "waits for you" }, "◆"),
      h("h3", null, h("strong", null, visible(who)), ` ${wants}`),
      isInline || !session?.label ? null : h("a", { class: "mono label", href: `#/sessions/${session.label}` }, visible(nameOf(session) || view?.title || session.label)),
      h("span", { class: "spacer" }),
      since(question.at),
    ),
    isForm ? h(Form, { question, canAnswer, onanswer: (result, choice) => answer(question, result, choice) }) : [subject(call, view, session), choiceRow(question, options, canAnswer)],
  );
}

/** What is to be allowed, and where. @param {any} call @param {any} view @param {any} session */
function subject(call, view, session) {
  const command = commandOf(call);
  const where = call.input?.cwd ?? call.input?.workdir ?? (view?.folder || session?.cwd);
  const env = call.input?.env && typeof call.input.env === "object" ? Object.entries(call.input.env) : [];
  const isOdd = hides(command || call.title);
  return h(
    "div",
    { class: "subject" },
    command ? h("pre", { class: "code command-line", tabindex: "0" }, h("span", { class: "muted" }, "$ "), visible(command)) : h("p", { class: "mono what" }, visible(call.title || call.locations[0]?.path || "the agent does not say what")),
    isOdd ? h("p", { class: "warn" }, "There are characters in it that cannot be seen. They are shown by number.") : null,
    command && call.title && call.title !== command ? h("p", { class: "muted" }, visible(call.title)) : null,
    where ? h("p", { class: "mono muted" }, "in ", visible(folder(where))) : null,
    env.length ? h("p", { class: "mono muted" }, env.map(([name, value]) => h("span", null, visible(`${name}=${value} `)))) : null,
    h(ToolBody, { call: { ...call, input: command ? undefined : call.input, title: command } }),
  );
}

/** @param {any} question @param {any[]} options @param {boolean} canAnswer */
function choiceRow(question, options, canAnswer) {
  if (!canAnswer) return h("p", { class: "muted" }, "This link may look, but not answer.");
  return h(
    "div",
    { class: "choices" },
    options.map((option) =>
      h(
        "button",
        {
          class: classes("button", String(option.kind).startsWith("allow") ? (option.kind === "allow_once" ? "primary" : "") : "deny"),
          type: "button", title: `${plain(option.name)} (${option.kind})`, "data-kind": option.kind, onclick: () => choose(question, option),
        },
        visible(String(option.name ?? option.kind)),
        misleads(option) ? h("span", { class: "warn" }, plain(String(option.kind).replace("_", " "))) : null,
        option.key ? h("kbd", null, option.key) : null,
      ),
    ),
  );
}

/** @param {KeyboardEvent} event @param {any} question @param {any[]} options @param {boolean} canAnswer */
function pressed(event, question, options, canAnswer) {
  const target = /** @type {HTMLElement} */ (event.target);
  if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName)) return;
  const option = options.find((one) => one.key === event.key);
  if (option && canAnswer) {
    event.preventDefault();
    event.stopPropagation();
    choose(question, option);
  } else if (event.key === "Enter" && target === event.currentTarget) {
    const session = store.state.sessions[question.session];
    if (session?.label) go("sessions", session.label);
    else note("This session has no name yet.");
  }
}

/** Who answered what. @param {{question: any, session: any}} props */
export function Decided({ question, session }) {
  const { state, by, choice } = question;
  const isAllowed = /allow|yes|accept|submit/i.test(choice ?? "");
  const what = question.method === "elicitation/create" ? question.params.message : callOf(question, session).title || commandOf(callOf(question, session));
  const words = state === "withdrawn" ? "no longer asked" : `${choice ?? "answered"}${by ? ` · by ${by === store.state.link.me ? "you, from this page" : by}` : ""}`;
  return h("div", { class: "decided" }, h("span", { class: "mark", "aria-hidden": "true" }, state === "withdrawn" ? "–" : isAllowed ? "✓" : "·"), h("span", { class: "mono ellipsis" }, visible(String(what ?? "question"))), h("span", { class: "muted" }, visible(words)));
}
