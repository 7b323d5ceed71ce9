import assert from "node:assert/strict";
import { mock, test } from "node:test";
import { initial, reduce } from "../../../web/console/state/reduce.js";
import { Bus } from "../../../web/console/net/bus.js";
import { waitOf } from "../../../web/console/net/pace.js";
import { Store } from "../../../web/console/state/store.js";
import { Sessions } from "../../../web/console/net/sessions.js";
import { Talk } from "../../../web/console/net/talk.js";

/** A connection without a socket: what is asked is noted, and answered by the test. */
function page() {
  const bus = {
    state: reduce(initial(), { type: "link", status: "live", me: "me", scope: "control" }), isAnswering: true, asked: [], told: [], beats: 0,
    dispatch: (action) => void (bus.state = reduce(bus.state, action)),
    ask: (method, params) => {
      const call = { rpc: bus.asked.length + 1, method, params };
      const answer = new Promise((done, failed) => Object.assign(call, { done, failed }));
      bus.asked.push(call);
      return Object.assign(answer, { rpc: call.rpc });
    },
    tell: (method, params) => bus.told.push({ method, params }),
    beat: () => (bus.beats += 1),
    may: () => true,
  };
  bus.sessions = new Sessions(bus);
  bus.talk = new Talk(bus);
  bus.dispatch({ type: "opened", session: "T.a", label: "s1" });
  bus.sessions.here.add("T.a");
  bus.kinds = () => bus.state.sessions["T.a"].items.map((item) => `${item.kind} ${item.text ?? item.reason ?? ""}`.trim());
  bus.event = (event) => bus.sessions.event({ session: "T.a", ...event });
  return bus;
}

/** Sends a prompt although a turn runs. */
function sendNow(bus, text) {
  bus.talk.prompt("T.a", text);
  const entry = bus.state.outbox.at(-1);
  if (entry.state === "queued") bus.talk.sendAgain(entry);
}

const done = () => new Promise((then) => setImmediate(then));

test("a prompt is said when the bus has it, and not before", async () => {
  const bus = page();
  bus.talk.prompt("T.a", "hello");
  assert.deepEqual([bus.kinds(), bus.state.outbox[0].state, bus.beats], [[], "sent", 1]);
  bus.talk.readUpTo(1);
  assert.deepEqual(bus.kinds(), [], "an answer to what was sent before it says nothing");
  bus.talk.readUpTo(2);
  assert.deepEqual([bus.kinds(), bus.state.outbox], [["user hello"], []]);
  bus.asked[0].done({ stopReason: "end_turn" });
  await done();
  assert.deepEqual(bus.kinds(), ["user hello", "turn end_turn"]);
});

test("a prompt that waits for another's turn is said when its own begins", async () => {
  const bus = page();
  bus.event({ event: "turn", turn: "running", by: "zed" });
  sendNow(bus, "mine");
  bus.event({ event: "queued", by: "me", place: 1 });
  bus.talk.readUpTo(9);
  assert.deepEqual([bus.kinds(), bus.state.outbox[0].state], [[], "waits"]);
  bus.event({ event: "turn", turn: "idle", stopReason: "end_turn" });
  bus.event({ event: "turn", turn: "running", by: "me" });
  assert.deepEqual(bus.kinds(), ["turn end_turn", "user mine"]);
  sendNow(bus, "another");
  bus.event({ event: "queued", by: "me", place: 1 });
  bus.talk.takeBack(bus.state.outbox[0]);
  assert.deepEqual(bus.told, [{ method: "$/cancel_request", params: { requestId: 2 } }]);
  bus.asked[1].done({ stopReason: "cancelled" });
  await done();
  assert.deepEqual([bus.kinds(), bus.state.outbox, bus.state.sessions["T.a"].turn], [["turn end_turn", "user mine"], [], "running"]);
});

test("of two prompts of one's own each ends its own turn, and the session is idle after the last", async () => {
  for (const order of [[0, 1], [1, 0]]) {
    const bus = page();
    for (const text of ["one", "two"]) {
      sendNow(bus, text);
      bus.event({ event: "turn", turn: "running", by: "me" });
    }
    bus.asked[order[0]].done({ stopReason: "end_turn" });
    await done();
    // The second one of an agent that does both at once says nothing of the first.
    assert.deepEqual(bus.kinds(), order[0] === 0 ? ["user one", "user two", "turn end_turn"] : ["user one", "user two"]);
    assert.equal(bus.state.sessions["T.a"].turn, "running");
    bus.asked[order[1]].done({ stopReason: "max_tokens" });
    await done();
    assert.equal(bus.kinds().at(-1), "turn max_tokens");
    assert.equal(bus.state.sessions["T.a"].turn, "idle");
    bus.event({ event: "turn", turn: "idle", stopReason: "max_tokens" });
    assert.equal(bus.kinds().filter((kind) => kind === "turn max_tokens").length, 1);
  }
});

test("what is written during a turn waits here, can be put in order, and goes when the turn is over", async () => {
  const bus = page();
  bus.event({ event: "turn", turn: "running", by: "zed" });
  for (const text of ["one", "two", "three"]) bus.talk.prompt("T.a", text);
  assert.equal(bus.asked.length, 0);
  const texts = () => bus.state.outbox.map((one) => one.text);
  const [first, , third] = bus.state.outbox.map((one) => one.key);
  bus.dispatch({ type: "outMoved", key: third, step: -1 });
  bus.dispatch({ type: "outMoved", key: first, step: -1 });
  assert.deepEqual(texts(), ["one", "three", "two"]);
  bus.event({ event: "turn", turn: "idle", stopReason: "end_turn" });
  assert.deepEqual(bus.asked.map((one) => one.params.prompt[0].text), ["one"], "one at a time");
  bus.event({ event: "turn", turn: "running", by: "me" });
  bus.asked[0].done({ stopReason: "end_turn" });
  await done();
  assert.deepEqual(bus.asked.map((one) => one.params.prompt[0].text), ["one", "three"]);
  // Who stops a turn does not want the next one to begin by itself.
  bus.event({ event: "turn", turn: "running", by: "me" });
  bus.talk.stop("T.a");
  bus.asked[1].done({ stopReason: "cancelled" });
  await done();
  assert.deepEqual([bus.asked.length, texts()], [2, ["two"]]);
  bus.talk.goOn("T.a");
  assert.equal(bus.asked.length, 3);
});

test("a turn that goes on although it was cancelled is said to be stuck, and one that ends is not", () => {
  mock.timers.enable({ apis: ["setTimeout", "Date"], now: 1e6 });
  const bus = page();
  const isStuck = () => !!bus.state.sessions["T.a"].isStuck;
  bus.event({ event: "turn", turn: "running", by: "zed" });
  bus.talk.stop("T.a");
  mock.timers.tick(4000);
  bus.talk.stop("T.a");
  assert.equal(isStuck(), false);
  mock.timers.tick(1100);
  assert.deepEqual([isStuck(), bus.told.map((one) => one.method)], [true, ["session/cancel", "session/cancel"]]);
  bus.event({ event: "turn", turn: "idle", stopReason: "cancelled" });
  assert.equal(isStuck(), false);
  bus.event({ event: "turn", turn: "running", by: "zed" });
  bus.talk.stop("T.a");
  bus.event({ event: "turn", turn: "idle", stopReason: "cancelled" });
  bus.event({ event: "turn", turn: "running", by: "zed" });
  mock.timers.tick(6000);
  assert.equal(isStuck(), false, "this is another turn");
  mock.timers.reset();
});

test("an answer of version 2 says that the agent has the prompt, and not that it is done", async () => {
  const bus = page();
  bus.talk.prompt("T.a", "two");
  bus.asked[0].done({ messageId: "m" });
  await done();
  assert.deepEqual([bus.kinds(), bus.state.sessions["T.a"].turn], [["user two"], "running"]);
  bus.sessions.updated("T.a", [{ update: { sessionUpdate: "user_message", messageId: "m", content: [{ type: "text", text: "two" }] }, at: 1 }, { update: { sessionUpdate: "state_update", state: "idle", stopReason: "end_turn" }, at: 2 }]);
  assert.deepEqual([bus.kinds(), bus.state.sessions["T.a"].turn], [["user two", "turn end_turn"], "idle"]);
});

test("the error of another's turn is shown to who looks on, and one's own is shown once", async () => {
  const error = { code: -32603, message: "429 Too Many Requests" };
  const bus = page();
  bus.event({ event: "turn", turn: "running", by: "zed" });
  bus.event({ event: "turn", turn: "idle", stopReason: "error", error });
  assert.deepEqual(bus.kinds(), ["error", "turn error"]);
  assert.equal(bus.state.sessions["T.a"].items[0].error.message, "429 Too Many Requests");
  const own = page();
  own.talk.prompt("T.a", "mine");
  own.event({ event: "turn", turn: "running", by: "me" });
  own.event({ event: "turn", turn: "idle", stopReason: "error", error });
  own.asked[0].failed(Object.assign(new Error("429 Too Many Requests"), { code: -32603 }));
  await done();
  assert.deepEqual(own.kinds(), ["user mine", "error", "turn error"]);
});

test("what the bus refuses, or cannot be sent, stays", async () => {
  const bus = page();
  bus.talk.prompt("T.a", "refused");
  bus.asked[0].failed(Object.assign(new Error("busy"), { reason: "busy" }));
  await done();
  assert.deepEqual([bus.kinds(), bus.state.outbox.map((one) => one.state)], [["error"], ["refused"]]);
  bus.isAnswering = false;
  bus.talk.sendAgain(bus.state.outbox[0]);
  assert.deepEqual([bus.asked.length, bus.state.outbox[0].state], [1, "unsent"]);
  assert.equal(bus.talk.answer({ rpc: 1, key: "T.a 1" }, {}, { choice: "Yes" }), false);
  bus.isAnswering = true;
  bus.sessions.here.clear();
  bus.talk.sendAll();
  assert.equal(bus.asked.length, 1, "the session is not joined yet");
  bus.sessions.settled("T.a", { label: "s1", turn: "idle" });
  assert.equal(bus.asked.length, 2);
});

test("who joins is asked what is as old as the session is idle", () => {
  const bus = page();
  bus.dispatch({ type: "list", list: [{ session: "s1", state: "live", questions: 1, idle_sec: 90 }] });
  const view = bus.state.list[0];
  assert.ok(Date.now() - bus.sessions.askedAt("T.a", view) < 1000, "it was there when the agent asked");
  bus.sessions.settled("T.a", { label: "s1", turn: "running" });
  assert.ok(Date.now() - bus.sessions.askedAt("T.a", view) >= 90_000);
});

test("somebody who says nothing is asked, and is not answering after some seconds, and is tried anew after half a minute", async () => {
  globalThis.sessionStorage ??= { getItem: () => null, setItem: () => undefined };
  globalThis.WebSocket ??= { CONNECTING: 0 };
  mock.timers.enable({ apis: ["Date"], now: 1_000_000 });
  const store = new Store(() => undefined);
  const bus = new Bus(store);
  const asked = [];
  let closed = 0;
  const answers = [];
  bus.peer = { isOpen: true, heardAt: Date.now(), socket: { readyState: 1 }, close: () => (closed += 1), ask: (method) => (asked.push(method), Object.assign(new Promise((done) => answers.push(done)), { rpc: asked.length })) };
  store.dispatch({ type: "link", status: "live", me: "me" });
  const pass = (ms) => {
    mock.timers.tick(ms);
    bus.look();
    return store.state.link.status;
  };
  for (let second = 0; second < 60; second++) {
    bus.peer.heardAt = Date.now();
    pass(1000);
  }
  assert.deepEqual(asked, [], "a page that hears something asks nothing");
  pass(1000);
  assert.deepEqual(asked, ["_bus/hello"]);
  assert.deepEqual([pass(2000), pass(1500)], ["live", "silent"]);
  assert.ok(!bus.isAnswering);
  bus.heard({ id: 1, result: {} });
  assert.deepEqual([store.state.link.status, bus.isAnswering], ["live", true]);
  pass(2000);
  for (let second = 0; second < 40; second++) pass(1000);
  assert.ok(closed > 0 && asked.length <= 3, `${closed} ${asked.length}`);
  mock.timers.reset();
});

/** A page whose questions to the bus are answered at once; how many lists it has asked for. */
function polling(list) {
  globalThis.sessionStorage ??= { getItem: () => null, setItem: () => undefined };
  globalThis.document ??= { hidden: false };
  mock.timers.enable({ apis: ["setTimeout", "Date"], now: 1e6 });
  const bus = new Bus(new Store(() => undefined));
  bus.lists = 0;
  bus.peer = {
    isOpen: true, heardAt: Date.now(), socket: { readyState: 1 }, close: () => undefined, send: () => undefined,
    ask: (method) => (bus.lists += Number(method === "_bus/sessions"), Object.assign(Promise.resolve(method === "_bus/sessions" ? { sessions: list } : { pools: [] }), { rpc: 1 })),
  };
  bus.dispatch({ type: "link", status: "live", me: "me" });
  /** So much time passes, while what is answered is heard. */
  bus.pass = async (ms) => {
    const before = bus.lists;
    for (let passed = 0; passed < ms; passed += 100) {
      mock.timers.tick(100);
      await done();
    }
    return bus.lists - before;
  };
  return bus;
}

test("the bus is asked seldom while nothing happens, and soon after something has", async () => {
  const bus = polling([{ session: "s1", pool: "p", state: "live" }]);
  await bus.poll();
  const idle = await bus.pass(60_000);
  assert.ok(idle >= 5 && idle <= 7, `${idle} in a minute`);
  bus.heard({ method: "_bus/session", params: { session: "T.x", event: "attached" } });
  assert.equal(await bus.pass(1300), 1, "a word of the bus");
  assert.equal(await bus.pass(3000), 0, "once");
  await bus.ask("session/close", { sessionId: "x" });
  assert.equal(await bus.pass(1300), 1, "something was done");
  for (let word = 0; word < 20; word++) {
    bus.pace.hurry();
    await bus.pass(100);
  }
  assert.ok((await bus.pass(8000)) <= 2, "many words at once are one");
  bus.dispatch({ type: "route", route: { place: "pools", id: null, part: "" }, at: 1 });
  bus.pace.hurry();
  assert.ok((await bus.pass(10_000)) >= 8, "figures are of this moment");
  bus.peer.isOpen = false;
  bus.closed(true).catch(() => undefined);
  assert.equal(await bus.pass(100), 0);
  mock.timers.reset();
});

test("what goes on where the page is not told of it is looked after, less when nobody sees the page", () => {
  const state = (list, more) => ({ ...reduce(initial(), { type: "list", list }), ...more });
  const view = (more) => ({ session: "s1", pool: "p", state: "live", ...more });
  const idle = waitOf(state([view()]), false);
  const running = state([view({ calls: 1 })]);
  assert.ok(waitOf(running, false) < 3000 && idle === 10_000, `${waitOf(running, false)} ${idle}`);
  assert.equal(waitOf(reduce(running, { type: "opened", session: "T.a", label: "s1" }), false), idle, "who is in it is told");
  assert.ok(waitOf(state([view({ questions: 1 })]), false) < 3000);
  assert.equal(waitOf(state([view({ questions: 1 })], { unshared: { s1: "private" } }), false), idle, "it cannot be asked");
  assert.equal(waitOf(state([view()]), true), 4 * idle);
  assert.equal(waitOf(state([view()], { notices: { state: "on" } }), true), idle, "it tells who is away");
  assert.ok(waitOf(state(Array.from({ length: 5000 }, (_, at) => view({ session: `s${at}`, calls: 1 }))), false) === idle);
});
