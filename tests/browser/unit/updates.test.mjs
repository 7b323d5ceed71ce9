import assert from "node:assert/strict";
import { test } from "node:test";
import { pictureOf, textOf } from "../../../web/console/lib/media.js";
import { readPatch } from "../../../web/console/lib/patch.js";
import { initial, reduce } from "../../../web/console/state/reduce.js";
import { addUpdates } from "../../../web/console/state/updates.js";
import { changedWithin, MAX_SIZE, newSession, within } from "../../../web/console/state/transcript.js";
import { kinds, picture } from "../kinds.mjs";

const at = (update, more) => ({ update, at: 1, size: JSON.stringify(update ?? null).length, ...more });
const chunk = (text, more) => ({ sessionUpdate: "agent_message_chunk", content: { type: "text", text }, ...more });

test("no kind of update is dropped, and none changes anything in place", () => {
  for (const [, { of, ...update }] of kinds("x")) {
    const before = newSession("x", { turn: "idle" });
    const copy = JSON.stringify(before);
    const after = addUpdates(before, [at(update)]);
    assert.equal(JSON.stringify(before), copy);
    if (!of) assert.notEqual(JSON.stringify(after), copy, JSON.stringify(update));
    assert.ok(after.items.every((item) => item.kind !== "unshown"), JSON.stringify(update));
  }
});

test("a whole message replaces the pieces that it came in, and one of another name does not", () => {
  const whole = (messageId, text) => at({ sessionUpdate: "agent_message", messageId, content: [{ type: "text", text }] });
  const session = addUpdates(newSession("x"), [at(chunk("in pie", { messageId: "m" })), at(chunk("ces", { messageId: "m" })), at({ sessionUpdate: "notice", title: "n", severity: "info" }), whole("m", "in pieces"), whole("other", "another"), whole("m", "in one piece")]);
  assert.deepEqual(session.items.map((item) => item.text), ["in one piece", "", "another"]);
});

test("updates of a kind that is not known are one line, and the last of them are kept", () => {
  const session = addUpdates(newSession("x"), Array.from({ length: 1000 }, (_, number) => at({ sessionUpdate: "_odd", number })));
  assert.deepEqual([session.items.length, session.items[0].count, session.items[0].updates.length], [1, 1000, 20]);
});

test("what is kept is bounded in characters too, and the newest stays", () => {
  let session = newSession("x");
  for (let one = 0; one < 100; one++) session = addUpdates(session, [at({ sessionUpdate: "agent_message_chunk", content: { type: "image", mimeType: "image/png", data: "A".repeat(2e6) } })]);
  assert.ok(session.size <= MAX_SIZE && session.truncated && session.items.length > 10, `${session.size}`);
  assert.equal(session.items.at(-1).key, 99);
  const said = addUpdates(newSession("y"), [at(chunk("word ".repeat(400_000)))]);
  assert.ok(said.items.length > 20 && said.items.every((item) => item.text.length <= 48_000));
  assert.equal(said.items.map((item) => item.text).join("").length, 2_000_000);
});

test("a flood of updates leaves what a tab can keep", () => {
  let session = newSession("x");
  const batch = (from) => Array.from({ length: 10_000 }, (_, one) => at([chunk(`word ${one} `), { sessionUpdate: "tool_call", toolCallId: `${from + one}`, title: "t".repeat(50), kind: "other" }, { sessionUpdate: "_odd", one }, { sessionUpdate: "subagent_update", sessionId: `s${from + one}` }, { sessionUpdate: "terminal_update", terminalId: `${from + one}`, command: "x" }][one % 5]));
  for (let told = 0; told < 2e5; told += 10_000) session = addUpdates(session, batch(told));
  assert.ok(session.items.length <= 20_000 && session.size <= MAX_SIZE && Object.keys(session.children).length <= 32 && Object.keys(session.terminals).length <= 200);
});

test("subagents are sessions in their parent, however many there are and whoever they say they are", () => {
  const subagent = (sessionId) => at({ sessionUpdate: "subagent_update", sessionId, title: sessionId });
  let root = addUpdates(newSession("x"), [subagent("a"), subagent("x"), subagent("")]);
  assert.deepEqual(Object.keys(root.children), ["a"]);
  root = changedWithin(root, "a", (child) => addUpdates(child, [subagent("b"), at(chunk("deep"))]));
  assert.equal(within(root, "b").title, "");
  assert.equal(within(root, "a").items.at(-1).text, "deep");
  assert.equal(changedWithin(root, "none", (one) => one), null);
  const many = addUpdates(newSession("x"), Array.from({ length: 5000 }, (_, one) => subagent(`s${one}`)));
  assert.ok(Object.keys(many.children).length <= 32 && many.children.s4999);
  // What is told of a subagent goes to it, and not to the session of the same name elsewhere.
  let state = [{ type: "opened", session: "x", label: "s1" }, { type: "updates", session: "x", updates: [subagent("a")] }, { type: "updates", session: "a", updates: [at(chunk("told"))] }].reduce(reduce, initial());
  assert.equal(state.sessions.x.children.a.items[0].text, "told");
  state = reduce(state, { type: "asked", question: { key: "a 1", rpc: 1, session: "a", params: {}, at: 1, state: "open" } });
  assert.equal(state.sessions.x.children.a.items[1].kind, "question");
  assert.equal(reduce(state, { type: "dropped", session: "x" }).questions.length, 0, "they go with their parent");
});

test("terminals that come in pieces are whole, also where a character is in two of them", () => {
  const bytes = Buffer.from("grün ✓");
  const halves = [bytes.subarray(0, 3), bytes.subarray(3, 7), bytes.subarray(7)].map((one) => one.toString("base64"));
  let [text, rest] = ["", ""];
  for (const half of halves) {
    const next = textOf(rest, half);
    [text, rest] = [text + next.text, next.rest];
  }
  assert.deepEqual([text, rest], ["grün ✓", ""]);
  const session = addUpdates(newSession("x"), [
    at({ sessionUpdate: "terminal_update", terminalId: "t", command: "make" }),
    at({ sessionUpdate: "tool_call", toolCallId: "c", title: "make", kind: "execute", content: [{ type: "terminal", terminalId: "t" }] }),
    ...halves.map((data) => at({ sessionUpdate: "terminal_output_chunk", terminalId: "t", data })),
  ]);
  assert.equal(session.items[1].calls[0].terminals.t.output, "grün ✓");
  assert.ok(session.items[0].isElsewhere, "it is shown once");
});

test("only pictures that can be measured and are not too large are drawn", () => {
  assert.deepEqual(pictureOf("image/png", picture(64, 32)), { width: 64, height: 32 });
  const jpeg = Buffer.from([0xff, 0xd8, 0xff, 0xe0, 0, 4, 0, 0, 0xff, 0xc0, 0, 11, 8, 0, 20, 0, 30, 1, 0, 0, 0]).toString("base64");
  assert.deepEqual(pictureOf("image/jpeg", jpeg), { width: 30, height: 20 });
  assert.deepEqual(pictureOf("image/gif", Buffer.from("GIF89a\u0005\u0000\u0007\u0000....").toString("base64")), { width: 5, height: 7 });
  const bomb = Buffer.from(picture(8, 8), "base64");
  bomb.writeUInt32BE(60_000, 16);
  bomb.writeUInt32BE(60_000, 20);
  for (const [kind, data] of [["image/png", bomb.toString("base64")], ["image/svg+xml", Buffer.from("<svg/>").toString("base64")], ["text/html", "PGI+"], ["image/png", "\"><script>"], ["image/png", 7], ["__proto__", ""], ["image/png", ""]]) assert.equal(pictureOf(kind, data), null, `${kind}`);
});

test("a patch is read file by file", () => {
  const files = readPatch("diff --git a/x/new.rs b/x/new.rs\nnew file mode 100644\n--- /dev/null\n+++ b/x/new.rs\n@@ -0,0 +1,2 @@\n+one\n+--- two\ndiff --git a/gone b/gone\ndeleted file mode 100644\n--- a/gone\n+++ /dev/null\n@@ -1 +0,0 @@\n-bye\n");
  assert.deepEqual(files.map((file) => [file.path, file.operation, file.added, file.removed]), [["x/new.rs", "add", 2, 0], ["gone", "delete", 0, 1]]);
  assert.deepEqual(files[0].lines.map((line) => line.text), ["one", "--- two"]);
  for (const odd of ["", "@@ -1 +1 @@", "--- \n+++ \n@@ -1,9999999 +1 @@\n+", "diff --git"]) assert.ok(Array.isArray(readPatch(odd)), odd);
});

test("a whole message that is too long for one item is several, and none of it is said twice when it is told again", () => {
  const told = (length) => ({ update: { sessionUpdate: "agent_message", messageId: "m", content: [{ type: "text", text: "a line\n".repeat(length) }] }, at: 1, size: 7 * length });
  let session = addUpdates(newSession("s"), [told(20_000)]);
  const texts = () => session.items.map((item) => item.text).join("");
  assert.ok(session.items.length === 3 && session.items.every((item) => item.text.length <= 48_000 && item.text.endsWith("\n")));
  assert.equal(texts(), "a line\n".repeat(20_000));
  session = addUpdates(session, [told(30_000)]);
  assert.equal(texts(), "a line\n".repeat(30_000));
  session = addUpdates(session, [told(3)]);
  assert.equal(texts(), "a line\n".repeat(3));
});
