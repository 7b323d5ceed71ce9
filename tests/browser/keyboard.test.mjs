// Everything can be done by keyboard, and the focus is always seen. Nothing here is clicked.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { begin, isClean, launch, TestBus, until, visit } from "./harness.mjs";

let bus;
let browser;

before(async () => {
  [bus, browser] = await Promise.all([TestBus.start(), launch()]);
});

after(async () => {
  await browser?.close();
  await bus?.stop();
});

/** Keys, one after the other. */
async function press(page, ...keys) {
  for (const key of keys) await page.keyboard.press(key);
}

/** What has the focus is seen: it has an outline, or what it stands in has. */
async function isSeen(page) {
  const seen = await page.evaluate(() => {
    const one = document.activeElement;
    const has = (el) => el && getComputedStyle(el).outlineStyle !== "none" && parseFloat(getComputedStyle(el).outlineWidth) > 0;
    return has(one) || has(one.closest(".prompt-box")) || one.id === "main" ? "" : one.outerHTML.slice(0, 200);
  });
  assert.equal(seen, "", "the focus is seen");
}

const hasFocus = (page, selector) => page.evaluate((one) => !!document.activeElement?.matches(one), selector);

/** Goes on by a key until this has the focus. Each step on the way is one that can be seen. */
async function reach(page, selector, key = "Tab") {
  await page.locator(selector).first().waitFor();
  for (let step = 0; step < 80; step++) {
    if (await hasFocus(page, selector)) return isSeen(page);
    await page.keyboard.press(key);
    await isSeen(page);
  }
  assert.fail(`${selector} is not reached by ${key}`);
}

/** Opens a session whose turn is over, with the focus in its box, where the page puts it. */
async function opened(page, prompt, what) {
  await begin(page, "agent", prompt);
  await page.locator(what).first().waitFor();
  await until("the box", () => hasFocus(page, ".prompt-box textarea"));
}

test("places, a session and its end are reached, and esc goes back", async () => {
  const page = await visit(browser, bus);
  await press(page, "n");
  await reach(page, 'input[value="echo"], input[value="agent"], input[name="pool"]');
  await reach(page, 'input[name="cwd"]');
  await press(page, "Control+a");
  await page.keyboard.type("/tmp");
  await reach(page, 'textarea[name="prompt"]');
  await page.keyboard.type("by hand");
  await reach(page, 'button[type="submit"]');
  await press(page, "Enter");
  await page.locator(".turn-line").waitFor();
  await press(page, "Escape", "Escape", "g", "s");
  await page.locator("a.session-row").first().waitFor();
  await press(page, "j");
  await isSeen(page);
  await press(page, "Enter");
  await page.locator(".session-head").waitFor();
  await press(page, "Escape", "?");
  await page.locator(".key-list").waitFor();
  await press(page, "Escape");
  await page.locator("dialog").waitFor({ state: "detached" });
  await press(page, "Control+k");
  await page.keyboard.type("pools");
  await press(page, "Enter");
  await page.locator(".pool-row").first().waitFor();
  await press(page, "j", "Enter");
  await page.locator('.pool-row [aria-expanded="true"]').waitFor();
  await isClean(page);
});

test("Changes: a file is folded, a line gets a comment, and all of them are sent", async () => {
  const page = await visit(browser, bus);
  await opened(page, "/edits", ".turn-line");
  await reach(page, '.session-tools a[href$="changes"]', "Shift+Tab");
  await press(page, "Enter");
  await page.locator(".file-head").first().waitFor();
  await reach(page, ".file-head", "j");
  await press(page, "Enter");
  await page.locator('.file-head[aria-expanded="false"]').waitFor();
  await press(page, "Enter");
  await reach(page, ".comment-on", "j");
  const line = await page.evaluate(() => document.activeElement.dataset.line);
  await press(page, "Enter");
  await until("the editor", () => hasFocus(page, ".comment textarea"));
  await page.keyboard.type("why two?");
  await press(page, "Enter");
  await until("the line", () => page.evaluate((name) => document.activeElement?.dataset.line === name, line));
  await reach(page, ".changes-foot .primary");
  await press(page, "Enter");
  await page.locator(".transcript .user", { hasText: "why two?" }).waitFor();
  await isClean(page);
});

test("Past: what was said is searched, opened and exported", async () => {
  const page = await visit(browser, bus);
  const client = await bus.client("zed");
  await client.prompt(await client.open("agent"), "an unusual word: quokka");
  client.close();
  await press(page, "g", "h");
  await page.locator("a.past-row").first().waitFor();
  await press(page, "/");
  await until("the search", () => hasFocus(page, ".past-list .filter"));
  await page.keyboard.type("quokka");
  await page.locator(".past-found mark").first().waitFor();
  await press(page, "Escape", "j");
  assert.ok(await hasFocus(page, "a.past-row"));
  await isSeen(page);
  await press(page, "Enter");
  await page.locator(".transcript .user", { hasText: "quokka" }).waitFor();
  await reach(page, ".session-tools summary");
  await press(page, "Enter");
  await reach(page, ".menu-item");
  const [saved] = await Promise.all([page.waitForEvent("download"), page.keyboard.press("Enter")]);
  assert.match(saved.suggestedFilename(), /\.md$/);
  await press(page, "Escape");
  await page.locator(".session-head").waitFor({ state: "detached" });
  await isClean(page);
});

test("the wire is followed, filtered, and a message is opened and closed", async () => {
  const page = await visit(browser, bus);
  await press(page, "g", "l");
  await page.getByText("Pause").waitFor();
  const client = await bus.client("zed");
  await client.prompt(await client.open("echo"), "on the wire");
  client.close();
  await press(page, "/");
  await until("the filter", () => hasFocus(page, ".wire .filter"));
  await page.keyboard.type("session/prompt");
  await press(page, "Escape");
  await reach(page, ".wire-row", "j");
  await press(page, "Enter");
  await page.locator(".wire-detail").waitFor();
  await reach(page, ".detail-head .button");
  await press(page, "Escape");
  await page.locator(".wire-detail").waitFor({ state: "detached" });
  await isClean(page);
});

test("a form is filled in, mended and sent", async () => {
  const page = await visit(browser, bus);
  await opened(page, "/fields", ".question");
  await press(page, "Escape");
  await reach(page, ".question", "j");
  await reach(page, ".question [type=submit]");
  await press(page, "Enter");
  // What is wrong first has the focus.
  await until("the first fault", () => hasFocus(page, '.question select[name="size"]'));
  await press(page, "ArrowDown");
  await reach(page, '.question input[type="checkbox"]');
  await press(page, " ");
  await reach(page, '.question input[name="name"]');
  await page.keyboard.type("by-hand");
  await press(page, "Enter");
  await page.locator(".transcript .agent", { hasText: '"size":"s"' }).waitFor();
  await page.locator(".transcript .agent", { hasText: '"name":"by-hand"' }).waitFor();
  await isClean(page);
});

test("prompts that wait are put in another order, changed and taken back", async () => {
  const page = await visit(browser, bus);
  await begin(page, "agent", "/slow 4000");
  await page.locator(".stop").waitFor();
  await reach(page, "sb-prompt textarea");
  for (const text of ["first", "second", "third"]) {
    await page.keyboard.type(text);
    await press(page, "Enter");
  }
  const waiting = () => page.locator(".queue li .ellipsis").allTextContents();
  await until("the queue", async () => (await waiting()).length === 3);
  await reach(page, '.queue li:nth-child(3) [aria-label="earlier"]', "Shift+Tab");
  await press(page, "Enter");
  await until("another order", async () => (await waiting()).join() === "first,third,second");
  // Who moves it on has not lost it.
  await until("the focus", () => hasFocus(page, '.queue li:nth-child(2) [aria-label="earlier"]'));
  await press(page, "Enter");
  await until("another order", async () => (await waiting()).join() === "third,first,second");
  await until("the focus", () => hasFocus(page, '.queue li:nth-child(1) [aria-label="later"]'));
  await reach(page, '.queue li:nth-child(1) [aria-label="edit"]');
  await press(page, "Enter");
  await until("the editor", () => hasFocus(page, ".queue textarea"));
  await press(page, "End");
  await page.keyboard.type(", changed");
  await press(page, "Enter");
  await until("the change", async () => (await waiting())[0] === "third, changed");
  await reach(page, ".queue li:nth-child(3) .link:last-child", "Shift+Tab");
  await press(page, "Enter");
  await until("two of them", async () => (await waiting()).length === 2);
  await reach(page, ".stop");
  await press(page, "Enter");
  await page.locator(".held").waitFor();
  await isClean(page);
});

test("a turn that does not stop is stopped by force, after a question", async () => {
  const page = await visit(browser, bus);
  await begin(page, "forgetful", "/stuck");
  await reach(page, ".stop");
  await press(page, "Enter");
  await page.locator(".stop", { hasText: "Force stop" }).waitFor();
  await reach(page, ".stop");
  await press(page, "Enter");
  await page.locator("dialog .deny").waitFor();
  await until("the answer that does nothing", () => hasFocus(page, "dialog [data-first]"));
  await press(page, "Escape");
  await page.locator("dialog").waitFor({ state: "detached" });
  await reach(page, ".stop");
  await press(page, "Enter");
  await page.locator("dialog .deny").waitFor();
  await reach(page, "dialog .deny", "Shift+Tab");
  await press(page, "Enter");
  await page.locator(".stop").waitFor({ state: "detached" });
  await page.locator(".turn.is-failed, .error-box").first().waitFor();
  await isClean(page);
});
