// A tool call: one line, and what is in it.

import { asJson, classes, classWord, h } from "../lib/dom.js";
import { duration, folder, plural, visible } from "../lib/text.js";
import { markdown } from "../lib/markdown.js";
import { look, table } from "../lib/table.js";
import { contentText } from "../state/transcript.js";
import { commandOf } from "../state/asked.js";
import { Content } from "./content.js";
import { changes, Diff } from "./diff.js";
import { dispatch, store } from "../state/app.js";
import { verdictKey } from "../state/questions.js";
import "./output.js";

/** @typedef {import("../state/transcript.js").ToolCall} ToolCall */

const MARKS = table(/** @type {Record<string, [string, string]>} */ ({ completed: ["✓", "done"], failed: ["✕", "failed"], cancelled: ["–", "cancelled"], in_progress: ["⋯", "at work"], pending: ["⋯", "waits"] }));
const RUNS = table({ read: "Read", search: "Searched", fetch: "Fetched" });

/** What a call is called in a line. @param {ToolCall} call */
export const titleOf = (call) => call.title || commandOf(call) || call.locations?.[0]?.path || call.kind;

/** A few calls in one item. @param {{session: string, item: any, inner?: (call: ToolCall) => any}} props `inner` draws what the subagent of a call said */
export function Tools({ session, item, inner }) {
  const calls = /** @type {ToolCall[]} */ (item.calls);
  if (calls.length === 1) return h(Tool, { session, itemKey: item.key, call: calls[0], isOpen: item.open, inner });
  const isOpen = !!item.open;
  const words = look(RUNS, calls[0].kind) ?? calls[0].kind;
  const isOver = calls.every((call) => call.status === "completed" && verdictOn(session, call)?.verdict !== "denied");
  const status = isOver ? "completed" : calls.some((call) => call.status === "failed") ? "failed" : "in_progress";
  const [first, last] = [calls[0].at, Math.max(...calls.map((call) => call.end))];
  return h(
    "div",
    { class: "tool" },
    head({ session, itemKey: item.key, isOpen, title: `${words} ${plural(calls.length, calls[0].kind === "read" ? "file" : "time")}`, status, took: first && last ? last - first : 0 }),
    isOpen ? h("div", { class: "tool-body" }, calls.map((call) => h("div", { key: call.id, class: "tool-inner" }, mark(call.status, verdictOn(session, call)), h("span", { class: "mono" }, visible(titleOf(call))), call.child && inner ? inner(call) : null))) : null,
  );
}

/** @param {{session: string, itemKey: number, call: ToolCall, isOpen: boolean | undefined, inner?: (call: ToolCall) => any}} props */
function Tool({ session, itemKey, call, isOpen, inner }) {
  const { added, removed } = changes(call.content);
  const isShown = isOpen ?? (added + removed > 0 && added + removed <= 40);
  const took = call.at && call.end ? call.end - call.at : 0;
  const more = added + removed ? [h("span", { class: "num added" }, `+${added}`), h("span", { class: "num removed" }, `−${removed}`)] : null;
  return h("div", { class: classes("tool", call.status === "failed" && "is-failed") }, head({ session, itemKey, isOpen: isShown, title: titleOf(call), status: call.status, verdict: verdictOn(session, call), took, more }), isShown ? h(ToolBody, { call }) : null, isShown && call.child && inner ? inner(call) : null);
}

/** @param {any} props */
function head({ session, itemKey, isOpen, title, status, verdict, took, more }) {
  return h(
    "button",
    { class: "tool-head", type: "button", "aria-expanded": String(isOpen), onclick: () => dispatch({ type: "toggle", session, key: itemKey, open: !isOpen }) },
    h("span", { class: "fold", "aria-hidden": "true" }, isOpen ? "▾" : "▸"),
    h("span", { class: "tool-title mono" }, visible(title)),
    more,
    h("span", { class: "num muted took" }, took ? duration(took) : ""),
    verdict ? h("span", { class: "muted verdict" }, visible(`${verdict.verdict}${verdict.by ? ` by ${verdict.isMine ? "you" : verdict.by}` : ""}`)) : null,
    mark(status, verdict),
  );
}

/** What a person made of a call. @param {string} session @param {ToolCall} call */
function verdictOn(session, call) {
  // Calls of a subagent that has no session of its own are asked about in its parent's.
  return look(store.state.verdicts, verdictKey(session, call.id)) ?? look(store.state.verdicts, verdictKey(session.split(" call ")[0], call.id));
}

/** What was refused is not done, whatever the agent calls it. @param {string} status @param {any} [verdict] */
function mark(status, verdict) {
  if (verdict?.verdict === "denied") return h("span", { class: "mark is-denied", role: "img", "aria-label": "denied", title: "denied" }, "⊘");
  const [sign, name] = look(MARKS, status) ?? ["⋯", status];
  return h("span", { class: `mark is-${classWord(status)}`, role: "img", "aria-label": name, title: name }, sign);
}

/** What is in a call: command, diff, output, places, raw JSON last. @param {{call: ToolCall}} props */
export function ToolBody({ call }) {
  const command = commandOf(call);
  const parts = call.content.map((part, at) => contentPart(call, part, at));
  return h(
    "div",
    { class: "tool-body" },
    command && command !== call.title ? h("pre", { class: "code command-line", tabindex: "0" }, h("span", { class: "muted" }, "$ "), visible(command)) : null,
    call.locations?.length ? h("p", { class: "mono muted places" }, call.locations.slice(0, 8).map((place) => h("span", null, visible(`${folder(place.path)}${place.line ? `:${place.line}` : ""}`), " "))) : null,
    parts,
    call.terminal ? h(Terminal, { text: call.terminal }) : null,
    h(Raw, { call }),
  );
}

/** @param {ToolCall} call @param {any} part @param {number} at */
function contentPart(call, part, at) {
  if (part?.type === "diff") return h(Diff, { key: at, part });
  if (part?.type === "terminal") return terminalPart(call, part, at);
  const content = part?.content ?? part;
  if (content && typeof content === "object" && content.type !== "text") return h(Content, { key: at, content });
  const text = contentText(content);
  const isOutput = call.kind === "execute" || /\u001b\[/.test(text);
  return isOutput ? h(Terminal, { key: at, text: text.replace(/^```\w*\n|\n```\s*$/g, "") }) : h("div", { key: at, class: "prose" }, markdown(text.length > 20_000 ? `${text.slice(0, 20_000)}\n\n⋯ ${text.length - 20_000} more characters` : text));
}

/** @param {ToolCall} call @param {any} part @param {number} at */
function terminalPart(call, part, at) {
  const terminal = call.terminals && look(call.terminals, part.terminalId);
  if (terminal) return h("div", { key: at }, exitLine(terminal), h(Terminal, { text: terminal.output }));
  return call.terminal ? null : h("p", { key: at, class: "muted" }, "in a terminal of its client");
}

/** How a command ended. @param {import("../state/transcript.js").Terminal} terminal */
function exitLine({ cwd, exit }) {
  const words = exit ? (exit.signal ? `ended by ${exit.signal}` : `exit code ${exit.exitCode ?? "unknown"}`) : "running";
  return h("p", { class: "mono muted" }, cwd ? ["in ", visible(folder(cwd)), " · "] : null, visible(words));
}

/** A terminal that no call names. @param {{session: string, item: any}} props */
export function TerminalBox({ session, item }) {
  const { terminal = { command: "", cwd: "", output: "", exit: null }, open } = item;
  const status = terminal.exit ? (terminal.exit.exitCode === 0 ? "completed" : "failed") : "in_progress";
  return h("div", { class: "tool" }, head({ session, itemKey: item.key, isOpen: open ?? true, title: terminal.command || `terminal ${item.id}`, status, took: 0 }), open ?? true ? h("div", { class: "tool-body" }, exitLine(terminal), terminal.output ? h(Terminal, { text: terminal.output }) : null) : null);
}

/** @param {{text: string}} props */
export const Terminal = ({ text }) => h("sb-output", { data: { text } });

/** @param {{call: ToolCall}} props */
function Raw({ call }) {
  const shown = { kind: call.kind, id: call.id, input: call.input, output: call.output };
  if (call.input === undefined && call.output === undefined) return h("span", { hidden: true });
  return h("details", { class: "raw" }, h("summary", null, "raw"), h("pre", { class: "code", tabindex: "0" }, visible(asJson(shown, 20_000))));
}
