// Every kind of update that the schemas of ACP name, in its variants, and where a person finds it on the page.

import zlib from "node:zlib";

/** A picture of one colour: as many points as it says. */
export function picture(width, height) {
  const chunk = (name, data) => {
    const body = Buffer.concat([Buffer.from(name), data]);
    const whole = Buffer.alloc(body.length + 8);
    whole.writeUInt32BE(data.length, 0);
    body.copy(whole, 4);
    whole.writeUInt32BE(zlib.crc32?.(body) ?? crc(body), body.length + 4);
    return whole;
  };
  const head = Buffer.alloc(13);
  head.writeUInt32BE(width, 0);
  head.writeUInt32BE(height, 4);
  head.set([1, 0, 0, 0, 0], 8);
  const rows = Buffer.alloc(height * (Math.ceil(width / 8) + 1));
  return Buffer.concat([Buffer.from([137, 80, 78, 71, 13, 10, 26, 10]), chunk("IHDR", head), chunk("IDAT", zlib.deflateSync(rows)), chunk("IEND", Buffer.alloc(0))]).toString("base64");
}

function crc(bytes) {
  let value = 0xffffffff;
  for (const byte of bytes) {
    value ^= byte;
    for (let bit = 0; bit < 8; bit++) value = value & 1 ? (value >>> 1) ^ 0xedb88320 : value >>> 1;
  }
  return (value ^ 0xffffffff) >>> 0;
}

/** A second of silence. */
function sound() {
  const bytes = Buffer.alloc(44 + 8000);
  bytes.write("RIFF", 0);
  bytes.writeUInt32LE(36 + 8000, 4);
  bytes.write("WAVEfmt ", 8);
  bytes.writeUInt32LE(16, 16);
  bytes.writeUInt16LE(1, 20);
  bytes.writeUInt16LE(1, 22);
  bytes.writeUInt32LE(8000, 24);
  bytes.writeUInt32LE(8000, 28);
  bytes.writeUInt16LE(1, 32);
  bytes.writeUInt16LE(8, 34);
  bytes.write("data", 36);
  bytes.writeUInt32LE(8000, 40);
  bytes.fill(128, 44);
  return bytes.toString("base64");
}

const text = (words) => ({ type: "text", text: words });
const base64 = (words) => Buffer.from(words).toString("base64");
const PATCH = "diff --git a/src/old.rs b/src/new.rs\nrename from src/old.rs\nrename to src/new.rs\n--- a/src/old.rs\n+++ b/src/new.rs\n@@ -10,3 +10,3 @@ fn main\n one\n-two\n+two of the patch\n three\n";
export const CHILD = "child-of-play";

/** [where it is found, the update, words in it, whether it must be opened first]. Without words the place is enough. */
export const kinds = (session) => [
  [".item.user", { sessionUpdate: "user_message_chunk", content: text("chunk of a user") }, "chunk of a user"],
  [".item.user .attached", { sessionUpdate: "user_message_chunk", content: { type: "resource_link", uri: "file:///srv/by-user.txt", name: "by-user.txt" } }, "by-user.txt"],
  [".item.agent", { sessionUpdate: "agent_message_chunk", content: text("chunk of an agent") }, "chunk of an agent"],
  [".attached.picture img", { sessionUpdate: "agent_message_chunk", content: { type: "image", mimeType: "image/png", data: picture(64, 32) } }],
  [".attached sb-sound", { sessionUpdate: "agent_message_chunk", content: { type: "audio", mimeType: "audio/wav", data: sound() } }, "Play"],
  [".attached a[href]", { sessionUpdate: "agent_message_chunk", content: { type: "resource_link", uri: "https://example.com/page", name: "a page", title: "A page of the web" } }, "A page of the web"],
  [".attached-file .code", { sessionUpdate: "agent_message_chunk", content: { type: "resource", resource: { uri: "file:///srv/embedded.txt", mimeType: "text/plain", text: "embedded words" } } }, "embedded words", "details.attached-file"],
  [".attached-file .attached", { sessionUpdate: "agent_message_chunk", content: { type: "resource", resource: { uri: "file:///srv/embedded.bin", mimeType: "application/pdf", blob: base64("%PDF") } } }, "embedded.bin"],
  [".unshown summary", { sessionUpdate: "agent_message_chunk", content: { type: "_example.com/hologram", data: 1 } }, "hologram"],
  [".item.thought", { sessionUpdate: "agent_thought_chunk", content: text("chunk of a thought") }, "chunk of a thought", ".item.thought:not(.compaction) .fold-line"],
  [".item.user", { sessionUpdate: "user_message", messageId: "u2", content: [text("whole words of a user")] }, "whole words of a user"],
  [".item.agent", { sessionUpdate: "agent_message", messageId: "a2", content: [text("whole words of an agent")] }, "whole words of an agent"],
  [".item.thought .fold-line >> nth=1", { sessionUpdate: "agent_thought", messageId: "t2", content: [text("whole thought")] }],
  [".tool-head", { sessionUpdate: "tool_call", toolCallId: "k1", title: "a call by title", kind: "edit", status: "in_progress", content: [{ type: "diff", path: "/srv/one.rs", oldText: "before\n", newText: "after\n" }] }, "a call by title"],
  [".tool-head .mark.is-completed", { sessionUpdate: "tool_call_update", toolCallId: "k1", status: "completed" }],
  [".tool-head", { sessionUpdate: "tool_call_update", toolCallId: "k2", title: "a call of version 2", kind: "edit", status: "paused", content: [{ type: "diff", changes: [{ operation: "move", oldPath: "/srv/src/old.rs", path: "/srv/src/new.rs" }, { operation: "delete", path: "/srv/gone.rs" }], patch: { format: "git_patch", text: PATCH } }] }, "a call of version 2"],
  [".diff .path", { sessionUpdate: "tool_call_update", toolCallId: "k2", status: "completed" }, "/srv/gone.rs"],
  [".dl.add", { sessionUpdate: "tool_call_content_chunk", toolCallId: "k2", content: { type: "content", content: text("one more piece of a call") } }, "two of the patch"],
  [".tool-body .prose", { sessionUpdate: "tool_call_update", toolCallId: "k2" }, "one more piece of a call"],
  [".tool-head", { sessionUpdate: "terminal_update", terminalId: "x1", command: "make everything", cwd: "/srv" }, "make everything"],
  [".terminal", { sessionUpdate: "terminal_output_chunk", terminalId: "x1", data: base64("put out by make") }, "put out by make"],
  [".tool-body", { sessionUpdate: "terminal_update", terminalId: "x1", exitStatus: { exitCode: 2 } }, "exit code 2"],
  [".plan", { sessionUpdate: "plan", entries: [{ content: "the plan of version 1", priority: "high", status: "pending" }] }, "the plan of version 1"],
  [".plan", { sessionUpdate: "plan_update", plan: { type: "items", planId: "p1", entries: [{ content: "a planned item", priority: "low", status: "in_progress" }] } }, "a planned item"],
  [".plan", { sessionUpdate: "plan_update", plan: { type: "markdown", planId: "p2", content: "a plan as **prose**" } }, "a plan as prose"],
  [".plan", { sessionUpdate: "plan_update", plan: { type: "file", planId: "p3", uri: "file:///srv/PLAN.md" } }, "PLAN.md"],
  [".unshown summary", { sessionUpdate: "plan_update", plan: { type: "_example.com/gantt", planId: "p4" } }, "plan_update"],
  [".plan.is-gone", { sessionUpdate: "plan_removed", planId: "p1" }, "withdrawn"],
  [".notice.is-warning", { sessionUpdate: "notice", severity: "warning", title: "a notice with a title", description: "and its description" }, "and its description"],
  [".compaction", { sessionUpdate: "compaction_update", compactionId: "c1", status: "in_progress" }, "compacted"],
  [".compaction", { sessionUpdate: "compaction_summary_chunk", compactionId: "c1", content: text("summary in pieces") }, "summary in pieces", ".compaction .fold-line"],
  [".compaction", { sessionUpdate: "compaction_update", compactionId: "c1", status: "completed" }, "was compacted"],
  [".subagent", { sessionUpdate: "subagent_update", sessionId: CHILD, title: "a subagent by title", description: "looks around", state: { state: "running" }, cwd: "/srv" }, "a subagent by title"],
  [".subagent .nested .agent", { of: CHILD, sessionUpdate: "agent_message_chunk", content: text("words of a subagent") }, "words of a subagent", ".subagent .fold-line"],
  [".message", { sessionUpdate: "session_message", messageId: "m1", senderSessionId: session, recipientSessionId: CHILD, content: [text("told to the subagent")] }, "told to the subagent"],
  [".message", { sessionUpdate: "session_message_chunk", messageId: "m1", content: text(", and more of it") }, "and more of it"],
  [".quota summary", { sessionUpdate: "quota_update", limits: [{ name: "weekly", used: 70, limit: 100 }] }, "weekly: 70 of 100"],
  [".note", { sessionUpdate: "current_mode_update", currentModeId: "plan" }, "Plan only"],
  [".session-settings", { sessionUpdate: "config_option_update", configOptions: [{ id: "verbose", name: "Verbosity", type: "select", currentValue: "loud", options: [{ group: "g", name: "Group", options: [{ value: "loud", name: "Loud" }] }] }, { id: "net", name: "Network", type: "boolean", currentValue: true }, { id: "odd", name: "Odd one", type: "_example.com/dial", currentValue: 7 }] }, "odd one"],
  [".session-title", { sessionUpdate: "session_info_update", title: "the title of the session" }, "the title of the session"],
  [".session-facts", { sessionUpdate: "usage_update", used: 1234, size: 5000, cost: { amount: 1.5, currency: "EUR" } }, "1234 of 5000 tokens"],
  [".commands li", { sessionUpdate: "available_commands_update", availableCommands: [{ name: "only", description: "the only command", input: { hint: "what for" } }] }, "the only command", "textarea"],
  [".session-facts", { sessionUpdate: "state_update", state: "running", background: [{ type: "terminal", terminalId: "x1" }] }, "1 in the background"],
  [".unshown summary", { sessionUpdate: "_example.com/other", secret: "words of the unknown" }, "_example.com/other"],
];
