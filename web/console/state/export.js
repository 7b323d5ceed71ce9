// What was said so far as Markdown. Pure.

import { contentText, objects } from "./transcript.js";

/** @typedef {import("./transcript.js").Session} Session */
/** @typedef {import("./transcript.js").ToolCall} ToolCall */

/** @param {string} text */
const quoted = (text) => text.split("\n").map((line) => `> ${line}`).join("\n");

/** @param {any[]} entries */
const checklist = (entries) => entries.map((entry) => `- [${entry.status === "completed" ? "x" : " "}] ${entry.content}`).join("\n");

/** @param {any} item @param {(call: ToolCall) => string} describe @param {Session} session @returns {string} */
function itemText(item, describe, session) {
  const parts = objects(item.parts).map(contentText);
  switch (item.kind) {
    case "user":
      return [`## ${item.by ?? "User"}`, item.text, ...parts].filter(Boolean).join("\n\n");
    case "agent":
      return item.text ?? "";
    case "thought":
      return quoted(item.text ?? "");
    case "tools":
      return (item.calls ?? []).map((call) => [`- ${describe(call)}`, ...nested(session.children[call.child], describe)].join("\n")).join("\n");
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
      return [`- subagent: ${item.title || item.child}`, ...nested(session.children[item.child], describe)].join("\n");
    default:
      return "";
  }
}

/** What a subagent said, one step to the right. @param {Session | undefined} child @param {(call: ToolCall) => string} describe */
function nested(child, describe) {
  if (!child) return [];
  const said = child.items.map((item) => itemText(item, describe, child)).filter(Boolean);
  return said.map((one) => one.split("\n").map((line) => `  ${line}`).join("\n"));
}

/** @param {Session} session @param {(call: ToolCall) => string} describe */
export function toMarkdown(session, describe) {
  const said = session.items.map((item) => itemText(item, describe, session)).filter(Boolean);
  return [`# ${session.title || session.label}`, ...said].join("\n\n") + "\n";
}
