// What was said before: found, read page by page, continued, exported and deleted, by people and against hostile words.

import assert from "node:assert/strict";
import fs from "node:fs";
import { after, before, test } from "node:test";
import { begin, isClean, launch, say, TestBus, until, visit } from "./harness.mjs";

let bus;
let browser;
let client;

before(async () => {
  [bus, browser] = await Promise.all([TestBus.start(), launch()]);
  client = await bus.client("zed", {});
});

after(async () => {
  client?.close();
  await browser?.close();
  await bus?.stop();
});

/** A session that is over, in which this was said. */
async function past(pool, ...prompts) {
  await until("the writer", async () => (await client.ask("_bus/status")).history?.state === "up");
  const session = await client.open(pool, "/srv/shop");
  for (const prompt of prompts) await client.prompt(session, prompt);
  await client.ask("_bus/close", { session });
}

const row = (page, text) => page.locator("a.past-row", { hasText: text }).first();

test("it is found as one types, and read", async () => {
  await past("echo", "the quick walrus", "second word");
  await past("echo", "nothing of that kind");
  const page = await visit(browser, bus, { scope: "observe" });
  await page.keyboard.press("g");
  await page.keyboard.press("h");
  await row(page, "nothing of that kind").waitFor();
  await page.fill(".filter", "walr");
  await page.locator(".past-found mark", { hasText: "walrus" }).first().waitFor();
  await until("the other one goes", async () => (await page.locator("a.past-row").count()) === 1);
  await row(page, "the quick walrus").click();
  await page.locator(".transcript .user", { hasText: "the quick walrus" }).waitFor();
  await page.locator(".transcript .user .who", { hasText: "zed" }).first().waitFor();
  await page.locator(".transcript .agent", { hasText: "second word" }).waitFor();
  assert.equal(await page.getByText("Continue").count(), 0, "who only looks cannot continue it");
  await page.reload();
  await page.locator(".transcript .user", { hasText: "second word" }).waitFor();
  await isClean(page);
});

test("a long one is read page by page", async () => {
  await past("echo", ...Array.from({ length: 90 }, (_, at) => `prompt number ${at}`));
  const page = await visit(browser, bus);
  await page.open("past");
  await row(page, "prompt number 0").click();
  await page.locator(".transcript .user", { hasText: /^zedprompt number 0$/ }).waitFor();
  const count = () => page.evaluate(async () => (await import("/state/app.js")).store.state.past.open.session.items.filter((item) => item.kind === "user").length);
  assert.ok((await count()) < 90);
  await page.locator(".transcript .list-view").evaluate((list) => list.scrollTo(0, list.scrollHeight));
  await page.locator(".past-more button").click();
  await until("all of it", async () => (await count()) === 90);
  await isClean(page);
});

test("it goes on at an agent that can open it again", async () => {
  await past("agent", "remember the marmot");
  const page = await visit(browser, bus);
  await page.open("past");
  await row(page, "marmot").click();
  await page.getByRole("button", { name: "Continue" }).click();
  await page.waitForSelector("sb-prompt");
  assert.match(page.url(), /#\/sessions\/s\d+$/);
  await page.locator(".transcript .user", { hasText: "remember the marmot" }).waitFor();
  await say(page, "and the vole");
  await page.locator(".transcript .agent", { hasText: "vole" }).waitFor();
  await isClean(page);
});

test("where the agent cannot, a new one is offered, and nothing is sent by itself", async () => {
  await past("forgetful", "an unforgettable ocelot");
  const page = await visit(browser, bus);
  await page.open("past");
  await row(page, "ocelot").click();
  await page.getByRole("button", { name: "Continue" }).click();
  await page.getByRole("button", { name: "Begin a new session" }).click();
  const prompt = page.locator('textarea[name="prompt"]');
  await until("it is filled in", async () => (await prompt.inputValue()).includes("[zed] an unforgettable ocelot"));
  assert.equal(await page.locator('input[name="pool"]:checked').inputValue(), "forgetful");
  const { sessions } = await client.ask("_bus/sessions");
  assert.ok(!sessions.some((one) => one.pool === "forgetful"), "nothing was begun");
  await isClean(page);
});

test("it is exported and deleted", async () => {
  await past("echo", "a secret of the okapi");
  const page = await visit(browser, bus);
  await page.open("past");
  await row(page, "okapi").click();
  await page.locator(".transcript .user").first().waitFor();
  const [download] = await Promise.all([page.waitForEvent("download"), page.locator(".menu summary").click().then(() => page.getByText("Export as HTML").click())]);
  assert.match(fs.readFileSync(await download.path(), "utf8"), /okapi/);
  await page.locator(".menu summary").click();
  await page.getByRole("button", { name: "Delete", exact: true }).click();
  await page.getByRole("button", { name: "Delete it" }).click();
  await page.getByText("It is deleted.").waitFor();
  assert.equal(await row(page, "okapi").count(), 0);
  await page.fill(".filter", "okapi");
  await page.getByText("Nothing was found").waitFor();
  await isClean(page);
});

test("hostile words are words", async () => {
  const evil = `<img src=x onerror="alert(1)"><script>alert(2)</script> \u202egnu\u0000 javascript:alert(3)`;
  await past("echo", evil, "__proto__ constructor");
  const page = await visit(browser, bus);
  await page.open("past");
  await page.fill(".filter", "onerror alert");
  await page.locator(".past-found mark").first().waitFor();
  await page.locator("a.past-row").first().click();
  await page.locator(".transcript .user", { hasText: "<script>alert(2)" }).waitFor();
  assert.equal(await page.locator("main img, main script").count(), 0);
  await page.open("past/..%2f..%2fetc%2fpasswd");
  await page.getByText("It is not there").waitFor();
  await isClean(page);
});

test("what was used is plotted", async () => {
  const page = await visit(browser, bus);
  await begin(page, "agent", "/fix the flaky test");
  await page.locator(".question").waitFor();
  await page.locator(".question").focus();
  await page.waitForTimeout(350);
  await page.keyboard.press("a");
  await page.locator(".turn-line").waitFor();
  await until("it is written", async () => (await client.ask("_bus/status")).usage?.pools?.length > 0);
  await page.open("pools");
  await page.locator('.usage-day:not([title$=": nothing"])').first().waitFor();
  await isClean(page);
});
