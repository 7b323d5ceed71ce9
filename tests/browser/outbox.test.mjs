// What a person has typed is never lost: while the bus or its door is away, hangs or refuses, and while a turn runs.

import assert from "node:assert/strict";
import fs from "node:fs";
import { after, afterEach, before, test } from "node:test";
import { AS_CONSOLE, begin, isClean, launch, say, TestBus, until, visit } from "./harness.mjs";

let bus;
let browser;

before(async () => {
  [bus, browser] = await Promise.all([TestBus.start(), launch()]);
});

after(async () => {
  await browser?.close();
  await bus?.stop();
});

/** A process that was stopped, and must not stay so. */
let halted = 0;

afterEach(() => goOn());

function halt() {
  halted = doorPid();
  process.kill(halted, "SIGSTOP");
}

function goOn() {
  if (halted) process.kill(halted, "SIGCONT");
  halted = 0;
}

const transcript = (page) => page.locator(".transcript");
const queue = (page) => page.locator(".queue li");

/** The process of the door. It is a child of the bus unless the tests serve the console from a folder. */
function doorPid() {
  if (bus.door) return bus.door.pid;
  const children = fs.readFileSync(`/proc/${bus.process.pid}/task/${bus.process.pid}/children`, "utf8").trim().split(" ");
  return Number(children.find((pid) => fs.readFileSync(`/proc/${pid}/cmdline`, "utf8").split("\0").includes("web")));
}

test("what is typed while the bus is away is kept, shown as not sent, and sent when it is back", async () => {
  const page = await visit(browser, bus);
  await begin(page, "agent", "before");
  await page.locator(".turn-line").waitFor();
  await bus.kill();
  await page.locator(".link.is-lost", { hasText: "reconnecting" }).waitFor();
  await say(page, "typed while it was away");
  await say(page, "and once more");
  await queue(page).filter({ hasText: "not sent yet: typed while it was away" }).waitFor();
  await page.locator(".chip.unsent", { hasText: "2 not sent" }).waitFor();
  assert.equal(await transcript(page).locator(".user", { hasText: "typed while" }).count(), 0, "it is not drawn as said");
  // One can think better of it.
  await queue(page).filter({ hasText: "once more" }).getByText("take back").click();
  assert.equal(await page.inputValue("sb-prompt textarea"), "and once more");
  await bus.run();
  await page.waitForSelector(".link.is-live", { timeout: 20_000 });
  await transcript(page).locator(".agent", { hasText: "typed while it was away" }).waitFor();
  await queue(page).first().waitFor({ state: "detached" });
  assert.equal(await transcript(page).locator(".user", { hasText: "typed while" }).count(), 1);
  assert.equal(await page.inputValue("sb-prompt textarea"), "and once more");
  await isClean(page);
});

test("what was typed for a session that is gone for good is still there", async () => {
  const page = await visit(browser, bus);
  await begin(page, "forgetful", "before");
  await page.locator(".turn-line").waitFor();
  await bus.kill();
  await page.locator(".link.is-lost").waitFor();
  await say(page, "too good to lose");
  await queue(page).filter({ hasText: "not sent yet" }).waitFor();
  await bus.run();
  await page.waitForSelector(".link.is-live", { timeout: 20_000 });
  await page.locator(".left-over", { hasText: "not sent: too good to lose" }).waitFor();
  await page.getByText("discard").click();
  await page.locator(".chip.unsent").waitFor({ state: "detached" });
  await isClean(page);
});

test("what was not sent outlives a reload of the page, and a draft outlives a visit elsewhere", async () => {
  const page = await visit(browser, bus);
  const label = await begin(page, "agent", "before");
  await page.locator(".turn-line").waitFor();
  await page.fill("sb-prompt textarea", "half a thought");
  await page.open("pools");
  await page.locator(".pool-row").first().waitFor();
  await page.open(`sessions/${label}`);
  await until("the draft", async () => (await page.inputValue("sb-prompt textarea")) === "half a thought");
  halt();
  await page.locator(".link", { hasText: "not answering" }).waitFor();
  await say(page, "kept over a reload");
  await queue(page).filter({ hasText: "kept over a reload" }).waitFor();
  const kept = await page.evaluate(() => sessionStorage.getItem("stdio-bus.kept"));
  assert.match(kept, /kept over a reload/);
  goOn();
  await transcript(page).locator(".agent", { hasText: "kept over a reload" }).waitFor();
  await isClean(page);
});

test("a door that hangs is noticed within seconds, and what is said meanwhile is not lost and not doubled", async () => {
  const page = await visit(browser, bus);
  await begin(page, "agent", "before");
  await page.locator(".turn-line").waitFor();
  // Both fit into one piece of what the agent says: its answer to the first may come while the second is being said.
  halt();
  // At once, before anybody can know: it is on its way, and not drawn as said.
  await say(page, "to the void");
  await queue(page).filter({ hasText: "on its way: to the void" }).waitFor();
  assert.equal(await transcript(page).locator(".user", { hasText: "to the void" }).count(), 0);
  await page.locator(".link.is-lost", { hasText: "not answering" }).waitFor();
  await say(page, "this waits");
  await queue(page).filter({ hasText: "not sent yet: this waits" }).waitFor();
  goOn();
  await page.waitForSelector(".link.is-live");
  for (const text of ["to the void", "this waits"]) {
    await transcript(page).locator(".agent", { hasText: text }).waitFor();
    assert.equal(await transcript(page).locator(".user", { hasText: text }).count(), 1, text);
  }
  assert.equal(await queue(page).count(), 0);
  await isClean(page);
});

test("a question is not answered into a door that hangs", async () => {
  const page = await visit(browser, bus);
  await begin(page, "agent", "/ask");
  const card = page.locator(".question");
  await card.waitFor();
  halt();
  await page.locator(".link", { hasText: "not answering" }).waitFor();
  await card.locator('[data-kind="allow_once"]').click();
  await page.locator(".toast", { hasText: "nothing was sent" }).waitFor();
  assert.equal(await card.count(), 1);
  goOn();
  await page.waitForSelector(".link.is-live");
  await card.locator('[data-kind="allow_once"]').click();
  await transcript(page).locator(".agent", { hasText: "You chose allow_once" }).waitFor();
  await isClean(page);
});

test("a second prompt in one's own turn does not end it: nothing is done, and Stop stays, until the last one is", async () => {
  const page = await visit(browser, bus);
  await begin(page, "agent", "/slow 2000");
  await transcript(page).locator(".agent", { hasText: "0 1 2" }).waitFor();
  await say(page, "quick one");
  await queue(page).filter({ hasText: "waits: quick one" }).getByText("send now").click();
  await transcript(page).locator(".agent", { hasText: "quick one" }).waitFor();
  // The second is answered by now; the first is still at work.
  await transcript(page).getByText("20 21 22").waitFor();
  assert.equal(await page.locator(".turn-line").count(), 0, "nothing is done yet");
  assert.equal(await page.locator(".stop").count(), 1);
  await page.locator(".stop").click();
  await page.locator(".turn-line", { hasText: "stopped" }).waitFor();
  assert.equal(await page.locator(".turn-line").count(), 1);
  await page.locator(".stop").waitFor({ state: "detached" });
  await isClean(page);
});

test("a prompt that the bus refuses is still there, and can be sent again", async () => {
  const page = await visit(browser, bus);
  const label = await begin(page, "agent", "before");
  await page.locator(".turn-line").waitFor();
  const editor = await bus.client("editor", AS_CONSOLE);
  await editor.ask("_bus/close", { session: label });
  await page.getByText("The session has ended.").waitFor();
  await say(page, "too late");
  await queue(page).filter({ hasText: "was refused: too late" }).waitFor();
  await page.locator(".error-box").waitFor();
  await queue(page).getByText("take back").click();
  assert.equal(await page.inputValue("sb-prompt textarea"), "too late");
  editor.close();
  await isClean(page);
});

test("a list of commands is closed by Escape, and Enter takes the command that is meant", async () => {
  const page = await visit(browser, bus);
  const label = await begin(page, "agent", "before");
  await page.locator(".turn-line").waitFor();
  await page.locator("sb-prompt textarea").focus();
  await page.keyboard.type("/rev");
  await page.locator(".commands li").first().waitFor();
  await page.keyboard.press("Escape");
  await page.locator(".commands").waitFor({ state: "detached" });
  assert.ok(page.url().endsWith(`/${label}`), "one stays in the session");
  await page.keyboard.type("i");
  await page.keyboard.press("ArrowDown");
  await page.keyboard.press("Enter");
  assert.equal(await page.inputValue("sb-prompt textarea"), "/review-pr ");
  await page.keyboard.press("Control+a");
  await page.keyboard.type("/review");
  await page.keyboard.press("Enter");
  await transcript(page).locator(".user", { hasText: "/review" }).waitFor();
  await page.locator(".menu summary").click();
  await page.keyboard.press("Escape");
  assert.equal(await page.locator("details.menu[open]").count(), 0);
  assert.ok(page.url().endsWith(`/${label}`));
  await isClean(page);
});

test("an address that means nothing says so", async () => {
  const page = await visit(browser, bus);
  await page.evaluate(() => (location.hash = "#/sessions/%zz"));
  await page.getByText("This session cannot be joined").waitFor();
  await isClean(page);
});

test("who looks on sees that a turn of another has failed", async () => {
  const editor = await bus.client("editor", AS_CONSOLE);
  const session = await editor.open("agent");
  const { label } = await editor.ask("_bus/attach", { session, history: "none" });
  const page = await visit(browser, bus);
  await page.open(`sessions/${label}`);
  await page.getByText("editor owns it").waitFor();
  await assert.rejects(editor.prompt(session, "/fail"), /429/);
  await page.locator(".turn-line", { hasText: /failed|without an answer/ }).waitFor();
  editor.close();
  await isClean(page);
});
