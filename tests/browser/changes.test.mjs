// What a session has changed, in one place, and comments that go back to the agent.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { begin, isClean, launch, say, TestBus, visit } from "./harness.mjs";

let bus;
let browser;

before(async () => {
  [bus, browser] = await Promise.all([TestBus.start(), launch()]);
});

after(async () => {
  await browser?.close();
  await bus?.stop();
});

test("all changes are in one place, file by file, and comments on lines go back as one prompt", async () => {
  const page = await visit(browser, bus);
  await begin(page, "agent", "/edits");
  await page.getByRole("link", { name: "Changes" }).click();
  const head = (name) => page.locator(".file-head", { hasText: name });
  await head("src/lib.rs").getByText("+2").waitFor();
  await head("src/lib.rs").getByText("in 2 steps").waitFor();
  await head("src/new.rs").getByText("new file").waitFor();
  assert.equal(await head("src/failed.rs").count(), 0);
  const line = (text) => page.locator(".commented-line", { hasText: text });
  await line("let two = 2;").locator(".comment-on").click();
  await page.locator(".comment textarea").fill("Why not three?");
  await page.keyboard.press("Enter");
  await page.locator(".comment", { hasText: "Why not three?" }).waitFor();
  // By keyboard: one is at the line again, and j goes from line to line.
  await page.locator(".comment-on:focus").waitFor();
  await head("src/new.rs").focus();
  await page.keyboard.press("j");
  await page.keyboard.press("Enter");
  await page.locator(".comment textarea").fill("Is this needed?");
  await page.keyboard.press("Enter");
  await page.locator(".changes-foot", { hasText: "2 comments" }).waitFor();
  // Comments outlive a reload.
  await page.reload();
  await page.locator(".changes-foot", { hasText: "2 comments" }).waitFor();
  await page.getByRole("button", { name: "Send as one prompt" }).click();
  const said = page.locator(".transcript .user .said").last();
  await said.filter({ hasText: "Why not three?" }).waitFor();
  assert.match(await said.textContent(), /^Comments on your changes:\n\n\S*src\/lib\.rs:2\n> \+ let two = 2;\n\nWhy not three\?\n\n\S*src\/new\.rs:1\n> \+ fn fresh\(\) \{\}\n\nIs this needed\?$/);
  await page.locator(".turn-line").first().waitFor();
  await page.locator(".changes-foot").waitFor({ state: "detached" });
  // A line that has changed since is said to have.
  await page.getByRole("link", { name: "Changes" }).click();
  await line("let two = 2;").locator(".comment-on").click();
  await page.locator(".comment textarea").fill("Once more");
  await page.keyboard.press("Enter");
  await page.locator(".comment textarea").waitFor({ state: "detached" });
  await page.keyboard.press("Escape");
  await say(page, "/edits again");
  await page.locator(".turn-line").nth(1).waitFor();
  await page.getByRole("link", { name: "Changes" }).click();
  await page.locator(".comment.is-stale", { hasText: "Once more" }).waitFor();
  await isClean(page);
});
