import assert from "node:assert/strict";
import { test } from "node:test";
import { ansi, settle } from "../../../web/console/lib/ansi.js";
import { diff, script } from "../../../web/console/lib/diff.js";
import { explain } from "../../../web/console/lib/explain.js";
import { blocks, markdown } from "../../../web/console/lib/markdown.js";
import { ago, bytes, duration, folder, hides, place, plain, visible } from "../../../web/console/lib/text.js";
import { elementsOf, numbers, textOf } from "./help.mjs";

test("characters that cannot be seen are shown by number", () => {
  assert.equal(textOf(visible("rm \u202e-rf\u200b \u2066x")), "rm U+202E-rfU+200B U+2066x");
  assert.equal(textOf(visible("a\u0000b\u001b[31mc\u{e0041}\ud800")), "aU+0000bU+001B[31mcU+E0041U+D800");
  assert.equal(textOf(visible("tab\tand\nline, grüße, 漢字, 🙂")), "tab\tand\nline, grüße, 漢字, 🙂");
  assert.ok(hides("a\u00a0b") && !hides("a b"));
  assert.equal(plain("x\u202ey"), "x\\u202ey");
});

test("times, sizes and folders are short", () => {
  assert.deepEqual([ago(0), ago(59.9), ago(61), ago(7300), ago(200_000)], ["0 s", "59 s", "1 m", "2 h", "2 d"]);
  assert.deepEqual([duration(0.25), duration(5), duration(42), duration(1500), duration(61_000)], ["250 µs", "5.0 ms", "42 ms", "1.5 s", "1 m 1 s"]);
  assert.deepEqual([bytes(12), bytes(1500), bytes(25_000), bytes(3e6)], ["12 B", "1.5 kB", "25 kB", "3.0 MB"]);
  assert.deepEqual([place({ pool: "a", worker: 0, node: "n17" }), place({ pool: "a", worker: 1 }), place({})], ["a/0 at n17", "a/1", "–"]);
  assert.deepEqual([folder("/home/me/src"), folder("/srv/x"), folder(null)], ["~/src", "/srv/x", ""]);
});

test("a terminal's colours are kept, what else it would obey is dropped", () => {
  const tree = ansi("\u001b[1;31mred\u001b[0m plain \u001b]0;title\u0007\u001b[2J\u001b[38;5;196mx\u001b[48;2;1;2;3my\u001b[7mz");
  assert.equal(textOf(tree), "red plain xyz");
  const spans = elementsOf(tree);
  assert.match(spans[0].props.class, /f1 bold/);
  assert.equal(spans[1].props.css.color, "rgb(255,0,0)");
  assert.equal(spans[2].props.css["background-color"], "rgb(1,2,3)");
  assert.equal(settle("10%\r50%\r100%\nnext\r\n"), "100%\nnext\n");
});

test("an edit script always leads from one text to the other", () => {
  const next = numbers(7);
  for (let round = 0; round < 500; round++) {
    const make = () => Array.from({ length: next(30) }, () => "abcd"[next(4)]);
    const [old, now] = [make(), make()];
    const [from, to] = [[], []];
    let [at, into] = [0, 0];
    for (const [kind, length] of script(old, now)) {
      if (kind !== "add") from.push(...old.slice(at, (at += length)));
      if (kind !== "del") to.push(...now.slice(into, (into += length)));
      if (kind === "same") assert.deepEqual(old.slice(at - length, at), now.slice(into - length, into));
    }
    assert.deepEqual([from, to], [old, now]);
  }
});

test("a diff marks the words that changed, and folds what did not", () => {
  const before = Array.from({ length: 30 }, (_, at) => `line ${at}`).join("\n");
  const { lines, added, removed } = diff(before, before.replace("line 15", "line fifteen"));
  assert.deepEqual([added, removed, lines.length], [1, 1, 10]);
  assert.deepEqual(lines.filter((line) => line.kind === "gap").map((line) => line.count), [12, 11]);
  const add = lines.find((line) => line.kind === "add");
  assert.deepEqual(add.parts.filter((part) => part.changed).map((part) => part.text), ["fifteen"]);
  assert.deepEqual([diff(null, "a\nb\n").added, diff("a\n", "").removed], [2, 1]);
});

test("texts that have nothing in common are compared in time", () => {
  const many = (word) => Array.from({ length: 20_000 }, (_, at) => `${word} ${at}`).join("\n");
  const began = process.cpuUsage().user;
  assert.equal(diff(many("old"), many("new")).added, 20_000);
  assert.ok(process.cpuUsage().user - began < 5e6);
});

test("Markdown becomes nodes", () => {
  const source = "# Head\n\ntext **bold** and *it* and `co<de>` [link](https://x.example/a)\nnext\n\n- one\n- [x] two\n  - inner\n\n1. a\n2. b\n\n> quote\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```rust\nfn x() {}\n\nlet y;\n```\n---\n";
  const tags = elementsOf(markdown(source)).map((one) => one.tag);
  for (const tag of ["h3", "p", "strong", "em", "code", "a", "ul", "li", "ol", "blockquote", "table", "th", "td", "pre", "hr"]) assert.ok(tags.includes(tag), tag);
  assert.ok(textOf(markdown(source)).includes("fn x() {}\n\nlet y;"));
});

test("a text that grows keeps its first blocks as they are", () => {
  const source = "one\n\n```\ncode\n\nmore\n```\n\ntwo\n\n- a\n- b\n";
  for (let length = 1; length < source.length; length++) {
    const [shorter, longer] = [blocks(source.slice(0, length)), blocks(source)];
    assert.deepEqual(shorter.slice(0, -1), longer.slice(0, shorter.length - 1), source.slice(0, length));
  }
});

test("nothing that an agent writes becomes markup, an image or a script", () => {
  const source = '<img src=x onerror=alert(1)> <script>x</script> [a](javascript:x) [b](data:text/html,x) ![c](https://x.example/p.png) <a href="javascript:x">d</a>';
  const elements = elementsOf(markdown(source));
  assert.deepEqual([...new Set(elements.map((one) => one.tag))].sort(), ["a", "p", "span"]);
  for (const { props } of elements) for (const name in props) assert.ok(!/^on|^src/.test(name), name);
  for (const one of elements.filter((element) => element.tag === "a")) assert.match(one.props.href, /^https?:/);
  assert.ok(textOf(markdown(source)).includes("<script>x</script>"));
});

test("Markdown of any shape is read in time", () => {
  for (const text of ["*".repeat(20_000), "_a".repeat(10_000), "[".repeat(20_000), "`".repeat(20_001), "**a ".repeat(5000), "> ".repeat(3000), "- ".repeat(5000), "|".repeat(20_000)]) {
    const began = process.cpuUsage().user;
    elementsOf(markdown(text));
    assert.ok(process.cpuUsage().user - began < 3e6, text.slice(0, 10));
  }
});

test("every error says what happened and what to do", () => {
  for (const reason of ["worker_lost", "unknown_session", "pool_down", "busy", "no_start", "read_only", "stopping", "node_lost", "no_workspace"]) {
    const { what, todo } = explain({ message: "m", data: { reason } });
    assert.ok(what && todo, reason);
  }
  assert.match(explain({ code: -32054, data: { reason: "busy", raise: "max_instances", pool: "claude" } }).todo, /max_instances of pool claude/);
  assert.deepEqual(explain({ data: { reason: "worker_lost", stderr: ["a", "b"] } }).stderr, ["a", "b"]);
  assert.ok(explain({ code: -32000, message: "login" }).todo.includes("Log in"));
});
