// A question of an agent: what it wants to do, in full, and the answers that it offers.

import { classes, h } from "../lib/dom.js";
import { bytes, plain, visible } from "../lib/text.js";
import { look, table } from "../lib/table.js";
import { changedCall } from "../state/calls.js";
import { callOf, nameOf, objects } from "../state/transcript.js";
import { blocksOf, commandOf, misleads, refuses, SHOWN_MAX, sizeOf, verbOf, verdictOf } from "../state/asked.js";
import { bus, dispatch, go, note, store } from "../state/app.js";
import { nextFrame } from "../state/store.js";
import { rootOf } from "../state/questions.js";
import { isArmed, noteDrawn } from "./guard.js";
import { since } from "./parts.js";
import { Form } from "./form.js";
import { Subject } from "./subject.js";

const KEYS = table({ allow_once: "a", allow_always: "A", reject_once: "d", reject_always: "D" });
const BLANK = { id: "", title: "", kind: "other", status: "pending", content: [], locations: [], input: undefined, output: undefined, terminal: "", at: 0, end: 0 };

/** The answers, each with its key; a kind that comes twice has a key only once. @param {any[]} options */
export function choices(options) {
  const used = new Set();
  return options.map((option) => {
    const key = used.has(option.kind) ? undefined : look(KEYS, option.kind);
    used.add(option.kind);
    return { ...option, key };
  });
}

/** Answers, unless the card has only just become what it is. @param {any} question @param {any} result @param {{choice: string, verdict?: string}} how @param {Event} event */
function answer(question, result, how, event) {
  const card = /** @type {Element | null} */ (/** @type {any} */ (event.target)?.closest?.(".question"));
  const row = event.type === "keydown" ? null : (card?.querySelector(".choices") ?? null);
  if (question.state !== "open") return;
  if (!isArmed(question.key, row)) return tooSoon(card);
  const next = nextFocus(card);
  if (!bus.talk.answer(question, result, how)) return note("The bus does not answer at the moment, so nothing was sent.");
  // The page has drawn by then, and the card is gone. Who has gone elsewhere since stays there.
  nextFrame(() => document.activeElement === document.body && next()?.focus({ preventScroll: true }));
}

/** Where the focus goes when a card that has it is answered: to the next card that waits, else to what is around it. @param {Element | null} card */
function nextFocus(card) {
  if (!card?.contains(document.activeElement)) return () => null;
  const cards = /** @type {HTMLElement[]} */ ([...document.querySelectorAll("main .question")]);
  const at = cards.indexOf(/** @type {HTMLElement} */ (card));
  const others = [...cards.slice(at + 1), ...cards.slice(0, at).reverse()];
  return () => others.find((one) => one.isConnected) ?? document.getElementById("main");
}

/** @param {Element | null} card */
function tooSoon(card) {
  dispatch({ type: "say", text: "The card has only just changed: look at it again, then answer." });
  card?.animate([{ opacity: 0.5 }, { opacity: 1 }], 300);
}

/** @param {any} question @param {any} option @param {boolean} isFolded @param {Event} event */
function choose(question, option, isFolded, event) {
  // Who allows has seen all of it.
  if (isFolded && !refuses(option)) return dispatch({ type: "unfold", key: question.key, at: Date.now() });
  const result = { outcome: { outcome: "selected", optionId: option.optionId } };
  return answer(question, result, { choice: String(option.name ?? option.kind), verdict: verdictOf(option) }, event);
}

/** What the agent has said of the call before it asked. @param {any} question @param {any} session */
function knownCall(question, session) {
  return callOf(session, question.params.toolCall?.toolCallId);
}

/** What each question was found to ask for: it may be long, and cards are drawn often. @type {WeakMap<any, {known: any, folder: any, call: any, blocks: any[]}>} */
const read = new WeakMap();

/** @param {any} question @param {any} known @param {string | undefined} folder */
function readOf({ params }, known, folder) {
  const before = read.get(params);
  if (before && before.known === known && before.folder === folder) return before;
  const call = changedCall(known ?? BLANK, params.toolCall ?? {}, 0);
  const found = { known, folder, call, blocks: blocksOf(call, folder) };
  read.set(params, found);
  return found;
}

/** @param {{question: any, session: any, view: any, canAnswer: boolean, isInline?: boolean}} props */
export function Question({ question, session, view, canAnswer, isInline }) {
  if (question.state !== "open") return h(Decided, { question, session });
  const isForm = question.method === "elicitation/create";
  const known = isForm ? null : knownCall(question, session);
  const who = view?.pool ?? session?.pool ?? "The agent";
  const folder = view?.folder || session?.cwd;
  const { call, blocks } = isForm ? { call: null, blocks: [] } : readOf(question, known, folder);
  const wants = call ? `wants to ${verbOf(call, blocks)}` : "asks you";
  const name = isInline || !session?.label ? "" : nameOf(session) || view?.title || session.label;
  const isOpen = !!question.isWhole;
  const card = { isFolded: !isOpen && blocks.some((one) => one.isLong), size: sizeOf(blocks) };
  const options = isForm ? [] : choices(objects(question.params.options)).filter((option) => card.size <= SHOWN_MAX || refuses(option));
  noteDrawn(question.key, [question.params, isOpen, known, who, folder, name]);
  return h(
    "article",
    {
      key: question.key, class: "question", tabindex: "0", "data-question": question.key, "aria-label": plain(`${who} ${wants}`),
      onkeydown: (event) => pressed(event, question, options, card.isFolded, canAnswer),
    },
    h(
      "header",
      null,
      h("span", { class: "glyph is-waiting", role: "img", "aria-label": "waits for you" }, "◆"),
      h(isInline ? "h3" : "h2", null, h("strong", null, visible(who)), " ", visible(wants)),
      name ? h("a", { class: "mono label", href: `#/sessions/${encodeURIComponent(session.label)}` }, visible(name)) : null,
      h("span", { class: "spacer" }),
      since(question.at),
    ),
    isForm
      ? h(Form, { question, canAnswer, onanswer: (result, how, event) => answer(question, result, how, event) })
      : [card.size > SHOWN_MAX ? tooLong(card.size) : h(Subject, { call, blocks, isOpen, asked: question.params.toolCall }), choiceRow(question, options, card, canAnswer)],
  );
}

/** @param {number} size */
const tooLong = (size) => h("p", { class: "warn" }, `This is ${bytes(size)} long, which is more than this page shows. It can be refused here; allow it in its own client.`);

/** @param {any} question @param {any[]} options @param {{isFolded: boolean}} card @param {boolean} canAnswer */
function choiceRow(question, options, { isFolded }, canAnswer) {
  if (!canAnswer) return h("p", { class: "muted" }, "This link may look, but not answer.");
  return [
    isFolded ? h("p", { class: "folded" }, "Parts of it are folded. ", h("button", { class: "link show-all", type: "button", onclick: () => dispatch({ type: "unfold", key: question.key, at: Date.now() }) }, "Show all of it"), " before you allow it.") : null,
    h(
      "div",
      { class: "choices" },
      options.map((option, key) =>
        h(
          "button",
          {
            key, class: classes("button", refuses(option) ? "deny" : option.kind === "allow_once" && !isFolded && "primary", isFolded && !refuses(option) && "is-held"),
            type: "button", title: isFolded && !refuses(option) ? "shows all of it first" : plain(`${option.name} (${option.kind})`), "data-kind": String(option.kind), onclick: (event) => choose(question, option, isFolded, event),
          },
          h("span", { class: "option-name" }, visible(String(option.name ?? option.kind))),
          misleads(option) ? h("span", { class: "warn" }, plain(String(option.kind).replace("_", " "))) : null,
          option.key ? h("kbd", null, option.key) : null,
        ),
      ),
    ),
  ];
}

/** @param {KeyboardEvent} event @param {any} question @param {any[]} options @param {boolean} isFolded @param {boolean} canAnswer */
function pressed(event, question, options, isFolded, canAnswer) {
  const target = /** @type {HTMLElement} */ (event.target);
  if (event.ctrlKey || event.metaKey || event.altKey || event.repeat || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName)) return;
  const option = options.find((one) => one.key === event.key);
  if (option && canAnswer) {
    event.preventDefault();
    event.stopPropagation();
    choose(question, option, isFolded, event);
  } else if (event.key === "Enter" && target === event.currentTarget) {
    const session = rootOf(store.state, question.session);
    if (session?.label) go("sessions", session.label);
    else note("This session has no name yet.");
  }
}

const SIGNS = table({ allowed: "✓", denied: "⊘", answered: "·" });

/** Who answered what. @param {{question: any, session: any}} props */
export function Decided({ question, session }) {
  const { state, by, choice, verdict } = question;
  const isOver = state === "withdrawn" || state === "unasked";
  const call = question.method === "elicitation/create" ? null : changedCall(knownCall(question, session) ?? BLANK, question.params.toolCall ?? {}, 0);
  const what = call ? call.title || commandOf(call) : question.params.message;
  const who = by ? ` · by ${by === store.state.link.me ? "you, from this page" : by}` : "";
  const words = isOver ? (state === "unasked" ? "not asked of this page at the moment" : "no longer asked") : `${choice ?? "answered"}${who}`;
  return h("div", { class: classes("decided", verdict === "denied" && "is-denied") }, h("span", { class: "mark", role: "img", "aria-label": isOver ? "no longer asked" : (verdict ?? "answered") }, isOver ? "–" : (look(SIGNS, verdict) ?? "·")), h("span", { class: "mono ellipsis" }, visible(String(what ?? "question"))), h("span", { class: "muted how" }, visible(words)));
}
