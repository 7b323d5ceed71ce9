// What was said so far as Markdown. Pure.

import { settledText } from "../lib/ansi.js";
import { asJson } from "../lib/dom.js";
import { look, table } from "../lib/table.js";
import { commandOf, diffOf } from "./asked.js";
import { changesIn } from "./changes.js";
import { verdictKey } from "./questions.js";
import { contentText, objects } from "./transcript.js";

/** @typedef {import("./transcript.js").Session} Session */
/** @typedef {import("./transcript.js").ToolCall} ToolCall */
/** How a call is called in a line, and what people have made of calls. @typedef {{describe: (call: ToolCall) => string, verdicts: Record<string, any>}} How */

/** Of what a call has put out, or changed in one file, so many characters are written: its beginning and its end. */
const SHOWN = 20_000;

/** @param {string} text */
const quoted = (text) => text.split("\n").map((line) => `> ${line}`).join("\n");

/** What a list item has below its line. @param {string[]} parts */
const indented = (parts) => parts.map((one) => one.split("\n").map((line) => `  ${line}`).join("\n"));

/** @param {string} text */
const oneLine = (text) => text.replace(/\s+/g, " ").trim();

/** @param {string} text */
const bounded = (text) => (text.length <= SHOWN ? text : `${text.slice(0, SHOWN / 2)}\n⋯ ${text.length - SHOWN} characters are left out ⋯\n${text.slice(-SHOWN / 2)}`);

/** A text in a fence that is longer than any in it. @param {string} text @param {string} [language] */
function fenced(text, language = "") {
  const shown = bounded(text).replace(/\n+$/, "");
  const longest = (shown.match(/`{3,}/g) ?? []).reduce((most, one) => Math.max(most, one.length), 2);
  const fence = "`".repeat(longest + 1);
  return `${fence}${language}\n${shown}\n${fence}`;
}

const SIGNS = table({ same: " ", add: "+", del: "-" });

/** @param {import("../lib/diff.js").Line[]} lines */
const diffText = (lines) => lines.map((line) => (line.kind === "gap" ? `@@ ${line.count} lines are the same @@` : `${look(SIGNS, line.kind) ?? " "}${line.text}`)).join("\n");

/** @param {any} part */
function diffParts(part) {
  const lines = ({ step }) => step?.lines ?? (step ? diffOf(part).lines : []);
  return changesIn(part).map((file) => fenced(`${file.operation}: ${oneLine(file.path)}\n${diffText(lines(file))}`, "diff"));
}

/** @param {ToolCall} call @param {any} part */
function partTexts(call, part) {
  if (part.type === "diff") return diffParts(part);
  const output = part.type === "terminal" ? call.terminals?.[part.terminalId]?.output : contentText(part.content ?? part).replace(/^```\w*\n|\n```\s*$/g, "");
  return output ? [fenced(settledText(output))] : [];
}

/** What a call ran, changed and put out. @param {ToolCall} call */
function callParts(call) {
  const command = commandOf(call);
  const parts = call.content.flatMap((part) => partTexts(call, part));
  if (call.terminal) parts.push(fenced(settledText(call.terminal)));
  if (parts.length === 0 && call.output !== undefined) parts.push(fenced(typeof call.output === "string" ? settledText(call.output) : asJson(call.output, SHOWN)));
  return command && command !== call.title ? [fenced(`$ ${command}`, "sh"), ...parts] : parts;
}

/** @param {Session} session @param {ToolCall} call @param {How} how */
function callText(session, call, how) {
  // Calls of a subagent that has no session of its own are asked about in its parent's.
  const verdict = [session.id, session.id.split(" call ")[0]].map((id) => look(how.verdicts, verdictKey(id, call.id))).find(Boolean);
  const line = `- ${oneLine(how.describe(call))}${verdict ? ` · ${answerText(verdict)}` : ""}`;
  return [line, ...indented(callParts(call)), ...nested(session.children[call.child ?? ""], how)].join("\n");
}

/** What was answered, and by whom. @param {any} decided */
const answerText = ({ verdict, choice, by }) => [`${verdict ?? "answered"}${choice ? ` with “${oneLine(String(choice))}”` : ""}`, by ? `by ${oneLine(String(by))}` : ""].filter(Boolean).join(" ");

const ENDS = table({ open: "not answered yet", withdrawn: "no longer asked", unasked: "no longer asked here" });

/** @param {any} question */
function questionText({ params, state, content, ...decided }) {
  const call = params?.toolCall;
  const what = params?.message ?? (call?.title || commandOf({ .../** @type {any} */ (call ?? {}), input: call?.rawInput })) ?? "";
  const line = `**Asked:** ${oneLine(String(what || "a question"))} · ${look(ENDS, state) ?? answerText(decided)}`;
  return content === undefined ? line : [line, fenced(asJson(content, SHOWN), "json")].join("\n\n");
}

/** @param {any[]} entries */
const checklist = (entries) => entries.map((entry) => `- [${entry.status === "completed" ? "x" : " "}] ${entry.content}`).join("\n");

/** @param {any} item @param {How} how @param {Session} session @returns {string} */
function itemText(item, how, session) {
  const parts = objects(item.parts).map(contentText);
  switch (item.kind) {
    case "user":
      return [`## ${item.by ?? "User"}`, item.text, ...parts].filter(Boolean).join("\n\n");
    case "agent":
      return item.text ?? "";
    case "thought":
      return quoted(item.text ?? "");
    case "tools":
      return (item.calls ?? []).map((call) => callText(session, call, how)).join("\n");
    case "terminal":
      return item.isElsewhere ? "" : [`- ${oneLine(item.terminal?.command || `terminal ${item.id}`)}`, ...indented(item.terminal?.output ? [fenced(settledText(item.terminal.output))] : [])].join("\n");
    case "question":
      return questionText(item.question);
    case "plan":
      return item.entries ? checklist(item.entries) : (item.text ?? item.uri ?? "");
    case "error":
      return `**Error:** ${item.error?.message ?? "no reason was given"}`;
    case "content":
      return contentText(item.content);
    case "notice":
      return `**${item.title}** ${item.text ?? ""}`.trim();
    case "compaction":
      return `*Context compacted (${item.status})*\n\n${quoted(item.text ?? "")}`;
    case "subagent":
      return [`- subagent: ${item.title || item.child}`, ...nested(session.children[item.child], how)].join("\n");
    default:
      return "";
  }
}

/** What a subagent said, one step to the right. @param {Session | undefined} child @param {How} how */
function nested(child, how) {
  if (!child) return [];
  return indented(child.items.map((item) => itemText(item, how, child)).filter(Boolean));
}

/** @param {Session} session @param {(call: ToolCall) => string} describe @param {Record<string, any>} [verdicts] what people have made of calls */
export function toMarkdown(session, describe, verdicts = table()) {
  const said = session.items.map((item) => itemText(item, { describe, verdicts }, session)).filter(Boolean);
  return [`# ${session.title || session.label}`, ...said].join("\n\n") + "\n";
}
