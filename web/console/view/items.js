// What was said in a session, item by item.

import { asJson, classes, classWord, h } from "../lib/dom.js";
import { count, duration, hides, plain, plural, visible } from "../lib/text.js";
import { markdown } from "../lib/markdown.js";
import { look, table } from "../lib/table.js";
import { stopWords } from "../lib/explain.js";
import { dispatch, store } from "../state/app.js";
import { sessionOf } from "../state/questions.js";
import { objects } from "../state/transcript.js";
import { Content } from "./content.js";
import { ErrorBox, fold, glyph, Quota } from "./parts.js";
import { Question } from "./question.js";
import { TerminalBox, Tools } from "./tool.js";
import { turnOf, Waterfall } from "./waterfall.js";

/** So many of the last items of a subagent are shown in the transcript of its parent. */
const NESTED = 100;

/** @param {{session: any, item: any, view: any, canAnswer: boolean, children?: any}} props `children` are the subagents, for items that have one */
export function Item({ session, item, view, canAnswer, children }) {
  const known = look(KINDS, item.kind);
  const of = { session, view, canAnswer };
  if (known) return known(item, session.id, of, children);
  return h("p", { class: "item note muted" }, visible(item.text ?? ""));
}

/** Whether an item shows a subagent, and so changes with it. @param {any} item */
export const hasChild = (item) => item.kind === "subagent" || item.kind === "message" || !!item.calls?.some((call) => call.child);

/** @type {Record<string, (item: any, session: string, of: any, children: any) => any>} */
const KINDS = table({
  user: (item) => h("div", { class: "item user" }, h("div", { class: "who" }, item.mine ? "you" : visible(item.by ?? "prompt")), h("div", { class: "said" }, shortened(item.text, visible), parts(item))),
  agent: (item) => h("div", { class: classes("item agent prose", item.goesOn && "goes-on") }, markdown(item.text), hides(item.text) && /[\u202a-\u202e\u2066-\u2069]/.test(item.text) ? h("p", { class: "warn" }, "This text turns its direction.") : null, parts(item)),
  thought: (item, session) => h(Thought, { session, item }),
  tools: (item, session, of, children) => h("div", { class: "item" }, h(Tools, { session, item, inner: item.calls.some((call) => call.child) ? (call) => nested(children?.[call.child], of) : undefined })),
  plan: (item) => h("div", { class: "item" }, h(Plan, { item })),
  content: (item) => h("div", { class: "item" }, h(Content, { content: item.content })),
  notice: (item) => h(Notice, { item }),
  compaction: (item, session) => h(Compaction, { item, session }),
  subagent: (item, session, of, children) => h(Subagent, { item, session, of, child: children?.[item.child] }),
  message: (item, session, _, children) => h(Message, { item, session, children }),
  terminal: (item, session) => (item.isElsewhere ? h("span", { hidden: true }) : h("div", { class: "item" }, h(TerminalBox, { session, item }))),
  quota: (item) => h("div", { class: "item" }, h(Quota, { update: item.update })),
  question: (item, _, of) => h("div", { class: "item" }, h(Question, { question: item.question, session: of.session, view: of.view, canAnswer: of.canAnswer, isInline: true })),
  turn: (item, _, of) => h(Turn, { session: of.session, item }),
  unshown: (item) => h("details", { class: "item unshown muted" }, h("summary", null, "this could not be shown"), h("pre", { class: "code", tabindex: "0" }, visible(asJson(item.update, 20_000)))),
  unknown: (item) => h(Unknown, { item }),
  error: (item) => h("div", { class: "item" }, h(ErrorBox, { error: item.error })),
});

/** A text that is no answer of an agent is shown as far as one item may be long, so that no frame waits for it. */
const LONGEST = 48_000;

/** @param {string} text @param {(text: string) => any} shown */
const shortened = (text, shown) => (text.length > LONGEST ? [shown(text.slice(0, LONGEST)), h("p", { class: "muted" }, `⋯ ${count(text.length - LONGEST)} more characters, which an export as JSON has`)] : shown(text));

/** @param {any} item */
const parts = (item) => (item.parts?.length ? h("div", { class: "parts" }, objects(item.parts).map((content, key) => h(Content, { key, content }))) : null);

/** @param {{session: string, item: any}} props */
function Thought({ session, item }) {
  const took = item.at && item.end ? ` for ${duration(item.end - item.at)}` : "";
  const words = item.end || !item.at ? `thought${took}` : "thinking";
  return h("div", { class: "item thought" }, fold(session, item, "┄ ", words), item.open ? h("div", { class: "prose muted" }, shortened(item.text, markdown), parts(item)) : null);
}

const BOXES = table({ completed: "☑", in_progress: "◐", pending: "☐" });

/** A plan: a checklist, a text, or a file that the agent keeps it in. @param {{item: any}} props */
export function Plan({ item }) {
  const { entries, markdown: words, uri, isGone } = item;
  const done = entries?.filter((entry) => entry.status === "completed").length;
  return h(
    "div",
    { class: classes("plan", isGone && "is-gone"), role: "group", "aria-label": "plan" },
    h("div", { class: "plan-head muted" }, "plan ", entries ? h("span", { class: "num" }, `${done}/${entries.length}`) : null, isGone ? " withdrawn" : ""),
    entries ? h("ul", null, entries.map((entry, key) => h("li", { key, class: `is-${classWord(entry.status)}` }, h("span", { class: "box", role: "img", "aria-label": String(entry.status).replace("_", " ") }, look(BOXES, entry.status) ?? "☐"), visible(String(entry.content ?? ""))))) : null,
    words !== undefined ? h("div", { class: "prose" }, shortened(words, markdown)) : null,
    uri !== undefined ? h("p", { class: "mono" }, "in ", visible(uri)) : null,
  );
}

const SEVERITIES = table({ info: "i", warning: "!", error: "✕" });

/** @param {{item: any}} props */
function Notice({ item }) {
  const { severity } = item;
  return h("div", { class: `item notice is-${classWord(severity)}` }, h("span", { class: "mark", role: "img", "aria-label": plain(severity) }, look(SEVERITIES, severity) ?? "i"), h("div", null, h("strong", null, visible(item.title)), item.text ? h("p", null, shortened(item.text, visible)) : null));
}

const COMPACTED = table({ in_progress: "making room: the context is being compacted", completed: "the context was compacted", failed: "the context could not be compacted", cancelled: "compacting was cancelled" });

/** @param {{item: any, session: string}} props */
function Compaction({ item, session }) {
  const words = look(COMPACTED, item.status) ?? `compacting: ${plain(item.status)}`;
  const body = item.text ? fold(session, item, "⊟ ", words) : h("span", null, "⊟ ", words);
  return h("div", { class: "item thought compaction" }, body, item.why ? h("p", { class: "warn" }, visible(item.why)) : null, item.open && item.text ? h("div", { class: "prose muted" }, shortened(item.text, markdown)) : null);
}

const MOODS = table({ running: "running", requires_action: "waiting", idle: "idle" });

/** A subagent: a line, its open questions, and what it said. @param {{item: any, session: string, of: any, child: any}} props */
function Subagent({ item, session, of, child }) {
  const mood = look(MOODS, item.state) ?? (child?.turn === "running" ? "running" : "idle");
  const open = child?.items.filter((one) => one.kind === "question" && one.question.state === "open") ?? [];
  const words = [visible(item.title || child?.title || "subagent"), child ? h("span", { class: "muted num" }, ` · ${plural(child.next, "step")}`) : null];
  return h(
    "div",
    { class: "item subagent" },
    h("div", { class: "subagent-head" }, glyph(mood), fold(session, item, item.open ? "▾ " : "▸ ", words)),
    item.text ? h("p", { class: "muted" }, visible(item.text)) : null,
    item.open ? nested(child, of) : open.map((one) => h(Item, { key: one.key, item: one, session: child, view: of.view, canAnswer: of.canAnswer })),
  );
}

/** The transcript of a subagent, or the end of it. @param {any} child @param {any} of */
function nested(child, of) {
  if (!child) return h("p", { class: "muted" }, "What it says is not told to this page.");
  const shown = child.items.slice(-NESTED);
  return h(
    "div",
    { class: "nested" },
    child.items.length > shown.length || child.truncated ? h("p", { class: "muted" }, `${plural(child.next - shown.length, "earlier step")} not shown`) : null,
    shown.length ? shown.map((item) => h(Item, { key: item.key, item, session: child, view: of.view, canAnswer: of.canAnswer, children: hasChild(item) ? child.children : undefined })) : h("p", { class: "muted" }, "It has said nothing yet."),
  );
}

/** What one session says to another. @param {{item: any, session: string, children: any}} props */
function Message({ item, session, children }) {
  const name = (id) => (!id || id === session ? "this session" : children?.[id]?.title || id.split(".").at(-1).slice(0, 24));
  return h("div", { class: "item message" }, h("div", { class: "muted" }, visible(`${name(item.from)} → ${name(item.to)}`)), h("div", { class: "prose" }, shortened(item.text, markdown)));
}

/** An update that this page does not know. @param {{item: any}} props */
function Unknown({ item }) {
  const name = plain(item.name || "without a kind").slice(0, 80);
  const shown = item.updates.length === 1 ? item.updates[0] : item.updates;
  return h("details", { class: "item unshown muted" }, h("summary", null, `${item.count > 1 ? `${item.count} × ` : ""}${name}`), h("pre", { class: "code", tabindex: "0" }, visible(asJson(shown, 20_000))));
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
    item.open ? h(Waterfall, turnOf(sessionOf(store.state, session.id)?.items ?? [], item)) : null,
  );
}
