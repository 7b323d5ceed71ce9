// Rules that every file of the console keeps.

import assert from "node:assert/strict";
import fs from "node:fs";
import path from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import zlib from "node:zlib";

const ROOT = fileURLToPath(new URL("../../../web/console", import.meta.url));
const files = fs.readdirSync(ROOT, { recursive: true, withFileTypes: true }).filter((entry) => entry.isFile());
const sources = files.map((entry) => {
  const full = path.join(entry.parentPath ?? entry.path, entry.name);
  return { name: path.relative(ROOT, full), text: fs.readFileSync(full, "utf8") };
});

test("the DOM is built from nodes, and nothing is run from a string", () => {
  const sinks = /innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|DOMParser|createContextualFragment|setHTML|srcdoc|javascript:|setAttribute\(\s*["']on/;
  for (const { name, text } of sources) assert.doesNotMatch(text, sinks, name);
});

test("nothing is asked of another host", () => {
  for (const { name, text } of sources) {
    const found = text.match(/(?:https?|wss?):\/\/[\w.-]+/g) ?? [];
    assert.deepEqual(found.filter((url) => url !== "http://www.w3.org"), [], name);
  }
});

test("pages have no style and no script of their own", () => {
  for (const { name, text } of sources.filter((file) => file.name.endsWith(".html"))) {
    assert.doesNotMatch(text, /<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)/, name);
  }
});

test("every file is short and says what it is for, and all of them together are small", () => {
  for (const { name, text } of sources) {
    assert.ok(text.split("\n").length <= 300, `${name} is too long`);
    if (/\.(js|css)$/.test(name)) assert.match(text, /^(\/\/|\/\*) \S/, `${name} does not begin with its purpose`);
  }
  const size = sources.reduce((sum, { text }) => sum + zlib.gzipSync(text).length, 0);
  assert.ok(size < 200_000, `${size} bytes`);
});

test("what is imported is there", () => {
  for (const { name, text } of sources.filter((file) => file.name.endsWith(".js"))) {
    for (const [, target] of text.matchAll(/^import [^;]*?["']([^"']+)["'];/gm)) {
      assert.ok(fs.existsSync(path.join(ROOT, path.dirname(name), target)), `${name}: ${target}`);
    }
  }
});

test("the page names every module, so that none waits for another", () => {
  const page = sources.find((file) => file.name === "index.html").text;
  // The service worker is no module of the page.
  for (const { name } of sources.filter((file) => file.name.endsWith(".js") && file.name !== "sw.js")) assert.ok(page.includes(`"${name}"`), name);
});
