import assert from "node:assert/strict";
import { test } from "node:test";
import { highlight } from "../../../web/console/lib/highlight.js";
import { inline, markdown } from "../../../web/console/lib/markdown.js";
import { elementsOf, textOf } from "./help.mjs";

/** The parts of a class, of a block of this language. */
const parts = (source, language, kind) => highlight(source, language).filter((one) => one?.props?.class === `hl-${kind}`).map((one) => textOf(one));

test("the words of a language have their colour, and the text stays as it is", () => {
  const samples = [
    ["rust", 'pub fn x<\'a>(c: char) -> bool { c == \'"\' && "a\nb" != r#"q"# } // end 1', ["pub", "fn", "char", "bool"], ["'\"'", '"a\nb"', 'r#"q"#'], ["// end 1"]],
    ["ts title=a.ts", "/* a\nb */ const word = `x ${y}\n`; return 'it' + 12", ["const", "return"], ["`x ${y}\n`", "'it'"], ["/* a\nb */"]],
    ["py", "def f(): # say\n  '''long\ntext''' if x else 'a\\'b'", ["def", "if", "else"], ["'''long\ntext'''", "'a\\'b'"], ["# say"]],
    ["bash", "if [ $# = 1 ]; then echo \"$x\" ${#x} # last\nfi", ["if", "then", "echo", "fi"], ['"$x"'], ["# last"]],
    ["sql", "SELECT a FROM b -- all\nWHERE c = 'd'", ["SELECT", "FROM", "WHERE"], ["'d'"], ["-- all"]],
    ["c", '#include "x.h"\nint main(void) { return 0; }', ["#include", "int", "void", "return"], ['"x.h"'], []],
    ["go", "func f() string { return `a` }", ["func", "string", "return"], ["`a`"], []],
  ];
  for (const [language, source, words, strings, comments] of samples) {
    assert.deepEqual([parts(source, language, "k"), parts(source, language, "s"), parts(source, language, "c")], [words, strings, comments], language);
    assert.equal(textOf(highlight(source, language)), source);
  }
  assert.deepEqual([parts('{"a": "b", "n": -1.5e3, "t": true}', "json", "f"), parts('{"n": -1.5e3}', "json", "n")], [['"a"', '"n"', '"t"'], ["-1.5e3"]]);
  assert.deepEqual([parts("@@ 1\n+new\n-old\n same", "diff", "a"), parts("@@ 1\n+new\n-old\n same", "diff", "d")], [["+new"], ["-old"]]);
  assert.deepEqual([parts("name: x # y\n- key: 2", "yaml", "f"), parts("[a.b]\nkey = 1", "toml", "f")], [["name", "- key"], ["[a.b]", "key"]]);
  assert.deepEqual([parts('<a href="b">c</a><!-- d\n -->', "html", "k"), parts('<a href="b">c</a>', "html", "f")], [["<a", ">", "</a", ">"], ["href"]]);
  assert.deepEqual(parts("a { color: #fff; margin: 4px }", "css", "n"), ["#fff", "4px"]);
});

test("a language that is not known, and names that objects inherit, stay plain", () => {
  for (const language of ["", "brainfuck", "__proto__", "constructor", "toString"]) assert.deepEqual(highlight("if (x) y", language), ["if (x) y"]);
});

test("a block of any shape is coloured in time, in few parts, and keeps its text", () => {
  const languages = ["js", "java", "c", "rust", "go", "py", "rb", "sh", "sql", "json", "yaml", "html", "css", "diff"];
  const shapes = ["a", "-", "/*", '"', "'", "`", "<", "\\", "#", "r#", '"\\', "a.", "'''", '"""', "if ", "1 ", "\n", " ", "a:", "[", "$", "'\\"];
  for (const language of languages) {
    for (const shape of shapes) {
      const source = shape.repeat(Math.ceil(200_000 / shape.length));
      const began = process.cpuUsage().user;
      const out = highlight(source, language);
      const took = process.cpuUsage().user - began;
      assert.ok(took < 250_000, `${language} ${JSON.stringify(shape)}: ${took} µs`);
      assert.ok(out.length < 2500, `${language} ${shape}: ${out.length} parts`);
      assert.equal(textOf(out), source);
    }
  }
});

test("no link stands in a link", () => {
  const links = (source) => elementsOf(inline(source)).filter((one) => one.tag === "a").map((one) => one.props.href);
  assert.deepEqual(links("[http://a.example](http://b.example)"), ["http://b.example"]);
  assert.deepEqual(links("[**http://a.example** and *http://c.example*](http://b.example) http://d.example"), ["http://b.example", "http://d.example"]);
  assert.deepEqual(links("**[x](http://b.example)**"), ["http://b.example"]);
  assert.equal(textOf(inline("[**http://a.example**](http://b.example)")), "http://a.example");
});

test("a fence says in which language its block is", () => {
  const classes = elementsOf(markdown("~~~js\nlet x = 1;\n~~~\n\n```\nlet y\n```")).map((one) => one.props.class).filter((one) => one?.startsWith("hl-"));
  assert.deepEqual(classes, ["hl-k", "hl-n"]);
});
