import assert from "node:assert/strict";
import { test } from "node:test";
import { arrived } from "../../../web/console/state/outbox.js";
import { initial, reduce } from "../../../web/console/state/reduce.js";
import { toMarkdown } from "../../../web/console/state/export.js";
import { addItem, MAX_ITEMS, newSession } from "../../../web/console/state/transcript.js";
import { addUpdates } from "../../../web/console/state/updates.js";
import { addEvents, filterRows, MAX_ROWS, newWire, turnBars } from "../../../web/console/state/wire.js";

const chunk = (text, kind = "agent_message_chunk") => ({ sessionUpdate: kind, content: { type: "text", text } });
const at = (update, time = 1) => ({ update, at: time });
const play = (...actions) => actions.reduce(reduce, initial());
const opened = { type: "opened", session: "T.a", label: "s1" };
const question = (rpc, session = "T.a", time = 5) => ({ key: `${session} ${rpc}`, rpc, session, method: "session/request_permission", params: { toolCall: { toolCallId: "c" }, options: [] }, at: time, state: "open" });

test("a dialog that closes late does not close the next one", () => {
  const dialog = { type: "dialog", dialog: { kind: "keys" } };
  const first = play(dialog);
  const typed = reduce(first, { type: "dialog", dialog: { ...first.dialog, text: "a" } });
  assert.equal(typed.dialog.serial, first.dialog.serial);
  const next = [{ type: "dialog", dialog: null }, dialog, { type: "dialogClosed", serial: first.dialog.serial }].reduce(reduce, typed);
  assert.equal(next.dialog.kind, "keys");
  assert.equal(reduce(next, { type: "dialogClosed", serial: next.dialog.serial }).dialog, null);
});

test("chunks of one speaker are one item, and nothing is changed in place", () => {
  const before = Object.freeze(newSession("x", { items: Object.freeze([]) }));
  const after = addUpdates(before, [at(chunk("a")), at(chunk("b")), at(chunk("t", "agent_thought_chunk"), 3), at(chunk("c"), 9)]);
  assert.deepEqual(after.items.map((item) => [item.kind, item.text]), [["agent", "ab"], ["thought", "t"], ["agent", "c"]]);
  assert.equal(after.items[1].end, 9);
  assert.equal(before.items.length, 0);
});

test("a long text goes on in further items", () => {
  const updates = Array.from({ length: 400 }, (_, line) => at(chunk(`line ${line} ${"x".repeat(200)}\n\n`)));
  const session = addUpdates(newSession("x"), updates);
  assert.ok(session.items.length > 3 && session.items.every((item) => item.text.length < 50_000));
  assert.equal(session.items.map((item) => item.text).join(""), updates.map((one) => one.update.content.text).join(""));
});

test("a tool call is one item that changes, and reads that follow each other are one line", () => {
  const call = (id, kind, more) => at({ sessionUpdate: "tool_call", toolCallId: id, kind, title: id, status: "pending", ...more }, 10);
  const session = addUpdates(newSession("x"), [
    call("r1", "read"), call("r2", "read"), call("e", "edit"),
    at({ sessionUpdate: "tool_call_update", toolCallId: "r1", status: "completed" }, 20),
    at({ sessionUpdate: "tool_call_update", toolCallId: "e", status: "failed", content: [{ type: "diff", path: "p", newText: "" }] }, 30),
    at({ sessionUpdate: "tool_call_update", toolCallId: "e", _meta: { terminal_output: { data: "out" } } }, 31),
  ]);
  assert.deepEqual(session.items.map((item) => item.calls.map((one) => one.id)), [["r1", "r2"], ["e"]]);
  assert.deepEqual([session.items[0].calls[0].end, session.items[1].calls[0].status, session.items[1].calls[0].terminal], [20, "failed", "out"]);
});

test("a plan fills in place until the turn is over", () => {
  const plan = (status) => at({ sessionUpdate: "plan", entries: [{ content: "do", status }] });
  let session = addUpdates(newSession("x", { turn: "running", turnAt: 1 }), [plan("pending"), at(chunk("a")), plan("completed")]);
  assert.deepEqual(session.items.filter((item) => item.kind === "plan").map((item) => item.entries[0].status), ["completed"]);
  session = reduce({ ...initial(), sessions: { x: session } }, { type: "turn", session: "x", turn: "idle", at: 9, reason: "end_turn" }).sessions.x;
  session = addUpdates(session, [plan("pending")]);
  assert.equal(session.items.filter((item) => item.kind === "plan").length, 2);
});

test("what a session keeps is bounded", () => {
  let session = newSession("x");
  for (let batch = 0; batch < 50; batch++) {
    session = addUpdates(session, Array.from({ length: 1000 }, (_, one) => at({ sessionUpdate: "tool_call", toolCallId: `${batch} ${one}`, kind: "other", title: "t" })));
  }
  assert.ok(session.items.length <= MAX_ITEMS && session.truncated);
  assert.equal(session.items.at(-1).key, 49_999);
  const keys = session.items.map((item) => item.key);
  assert.ok(keys.every((key, place) => place === 0 || key === keys[place - 1] + 1));
});

test("updates in bulk cost little: 2,000 a second on top of 20,000", () => {
  let session = addUpdates(newSession("x"), Array.from({ length: 19_000 }, (_, one) => at({ sessionUpdate: "tool_call", toolCallId: `${one}`, kind: "other", title: "t" })));
  const began = process.cpuUsage().user;
  for (let frame = 0; frame < 60; frame++) session = addUpdates(session, Array.from({ length: 34 }, (_, one) => at(chunk(`${frame} ${one} `))));
  assert.ok(process.cpuUsage().user - began < 1e6, "a second of it takes less than a second");
});

test("a question is open until this page, another client or the bus ends it", () => {
  let state = play(opened, { type: "asked", question: question(1) }, { type: "asked", question: { ...question(2), params: { toolCall: { toolCallId: "d" } } } });
  assert.deepEqual(state.questions.map((one) => one.rpc), [1, 2]);
  state = reduce(state, { type: "decided", key: "T.a 1", by: "me", choice: "Allow once", end: 900 });
  assert.equal(state.armedAt, 900, "the cards have moved");
  state = reduce(state, { type: "withdrawn", rpc: 2, at: 950 });
  assert.equal(state.questions.length, 0);
  state = reduce(state, { type: "decidedBy", session: "T.a", event: { by: "zed" } });
  assert.deepEqual(state.answered.map((one) => [one.rpc, one.state, one.by]), [[1, "answered", "me"], [2, "answered", "zed"]]);
  const shown = state.sessions["T.a"].items.filter((item) => item.kind === "question").map((item) => item.question.by);
  assert.deepEqual(shown, ["me", "zed"]);
});

test("two questions that are alike are two, each with its answer", () => {
  let state = play(opened, { type: "asked", question: question(1) }, { type: "asked", question: question(2, "T.a", 700) });
  assert.deepEqual(state.questions.map((one) => [one.rpc, one.at]), [[1, 5], [2, 700]]);
  assert.equal(state.armedAt, 700);
  state = reduce(state, { type: "decided", key: "T.a 2", by: "me", choice: "Deny", verdict: "denied", end: 800 });
  assert.deepEqual(state.questions.map((one) => one.rpc), [1]);
  const shown = state.sessions["T.a"].items.filter((item) => item.kind === "question").map((item) => item.question.state);
  assert.deepEqual(shown, ["open", "answered"]);
});

test("what this page let go of takes its old place when it is asked once more", () => {
  const state = play(opened, { type: "asked", question: question(1) }, { type: "unasked", session: "T.a" }, { type: "asked", question: question(2, "T.a", 700) });
  assert.deepEqual(state.questions.map((one) => [one.rpc, one.at]), [[2, 5]]);
  const shown = state.sessions["T.a"].items.filter((item) => item.kind === "question").map((item) => [item.question.rpc, item.question.state]);
  assert.deepEqual(shown, [[2, "open"]]);
});

test("the choice of another client is shown as far as it is told, and one's own answer is not taken for it", () => {
  const asked = { ...question(1), params: { toolCall: { toolCallId: "c" }, options: [{ optionId: "n", kind: "reject_once", name: "No" }] } };
  let state = play({ type: "link", me: "me" }, opened, { type: "asked", question: asked }, { type: "withdrawn", rpc: 1, at: 9 });
  assert.equal(reduce(state, { type: "decidedBy", session: "T.a", event: { by: "me" } }), state);
  state = reduce(state, { type: "decidedBy", session: "T.a", event: { by: "zed", optionId: "n" } });
  assert.deepEqual([state.answered[0].by, state.answered[0].choice, state.answered[0].verdict], ["zed", "No", "denied"]);
  assert.equal(state.verdicts["T.a c"].verdict, "denied");
});

test("an answer that came after another's is not taken for the one that counted", () => {
  const asked = { ...question(1), params: { toolCall: { toolCallId: "c" }, options: [{ optionId: "y", kind: "allow_once", name: "Yes" }] } };
  let state = play({ type: "link", me: "me" }, opened, { type: "asked", question: asked }, { type: "decided", key: "T.a 1", by: "me", choice: "No", verdict: "denied", end: 8 });
  assert.equal(state.verdicts["T.a c"].isMine, true);
  state = reduce(state, { type: "withdrawn", rpc: 1, at: 9 });
  assert.deepEqual([state.answered[0].state, state.verdicts["T.a c"]], ["withdrawn", undefined]);
  state = reduce(state, { type: "decidedBy", session: "T.a", event: { by: "zed", optionId: "y" } });
  const { question: shown } = state.sessions["T.a"].items.find((item) => item.kind === "question");
  assert.deepEqual([shown.by, shown.choice, shown.verdict], ["zed", "Yes", "allowed"]);
});

test("names that every object inherits are names like any other", () => {
  for (const name of ["__proto__", "constructor", "toString", "hasOwnProperty"]) {
    let state = play({ type: "updates", session: name, updates: [at(chunk("x"))] });
    assert.equal(Object.keys(state.sessions).length, 0, "an unknown session");
    state = play({ type: "opened", session: name, label: name }, { type: "updates", session: name, updates: [at({ sessionUpdate: name, status: name })] }, { type: "unshared", label: name, why: name }, { type: "pool", id: name });
    assert.deepEqual([Object.keys(state.sessions), state.unshared[name], state.openPools[name]], [[name], name, true]);
    assert.equal(reduce(state, { type: name }), state);
    assert.equal(Object.keys(reduce(state, { type: "dropped", session: name }).sessions).length, 0);
  }
});

test("an update that makes no sense is kept as it is, and the others are shown", () => {
  const odd = { toString: 1, valueOf: 1 };
  const session = addUpdates(newSession("x"), [at(chunk("a")), at({ sessionUpdate: "tool_call", toolCallId: odd }), at(chunk("b"))]);
  assert.deepEqual(session.items.map((item) => item.kind), ["agent", "unshown", "agent"]);
});

test("what was on its way when the connection was lost is not taken for said, unless it is told again", () => {
  const entry = (key, state, more) => ({ type: "out", entry: { key, session: "T.a", text: `do ${key}`, state, said: 0, ...more } });
  let state = play(opened, entry("1", "unsent"), entry("2", "sent", { rpc: 4 }), entry("3", "waits", { rpc: 5 }), { type: "lost" });
  assert.deepEqual(state.outbox.map((one) => one.state), ["unsent", "unsure", "unsure"]);
  state = reduce(state, { type: "updates", session: "T.a", updates: [at(chunk("do 2", "user_message_chunk"))] });
  assert.deepEqual(arrived(state, "T.a").map((one) => one.key), ["2"]);
  const loaded = play({ type: "kept", outbox: [{ key: "1", session: "s", text: "x", state: "sent" }, { key: 7 }, null], verdicts: undefined });
  assert.deepEqual(loaded.outbox.map((one) => [one.key, one.state]), [["1", "unsure"]]);
});

test("sessions that wait for a person come first, then the lost, the busy, the idle", () => {
  const view = (session, more) => ({ session, pool: "p", state: "live", calls: 0, idle_sec: 5, age_sec: 9, ...more });
  const state = play({ type: "list", list: [view("s1"), view("s2", { calls: 1 }), view("s3", { questions: 1, calls: 1 }), view("s4", { state: "kept" }), view("s5", { state: "lost" }), view("s6", { idle_sec: 1 })] });
  assert.deepEqual(state.list.map((one) => one.session), ["s3", "s5", "s2", "s6", "s1", "s4"]);
});

test("a session that asks is first at once, and not any more when it is answered", () => {
  const list = ["s1", "s2"].map((session) => ({ session, pool: "p", state: "live", calls: 1, idle_sec: 5, age_sec: 9 }));
  let state = play(opened, { type: "list", list }, { type: "asked", question: question(1) });
  assert.deepEqual(state.list.map((one) => [one.session, one.mood]), [["s1", "waiting"], ["s2", "running"]]);
  state = reduce(state, { type: "decided", key: "T.a 1", by: "me", end: 9 });
  assert.deepEqual(state.list.map((one) => [one.session, one.mood]), [["s2", "running"], ["s1", "running"]]);
});

test("who comes and goes is seen, and taking over changes the owner", () => {
  const event = (event) => ({ type: "event", session: "T.a", event, at: 1 });
  const state = play({ ...opened, owner: "zed" }, event({ event: "attached", client: "me", role: "control" }), event({ event: "attached", client: "tv", role: "observe" }), event({ event: "owner", owner: "me" }), event({ event: "detached", client: "tv" }));
  const { owner, guests } = state.sessions["T.a"];
  assert.deepEqual([owner, guests], ["me", [{ client: "zed", role: "control" }]]);
});

test("a turn ends once, whoever tells it", () => {
  const turn = (more) => ({ type: "turn", session: "T.a", ...more });
  const state = play(opened, turn({ turn: "running", at: 100, by: "me" }), turn({ turn: "idle", at: 350, reason: "end_turn" }), turn({ turn: "idle", at: 360 }));
  const ends = state.sessions["T.a"].items.filter((item) => item.kind === "turn");
  assert.deepEqual(ends.map((item) => [item.took, item.reason]), [[250, "end_turn"]]);
});

test("a prompt of another is by who began the turn", () => {
  const state = play(opened, { type: "updates", session: "T.a", updates: [at(chunk("do it", "user_message_chunk"))] }, { type: "turn", session: "T.a", turn: "running", at: 5, by: "zed" });
  assert.equal(state.sessions["T.a"].items[0].by, "zed");
});

test("a lost connection takes the questions away and leaves what was said", () => {
  const state = play(opened, { type: "updates", session: "T.a", updates: [at(chunk("hello"))] }, { type: "asked", question: question(1) }, { type: "lost" });
  assert.equal(state.questions.length, 0);
  assert.equal(state.sessions["T.a"].items[0].text, "hello");
});

test("an unknown action or session changes nothing", () => {
  const state = initial();
  assert.equal(reduce(state, { type: "no such" }), state);
  assert.equal(reduce(state, { type: "updates", session: "x", updates: [] }), state);
});

test("a transcript is exported", () => {
  const session = addUpdates(newSession("x", { label: "s1", title: "T" }), [at(chunk("do it", "user_message_chunk")), at(chunk("yes")), at({ sessionUpdate: "tool_call", toolCallId: "1", title: "run", kind: "execute" })]);
  assert.equal(toMarkdown(session, (call) => call.title), "# T\n\n## User\n\ndo it\n\nyes\n\n- run\n");
});

test("an export has what calls ran, changed and put out, and what was answered", () => {
  const call = (toolCallId, more) => at({ sessionUpdate: "tool_call", toolCallId, title: `call ${toolCallId}`, status: "completed", ...more });
  let session = addUpdates(newSession("x", { label: "s1", title: "T" }), [
    call("1", { kind: "edit", content: [{ type: "diff", path: "/a", oldText: "one\ntwo\n", newText: "one\n2\n" }] }),
    call("2", { kind: "execute", rawInput: { command: "make", args: ["all"] }, content: [{ type: "content", content: { type: "text", text: "```\n\u001b[31mred\u001b[0m\n```" } }] }),
    call("3", { kind: "execute", rawOutput: "a fence ``` in it" }),
    call("4", { kind: "execute", title: "two\nlines", _meta: { terminal_output: { data: "x".repeat(50_000) } } }),
    at({ sessionUpdate: "terminal_update", terminalId: "t", command: "ls", output: { data: btoa("file") } }),
  ]);
  for (const one of [{ rpc: 1, state: "answered", choice: "Deny", verdict: "denied", by: "zed", params: { toolCall: { title: "rm" } } }, { rpc: 2, state: "answered", choice: "Submitted", content: { branch: "next" }, params: { message: "Which?" } }, { rpc: 3, state: "open", params: {} }]) session = addItem(session, { kind: "question", question: one });
  const text = toMarkdown(session, (one) => one.title, { "x 2": { verdict: "allowed", choice: "Allow once", by: "zed" } });
  for (const part of [
    "- call 1\n  ```diff\n  modify: /a\n   one\n  -two\n  +2\n  ```",
    "- call 2 · allowed with “Allow once” by zed\n  ```sh\n  $ make all\n  ```\n  ```\n  red\n  ```",
    "- call 3\n  ````\n  a fence ``` in it\n  ````",
    "- two lines\n", "30000 characters are left out",
    "- ls\n  ```\n  file\n  ```",
    "**Asked:** rm · denied with “Deny” by zed", "**Asked:** Which? · answered with “Submitted”\n\n```json\n{\n  \"branch\": \"next\"\n}\n```", "**Asked:** a question · not answered yet",
  ]) assert.ok(text.includes(part), `${part}\n\nis not in\n\n${text.replace(/x{100,}/g, "x…")}`);
  assert.ok(text.length < 25_000);
});

const line = (kind, more) => ({ kind, direction: "client->worker", client: "zed", session: "s1", pool: "p", worker: 0, bytes: 10, ...more });

test("requests and answers are one row, and so are runs of updates", () => {
  const wire = addEvents(newWire(), [
    line("request", { at_us: 10, method: "session/prompt", call: 1, id: 4 }),
    ...[20, 30, 40].map((at_us) => line("notification", { at_us, method: "session/update", direction: "worker->client" })),
    line("request", { at_us: 50, method: "session/request_permission", call: 2, direction: "worker->client" }),
    line("result", { at_us: 90, call: 2, latency_us: 40 }),
    line("error", { at_us: 100, call: 1, latency_us: 90, reason: "worker_lost", direction: "worker->client" }),
  ]);
  assert.deepEqual(wire.rows.map((row) => [row.method, row.count, row.latency]), [["session/prompt", 1, 90], ["session/update", 3, null], ["session/request_permission", 1, 40]]);
  assert.deepEqual(filterRows(wire.rows, "error").map((row) => row.method), ["session/prompt"]);
  assert.deepEqual(filterRows(wire.rows, "zed update").length, 1);
  const { start, end, bars } = turnBars(wire.rows, wire.rows[0]);
  assert.deepEqual([start, end], [10, 100]);
  assert.deepEqual(bars.filter((bar) => bar.kind === "ask").map((bar) => [bar.lane, bar.start, bar.end]), [["client", 50, 90]]);
});

test("updates of two sessions at once are one row each, until something else is said in one", () => {
  const update = (session, at_us) => line("notification", { at_us, method: "session/update", direction: "worker->client", session });
  const wire = addEvents(newWire(), [update("s1", 1), update("s2", 2), update("s1", 3), update("s2", 4), line("request", { at_us: 5, method: "m", call: 1, session: "s1" }), update("s1", 6), update("s2", 7)]);
  assert.deepEqual(wire.rows.map((row) => [row.session, row.count]), [["s1", 2], ["s2", 3], ["s1", 1], ["s1", 1]]);
});

test("the wire keeps only so many rows, and still pairs", () => {
  let wire = newWire();
  for (let batch = 0; batch < 50; batch++) wire = addEvents(wire, Array.from({ length: 1000 }, (_, one) => line("request", { at_us: batch * 1000 + one, method: "m", call: batch * 1000 + one })));
  assert.ok(wire.rows.length <= MAX_ROWS && wire.calls.size <= MAX_ROWS + 1000);
  wire = addEvents(wire, [line("result", { at_us: 60_000, call: 49_999, latency_us: 7 }), line("result", { at_us: 60_001, call: 0 })]);
  assert.equal(wire.rows.find((row) => row.call === 49_999).latency, 7);
});
