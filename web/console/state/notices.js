// What a person who is away is told: one notice a question, as plain text. Pure.

import { cut, plain } from "../lib/text.js";
import { rootOf } from "./questions.js";

/** @typedef {import("./reduce.js").State} State */
/**
 * `key` names a question on this connection, `tag` the notice of it, also after another connection was made.
 * @typedef {{key: string, tag: string, session: string, title: string, body: string, link: string}} Notice
 */
/**
 * What the browser and the door make of notices. `push`: whether they come while no page is open, and if not, why.
 * @typedef {{state: "off" | "asking" | "on" | "denied" | "missing", push: boolean, why: string}} Told
 */

/** @returns {Told} */
export const newNotices = () => ({ state: "off", push: false, why: "" });

const LONGEST = 160;

/** A line of a notice: what agents say is cut, and nothing hides in it. @param {unknown} text */
export function line(text) {
  const flat = plain(String(text ?? "").slice(0, 4 * LONGEST)).replace(/\s+/g, " ").trim();
  return flat.length > LONGEST || cut(flat) ? `${flat.slice(0, LONGEST - 1)}…` : flat;
}

/** Where a session is, as a path of this page. @param {string} label */
export const linkOf = (label) => `/#/sessions/${encodeURIComponent(label)}`;

/** @param {string} label @param {{rpc: unknown, request: unknown}} which @param {any} view @param {unknown} asked @returns {Notice} */
function notice(label, { rpc, request }, view, asked) {
  const name = line(view?.title) || label;
  const pool = line(view?.pool) || "An agent";
  return { key: `${label} ${rpc}`, tag: `${label} ${request}`, session: label, title: `${pool} waits for you`, body: [line(asked), name].filter(Boolean).join("\n"), link: linkOf(label) };
}

/** What a question asks about, in a line. @param {any} params */
const subject = (params) => params?.toolCall?.title ?? params?.message;

/**
 * All that may be told now. Of a question that this page is not asked only its session is known; a page that may answer is asked soon.
 * @param {State} state
 * @param {boolean} mayAnswer
 * @returns {Notice[]}
 */
export function noticesOf(state, mayAnswer) {
  const views = new Map(state.list.map((view) => [view.session, view]));
  const found = state.questions.flatMap((question) => {
    const label = rootOf(state, question.session)?.label;
    // It is told as soon as it is known what people call its session.
    if (!label) return [];
    const call = question.params?.toolCall?.toolCallId;
    return notice(label, { rpc: question.rpc, request: typeof call === "string" ? call.slice(0, LONGEST) : question.rpc }, views.get(label), subject(question.params));
  });
  for (const view of state.list) {
    const isAsked = found.some((one) => one.session === view.session);
    if (view.questions > 0 && !isAsked && (!mayAnswer || state.unshared[view.session])) found.push(notice(view.session, { rpc: "elsewhere", request: "elsewhere" }, view, view.asked));
  }
  return found;
}
