import assert from "node:assert/strict";
import { test } from "node:test";
import { blocksOf, commandOf, misleads, refuses, sizeOf, verbOf } from "../../../web/console/state/asked.js";
import { cut } from "../../../web/console/lib/text.js";
import { numbers } from "./help.mjs";

const call = (input, more) => ({ id: "c", title: "", kind: "other", status: "pending", content: [], locations: [], input, output: undefined, terminal: "", at: 0, end: 0, ...more });
const words = (blocks) => blocks.map((one) => `${one.kind} ${one.name ?? ""} ${one.text}`).join("\n");

test("a command is shown with its arguments", () => {
  assert.equal(commandOf(call({ command: "git", args: ["push", "--force", "a b"] })), "git push --force 'a b'");
  assert.equal(commandOf(call({ command: ["bash", "-lc", "rm -rf ~; echo 'x' y"] })), `bash -lc 'rm -rf ~; echo '\\''x'\\'' y'`);
  assert.equal(commandOf(call({ command: "git", args: "push --force" })), "git push --force");
  assert.equal(commandOf(call({ cmd: ["ls", { a: 1 }] })), `ls '{\n  "a": 1\n}'`);
  assert.equal(commandOf(call("ls")), "");
});

test("a command that stands in the content too is shown once", () => {
  const text = (said) => ({ type: "content", content: { type: "text", text: said } });
  assert.equal(words(blocksOf(call({ command: "make test" }, { content: [text("make test\n"), text("Runs the tests")] }))), "command  make test\ntext  Runs the tests");
  assert.equal(words(blocksOf(call({ command: "make" }, { content: [text("make test")] }))), "command  make\ntext  make test");
});

test("every field of the input is shown", () => {
  const shown = words(blocksOf(call({ command: "git", args: ["push"], dangerouslyDisableSandbox: true, cwd: "/home/other/x", env: { PATH: "/evil" }, timeout: 5 }), "/srv"));
  assert.match(shown, /^command {2}git push$/m);
  assert.match(shown, /^field dangerouslyDisableSandbox true$/m);
  assert.match(shown, /^where {2}\/home\/other\/x$/m);
  assert.match(shown, /^field env PATH=\/evil$/m);
  assert.match(shown, /^field timeout 5$/m);
  const both = blocksOf(call({ cmd: "ls", script: "rm -rf ~" }));
  assert.match(words(both), /^command {2}ls$/m);
  assert.match(words(both), /^field script rm -rf ~$/m);
  assert.ok(blocksOf(call({ dangerouslyDisableSandbox: true }))[0].isRisky);
});

test("whatever an input consists of is in what is shown", () => {
  const next = numbers(7);
  const names = ["command", "cmd", "script", "args", "cwd", "workdir", "env", "file_path", "content", "__proto__", "constructor", "x"];
  for (let round = 0; round < 500; round++) {
    const marks = [];
    const value = (depth) => {
      const mark = `m${round}x${marks.length}`;
      marks.push(mark);
      const kind = next(4);
      if (kind === 0 || depth > 2) return mark;
      if (kind === 1) return [mark, value(depth + 1)];
      return kind === 2 ? Object.fromEntries([[mark, value(depth + 1)]]) : `${mark} ${"y".repeat(next(3000))}`;
    };
    const chosen = new Set(Array.from({ length: 1 + next(5) }, () => names[next(names.length)]));
    const input = Object.fromEntries([...chosen].map((name) => [name, value(0)]));
    const shown = words(blocksOf(call(input)));
    for (const mark of marks) assert.ok(shown.includes(mark), `${mark} of ${JSON.stringify(input)}`);
  }
});

test("a change that is told twice is shown once, and all of it", () => {
  const diff = { type: "diff", path: "/a/b.rs", oldText: "old", newText: "new" };
  const blocks = blocksOf(call({ file_path: "/a/b.rs", old_string: "old", new_string: "new", replace_all: true }, { content: [diff], locations: [{ path: "/a/b.rs" }, { path: "/c" }] }));
  assert.deepEqual(blocks.map((one) => one.kind), ["field", "places", "diff"]);
  assert.equal(blocks[0].name, "replace_all");
  assert.equal(blocks[1].text, "/c");
  assert.equal(sizeOf(blocks), "true".length + 2 + 6);
});

test("the verb is what is seen, not what the agent calls it", () => {
  const verb = (one) => verbOf(one, blocksOf(one));
  assert.equal(verb(call({ command: "curl x | sh" }, { kind: "read" })), "run a command");
  assert.equal(verb(call({}, { kind: "think", content: [{ type: "diff", path: "p", newText: "x" }] })), "change a file");
  assert.equal(verb(call({ path: "/etc" }, { kind: "read" })), "do this, which it calls “read”");
  assert.equal(verb(call({}, { kind: "delete" })), "delete a file");
  assert.equal(verb(call({}, { kind: "__proto__" })), "do this, which it calls “__proto__”");
});

test("a long text is cut in its middle, and its end stays", () => {
  assert.equal(cut("short"), null);
  const long = `echo ${"x".repeat(5000)}; rm -rf ~`;
  const { head, tail, characters } = cut(long);
  assert.ok(head.startsWith("echo ") && tail.endsWith("; rm -rf ~"));
  assert.equal(head.length + tail.length + characters, long.length);
  const lines = Array.from({ length: 300 }, (_, at) => `line ${at}`).join("\n");
  assert.ok(cut(lines).tail.endsWith("line 299") && cut(lines).head.split("\n").length === 10);
});

test("what an option does is told by its kind, and a name that says the opposite is noticed", () => {
  const option = (kind, name) => ({ optionId: "x", kind, name });
  assert.ok(misleads(option("allow_always", "No, never")));
  assert.ok(misleads(option("reject_once", "Yes, go on")));
  for (const name of ["Yes, and don't ask again for git push in /home/me", "Yes, and don’t ask again", "Always (do not prompt)"]) assert.ok(!misleads(option("allow_always", name)), name);
  assert.ok(!misleads(option("reject_once", "No, and tell it what to do differently")));
  assert.deepEqual(["reject_once", "reject_always", "allow_once", "__proto__", undefined, {}].map((kind) => refuses({ kind })), [true, true, false, false, false, false]);
});
