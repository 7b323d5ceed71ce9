import assert from "node:assert/strict";
import { mock, test } from "node:test";
import { Past } from "../../../web/console/net/past.js";
import { narrows, newPast, poolsOf, queryOf } from "../../../web/console/state/past.js";
import { initial, reduce } from "../../../web/console/state/reduce.js";
import { Filters } from "../../../web/console/view/past_filters.js";
import { elementsOf, textOf } from "./help.mjs";

const NOW = Date.parse("2026-11-19T08:00:00.000Z");
const none = { pool: "", folder: "", days: "" };

test("the door is asked only for what was chosen", () => {
  const asked = (text, filter, before = "") => Object.fromEntries(queryOf(text, { ...none, ...filter }, before, NOW));
  assert.deepEqual(asked("", {}), { limit: "50" });
  assert.deepEqual(asked("two words", { pool: "a&b", folder: " /srv/shop " }, "T"), { query: "two words", pool: "a&b", folder: "/srv/shop", before: "T", limit: "50" });
  assert.deepEqual(asked("", { days: "7" }), { since: "2026-11-12T08:00:00.000Z", limit: "50" });
  assert.deepEqual([none, { ...none, folder: "  " }, { ...none, days: "1" }].map(narrows), [false, false, true]);
});

test("pools of what is listed can be chosen, also when the bus has them no more", () => {
  const past = { ...newPast(), rows: [{ pool: "old" }, { pool: "b" }, { pool: null }], filter: { ...none, pool: "gone" } };
  assert.deepEqual(poolsOf(past, ["b", "a"]), ["a", "b", "gone", "old"]);
});

test("what is chosen is shown and asked for, and a late answer to something else is dropped", async () => {
  mock.timers.enable({ apis: ["setTimeout"] });
  const answers = [];
  mock.method(globalThis, "fetch", (path) => new Promise((done) => answers.push({ path, done: (rows) => done({ ok: true, json: async () => ({ sessions: rows, next: null }) }) })));
  try {
    const bus = { state: initial(), token: "t", dispatch: (action) => void (bus.state = reduce(bus.state, action)) };
    const past = new Past(bus);
    const settled = () => new Promise((then) => setImmediate(then));
    past.search("linker");
    mock.timers.tick(200);
    past.narrow({ pool: "claude" });
    past.narrow({ folder: "/srv" });
    mock.timers.tick(200);
    const asked = answers.map(({ path }) => Object.fromEntries(new URLSearchParams(path.split("?")[1])));
    assert.deepEqual(asked, [{ query: "linker", limit: "50" }, { query: "linker", pool: "claude", folder: "/srv", limit: "50" }], "what is typed is asked for once");
    answers[1].done([{ id: "right" }]);
    await settled();
    answers[0].done([{ id: "late" }]);
    await settled();
    assert.deepEqual([bus.state.past.rows, bus.state.past.isLooking], [[{ id: "right" }], false]);
    past.search("");
    assert.deepEqual(bus.state.past.filter, { pool: "claude", folder: "/srv", days: "" });
  } finally {
    mock.reset();
    mock.timers.reset();
  }
});

test("a person chooses by three fields that have names", () => {
  const told = [];
  const past = { ...newPast(), filter: { pool: "b\u202e", folder: "/srv", days: "30" } };
  const tree = Filters({ past, pools: ["a", "b\u202e"], narrow: (change) => told.push(change) });
  const fields = elementsOf(tree).filter(({ props }) => props?.["aria-label"]);
  assert.deepEqual(fields.map(({ props }) => props["aria-label"]), ["pool", "folder", "time"]);
  const chosen = elementsOf(tree).filter(({ props }) => props?.selected).map(({ props }) => props.value);
  assert.deepEqual([chosen, fields[1].props.value], [["b\u202e", "30"], "/srv"]);
  assert.ok(!textOf(tree).includes("\u202e"), "names are shown as what they are");
  fields[0].props.onchange({ target: { value: "a" } });
  fields[1].props.oninput({ target: { value: "/x" } });
  fields[2].props.onchange({ target: { value: "7" } });
  assert.deepEqual(told, [{ pool: "a" }, { folder: "/x" }, { days: "7" }]);
});
