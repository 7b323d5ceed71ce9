// The questions of agents that this page is asked: open, answered, withdrawn. Pure.

import { put, without } from "../lib/table.js";
import { verdictOf } from "./asked.js";
import { addItem, changedWithin, changeItem, findCall, objects, within } from "./transcript.js";

/** @typedef {import("./reduce.js").State} State */
/** @typedef {import("./transcript.js").Session} Session */
/** @typedef {{verdict: string, choice?: string, by?: string, isMine?: boolean}} Verdict */
/**
 * `unasked`: this page let go of it, because it has another role now or lost its connection.
 * @typedef {{key: string, rpc: any, session: string, method: string, params: any, at: number, state: "open" | "answered" | "withdrawn" | "unasked", isWhole?: boolean, by?: string, choice?: string, verdict?: string, end?: number}} Question
 */

const ANSWERED = 30;
const VERDICTS = 200;

/** Under which name it is kept what became of a tool call. @param {string} session @param {string} call */
export const verdictKey = (session, call) => `${session} ${call}`;

/** The session that this page is in: the one with this id, or the one whose subagent it is. @param {State} state @param {string} id @returns {Session | undefined} */
export function rootOf(state, id) {
  return state.sessions[id] ?? Object.values(state.sessions).find((one) => within(one, id));
}

/** The session with this id, of a subagent too. @param {State} state @param {string} id @returns {Session | undefined} */
export function sessionOf(state, id) {
  const root = rootOf(state, id);
  return (root && within(root, id)) ?? undefined;
}

/** Changes a session wherever it is shown: by itself, or as a subagent of another. @param {State} state @param {string} id @param {(session: Session) => Session} by @returns {State} */
export function change(state, id, by) {
  let { sessions } = state;
  for (const key of Object.keys(sessions)) {
    const known = sessions[key];
    const next = known.id === id || Object.keys(known.children).length ? changedWithin(known, id, by) : null;
    if (next && next !== known) sessions = put(sessions, key, next);
  }
  return sessions === state.sessions ? state : { ...state, sessions };
}

/** @param {State} state @param {Question} question @param {number} at now; the question may be older @returns {State} */
export function ask(state, question, at) {
  // What this page let go of may be asked of it once more; it has its old place then. Two that are open are two questions, however
  // much they are alike.
  const items = sessionOf(state, question.session)?.items ?? [];
  const before = items.findLast((item) => item.question?.state === "unasked" && JSON.stringify(item.question.params) === JSON.stringify(question.params));
  const next = { ...state, questions: [...state.questions, before ? { ...question, at: before.question.at } : question], armedAt: at };
  if (before) return change(next, question.session, (known) => changeItem(known, before.key, { question: next.questions[next.questions.length - 1] }));
  return change(next, question.session, (known) => addItem(known, { kind: "question", at: question.at, question }));
}

/** The page is no longer asked, without anybody having answered. @param {State} state @param {string | null} session `null`: in all @returns {State} */
export function unask(state, session) {
  const isOver = (one) => session === null || rootOf(state, one.session)?.id === session;
  let next = { ...state, questions: state.questions.filter((one) => !isOver(one)) };
  for (const question of state.questions) {
    if (!isOver(question)) continue;
    next = change(next, question.session, (known) => shownAs(known, { ...question, state: "unasked" }));
  }
  return next;
}

/** All of a question is shown. @param {State} state @param {string} key @param {number} at @returns {State} */
export function unfold(state, key, at) {
  const found = state.questions.find((question) => question.key === key);
  if (!found) return state;
  const open = { ...found, isWhole: true };
  const next = change(state, found.session, (known) => shownAs(known, open));
  return { ...next, questions: state.questions.map((question) => (question === found ? open : question)), armedAt: at };
}

/** @param {State} state @param {(question: Question) => boolean} which @param {Partial<Question>} how @returns {State} */
export function decide(state, which, how) {
  const found = state.questions.find(which);
  if (!found) return state;
  const done = { ...found, state: /** @type {const} */ ("answered"), ...how };
  const next = withVerdict(change(state, found.session, (known) => shownAs(known, done)), done);
  return {
    ...next,
    questions: state.questions.filter((question) => question !== found),
    answered: [...state.answered, done].slice(-ANSWERED),
    // The cards below move up: a click that was meant for this one must not hit the next.
    armedAt: how.end ?? state.armedAt,
  };
}

/** The bus no longer wants an answer. If this page has given one, another's was earlier. @param {State} state @param {any} rpc @param {number} at @returns {State} */
export function withdraw(state, rpc, at) {
  const late = state.answered.findLast((question) => question.rpc === rpc && question.state === "answered");
  if (!late) return decide(state, (question) => question.rpc === rpc, { state: "withdrawn", end: at });
  const over = { ...late, state: /** @type {const} */ ("withdrawn"), by: undefined, choice: undefined, verdict: undefined };
  const call = late.params?.toolCall?.toolCallId;
  const verdicts = typeof call !== "string" ? state.verdicts : without(state.verdicts, verdictKey(late.session, call));
  // It is the last one, so that who is told next to have decided is taken for who decided this.
  const answered = [...state.answered.filter((question) => question !== late), over];
  return touched({ ...change(state, late.session, (known) => shownAs(known, over)), answered, verdicts }, late.session, call);
}

/**
 * Another client's answer counted; the question was withdrawn from this page a moment ago.
 * @param {State} state
 * @param {string} session
 * @param {{by: string, optionId?: string}} event
 */
export function decidedBy(state, session, { by, optionId }) {
  const at = state.answered.findLastIndex((question) => question.session === session);
  if (by === state.link.me || at < 0 || state.answered[at].state !== "withdrawn") return state;
  const answered = state.answered.slice();
  const option = objects(answered[at].params?.options).find((one) => optionId !== undefined && one.optionId === optionId);
  const more = option ? { choice: String(option.name ?? option.kind), verdict: verdictOf(option) } : {};
  answered[at] = { ...answered[at], by, state: "answered", ...more };
  return { ...withVerdict(change(state, session, (known) => shownAs(known, answered[at])), answered[at]), answered };
}

/** What became of the tool call is kept: the agent may call it done although it was refused. @param {State} state @param {Question} question @returns {State} */
function withVerdict(state, { session, params, verdict, choice, by }) {
  const call = params?.toolCall?.toolCallId;
  if (!verdict || typeof call !== "string") return state;
  const name = verdictKey(session, call);
  let verdicts = put(without(state.verdicts, name), name, { verdict, choice, by, isMine: by === state.link.me });
  for (const old of Object.keys(verdicts).slice(0, -VERDICTS)) verdicts = without(verdicts, old);
  return touched({ ...state, verdicts }, session, call);
}

/** The tool call is drawn anew. @param {State} state @param {string} session @param {unknown} call @returns {State} */
function touched(state, session, call) {
  return change(state, session, (known) => {
    const where = typeof call === "string" ? findCall(known, call) : -1;
    if (where >= 0 || typeof call !== "string") return where < 0 ? known : changeItem(known, known.items[where].key, {});
    const child = Object.values(known.children).find((one) => findCall(one, call) >= 0);
    return (child && changedWithin(known, child.id, (one) => changeItem(one, one.items[findCall(one, call)].key, {}))) ?? known;
  });
}

/** The question as it stands among what was said. @param {Session} session @param {Question} question */
function shownAs(session, question) {
  const item = session.items.findLast((one) => one.question?.key === question.key);
  return item ? changeItem(session, item.key, { question }) : session;
}
