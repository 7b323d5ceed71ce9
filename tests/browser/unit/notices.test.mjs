import assert from "node:assert/strict";
import { test } from "node:test";
import { line, linkOf, noticesOf } from "../../../web/console/state/notices.js";
import { initial, reduce } from "../../../web/console/state/reduce.js";

/** A state in which these sessions are listed. */
const listing = (...list) => reduce(initial(), { type: "list", list: list.map((one) => ({ pool: "claude", questions: 1, ...one })) });

/** The page is asked something in a session. */
function asked(state, session, label, rpc, params) {
  const open = reduce(state, { type: "opened", session, label });
  return reduce(open, { type: "asked", at: 1, question: { key: `${session} ${rpc}`, rpc, session, method: "session/request_permission", params: { sessionId: session, ...params }, at: 1, state: "open" } });
}

test("each question has one notice, that names its session", () => {
  const state = asked(listing({ session: "s1", title: "Fix it" }, { session: "s2", questions: 0 }), "T.a", "s1", 7, { toolCall: { toolCallId: "call", title: "git push" } });
  assert.deepEqual(noticesOf(state, true), [{ key: "s1 7", tag: "s1 call", session: "s1", title: "claude waits for you", body: "git push\nFix it", link: "/#/sessions/s1" }]);
  const two = asked(state, "T.a", "s1", 8, { message: "Which branch?" });
  assert.deepEqual(noticesOf(two, true).map((one) => one.tag), ["s1 call", "s1 8"]);
});

test("what only others are asked is told to who may not answer", () => {
  const state = listing({ session: "s1", asked: "git push" });
  assert.deepEqual(noticesOf(state, true), [], "it is asked of this page next");
  assert.deepEqual(noticesOf(state, false).map((one) => [one.tag, one.body]), [["s1 elsewhere", "git push\ns1"]]);
  const unshared = reduce(state, { type: "unshared", label: "s1", why: "not shared" });
  assert.equal(noticesOf(unshared, true).length, 1);
});

test("nothing hides in a notice, and it is short", () => {
  assert.equal(line("a\u202eb\u001b[2J\nc"), "a\\u202eb\\u001b[2J c");
  assert.equal(line(null), "");
  assert.equal(line("x".repeat(10_000)).length, 160);
  assert.equal(linkOf("s1/../x"), "/#/sessions/s1%2F..%2Fx");
});
