import assert from "node:assert/strict";
import { test } from "node:test";
import { changesOf, isStale, reviewText } from "../../../web/console/state/changes.js";
import { commandsFor, fileQuery, filesFor, filesOf, hintFor, historyOf, KEPT_MAX, partsOf, readBack, whyNot, writtenDown } from "../../../web/console/state/compose.js";
import { aboutLine, changedReview, newReview, restoredReviews, rowsOf } from "../../../web/console/state/review.js";
import { addItem, newSession } from "../../../web/console/state/transcript.js";
import { arranged, counted, keyOf, marked, othersOf, readMarks } from "../../../web/console/state/triage.js";
import { addUpdates } from "../../../web/console/state/updates.js";

const call = (id, path, oldText, newText, more) => ({ update: { sessionUpdate: "tool_call", toolCallId: id, title: id, kind: "edit", status: "completed", content: [{ type: "diff", path, oldText, newText }], locations: [{ path }], ...more }, at: 1 });

test("steps of a file that fit onto each other are one change, and what failed or was denied is none", () => {
  const session = addUpdates(newSession("x"), [
    call("1", "/a", "one\ntwo\nthree\n", "one\n2\nthree\n"),
    call("2", "/a", "three", "3"),
    call("3", "/b", null, "new\n"),
    call("4", "/c", "x", "y", { status: "failed" }),
    call("5", "/d", "x", "y"),
    call("6", "/a", "elsewhere", "there"),
    call("7", "/e", "back", "forth"),
    call("8", "/e", "forth", "back"),
    { update: { sessionUpdate: "tool_call", toolCallId: "9", content: [{ type: "diff", changes: [{ operation: "delete", path: "/gone" }] }] }, at: 1 },
    { update: { sessionUpdate: "tool_call", toolCallId: "in", title: "sub", kind: "edit", content: [{ type: "diff", path: "/sub", oldText: "s", newText: "t" }], _meta: { claudeCode: { parentToolUseId: "1" } } }, at: 1 },
  ]);
  const files = changesOf(session, { "x 5": { verdict: "denied" } });
  assert.deepEqual(files.map((file) => [file.path, file.operation, file.added, file.removed, file.parts.length]), [["/a", "modify", 3, 3, 2], ["/sub", "modify", 1, 1, 1], ["/b", "add", 1, 0, 1], ["/gone", "delete", 0, 0, 0]]);
  assert.equal(changesOf(session, { "x 5": { verdict: "denied" } }).length, 4);
});

test("comments stand at their lines, are sent as one prompt that quotes them, and say if their line has changed", () => {
  const session = addUpdates(newSession("x"), [call("1", "/a", "one\ntwo\n", "one\n2\n"), call("2", "/b", null, "b\n")]);
  const files = changesOf(session, {});
  const added = files[0].parts[0].lines.find((line) => line.kind === "add");
  let review = changedReview(newReview(), { what: "edit", comment: aboutLine("/a", added) });
  assert.ok(rowsOf(files, review).some((row) => row.kind === "editor"));
  review = changedReview(review, { what: "comment", comment: { ...aboutLine("/a", added), text: " Why 2?\n" } });
  const rows = rowsOf(files, review);
  assert.deepEqual(rows.slice(0, 5).map((row) => row.kind), ["file", "line", "line", "line", "comment"]);
  assert.equal(new Set(rows.map((row) => row.key)).size, rows.length);
  assert.equal(reviewText(review.comments), "Comments on your changes:\n\n/a:2\n> + 2\n\nWhy 2?");
  const later = changesOf(addUpdates(session, [call("3", "/a", "2", "two again")]), {});
  assert.ok(isStale(review.comments[0], later));
  assert.deepEqual(rowsOf(later, review).slice(0, 2).map((row) => [row.kind, row.isStale]), [["file", undefined], ["comment", true]]);
  assert.deepEqual(rowsOf([], review).map((row) => row.kind), ["comment"], "it is not lost with its file");
  const folded = changedReview(review, { what: "fold", path: "/b" });
  assert.equal(rowsOf(files, folded).filter((row) => row.path === "/b").length, 0);
  assert.equal(restoredReviews(JSON.parse(JSON.stringify({ x: review, y: { comments: [7, { key: 1 }] }, z: null }))).x.comments.length, 1);
  assert.equal(changedReview(review, { what: "comment", comment: { ...review.comments[0], text: " " } }).comments.length, 0);
});

test("commands, files and what was written before are found", () => {
  const commands = [{ name: "review" }, { name: "review-pr", input: { hint: "number" } }];
  assert.deepEqual(commandsFor(commands, "/rev").map((one) => one.name), ["review", "review-pr"]);
  assert.deepEqual([commandsFor(commands, "/review"), commandsFor(commands, "/rev iew"), hintFor(commands, "/review-pr "), hintFor(commands, "/review-pr 7"), hintFor(commands, "/review")], [[], [], "number", "", ""]);
  assert.deepEqual([fileQuery("look at @src/a", 14), fileQuery("mail a@b", 8), fileQuery("@", 1), fileQuery("@a b", 4)], ["src/a", null, "", null]);
  let session = addUpdates(newSession("x", { cwd: "/srv" }), [call("1", "/srv/src/main.rs", "", "x"), call("2", "/etc/hosts", "", "x")]);
  assert.deepEqual(filesFor(filesOf(session), "ma"), ["/srv/src/main.rs"]);
  const attached = [{ name: "p", size: 3, block: { type: "image" } }];
  assert.deepEqual(partsOf("see @src/main.rs, and x@y", filesOf(session), "/srv", attached), [{ type: "resource_link", uri: "file:///srv/src/main.rs", name: "src/main.rs" }, { type: "image" }]);
  for (const text of ["one", "two", "one"]) session = addItem(session, { kind: "user", text, mine: true });
  assert.deepEqual(historyOf(session), ["two", "one"]);
});

test("an agent is sent what it says it takes, in either version, and not too much", () => {
  const image = { type: "image" };
  assert.equal(whyNot(image, { image: true }, 1), "");
  assert.equal(whyNot(image, { image: {} }, 1), "");
  for (const capabilities of [undefined, null, {}, { image: false }, { image: null }, { embeddedContext: true }]) assert.match(whyNot(image, capabilities, 1), /takes no pictures/);
  assert.match(whyNot(image, { image: true }, 9e6), /too much/);
});

test("attachments outlive a reload as far as they fit together, and what was kept is read whatever it is", () => {
  const one = (name, length) => ({ name, size: length, block: { type: "image", mimeType: "image/png", data: "x".repeat(length) } });
  const [small, large, last] = [one("small", 10), one("large", KEPT_MAX), one("last", KEPT_MAX / 2)];
  const written = writtenDown([small, large, last, one("too much", KEPT_MAX / 2)]);
  assert.ok(written.length <= KEPT_MAX);
  assert.deepEqual(readBack(written), [small, last]);
  assert.deepEqual([writtenDown([]), writtenDown([large]), readBack(null), readBack("{"), readBack('[1, null, {"name": "x", "size": 1, "block": 7}, {"block": {"type": "image"}}]')], ["", "", [], [], []]);
});

test("sessions are pinned, named, put away, grouped and chosen by state, and what needs a person is first", () => {
  const view = (session, mood, more) => ({ session, history: `h${session}`, pool: "p", worker: 0, mood, folder: "/a", ...more });
  const list = [view("s1", "waiting"), view("s2", "running"), view("s3", "idle", { folder: "/b" }), view("s4", "idle"), view("s5", "waiting", { folder: "/b" })];
  let marks = marked(marked(readMarks({ bad: 7 }), "hs4", { pin: true }), "hs2", { archived: true });
  const shown = (state, isGrouped = false) => arranged(list, marks, { state, isGrouped, matches: () => true }).map((one) => one.session);
  assert.deepEqual(shown("all"), ["s1", "s5", "s4", "s3"]);
  assert.deepEqual([shown("archived"), shown("waiting"), shown("idle")], [["s2"], ["s1", "s5"], ["s4", "s3"]]);
  assert.deepEqual(shown("all", true), ["group /a", "s1", "s4", "group /b", "s5", "s3"]);
  assert.deepEqual({ ...counted(list, marks) }, { all: 4, waiting: 2, running: 0, idle: 2, archived: 1 });
  marks = marked(marks, "hs1", { archived: true });
  assert.ok(shown("all").includes("s1"), "one that asks is not out of sight");
  marks = marked(marks, "hs4", { pin: false });
  assert.equal(marks.hs4, undefined);
  assert.equal(keyOf({ pool: "p", session: "s9", history: null }), "p s9");
  for (let one = 0; one < 2000; one++) marks = marked(marks, `k${one}`, { name: "x" });
  assert.ok(Object.keys(marks).length <= 500);
  assert.deepEqual(othersOf([...list, view("s9", "idle", { worker: 1 })], list[0]).map((one) => one.session), ["s2", "s3", "s4", "s5"]);
});
