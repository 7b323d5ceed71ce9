// What a person writes: queues, attachments, files, commands, and a stop that stops.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { AS_CONSOLE, begin, isClean, launch, say, TestBus, until, visit } from "./harness.mjs";
import { picture } from "./kinds.mjs";

let bus;
let browser;

before(async () => {
  [bus, browser] = await Promise.all([TestBus.start(), launch()]);
});

after(async () => {
  await browser?.close();
  await bus?.stop();
});

const box = (page) => page.locator(".prompt-box textarea");
const queue = (page) => page.locator(".queue li");
const agent = (page, text) => page.locator(".transcript .agent", { hasText: text });

/** Files come by paste or by drop. */
const give = (page, how, files) =>
  page.evaluate(({ how, files }) => {
    const data = new DataTransfer();
    for (const { name, type, base64 } of files) data.items.add(new File([Uint8Array.from(atob(base64), (one) => one.charCodeAt(0))], name, { type }));
    const target = document.querySelector(how === "paste" ? ".prompt-box textarea" : ".transcript");
    target.dispatchEvent(how === "paste" ? new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true }) : new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true }));
  }, { how, files });

test("what is written during a turn waits, is changed and put in order, and is sent; after a stop it is held", async () => {
  const page = await visit(browser, bus);
  await begin(page, "agent", "/slow 4000");
  await page.locator(".stop").waitFor();
  for (const text of ["first", "second", "third"]) await say(page, text);
  await queue(page).nth(2).getByRole("button", { name: "earlier" }).click();
  await queue(page).nth(1).filter({ hasText: "third" }).getByRole("button", { name: "edit" }).click();
  await page.locator(".queue textarea").fill("third, changed");
  await page.keyboard.press("Enter");
  await queue(page).nth(1).filter({ hasText: "third, changed" }).waitFor();
  await queue(page).filter({ hasText: "first" }).getByText("take back").click();
  assert.equal(await box(page).inputValue(), "first");
  await box(page).fill("");
  await page.locator(".stop").click();
  await page.locator(".held").waitFor();
  await until("the keyboard is at the button that stays", () => page.evaluate(() => document.activeElement?.matches(".send")));
  assert.deepEqual(await queue(page).locator(".ellipsis").allTextContents(), ["third, changed", "second"]);
  // A queue outlives a reload, and so does what is being written.
  await box(page).fill("half a sen");
  await page.reload();
  await queue(page).first().waitFor();
  assert.equal(await box(page).inputValue(), "half a sen");
  await until("both are said", async () => {
    // It goes away by itself once nothing waits.
    await page.getByText("Go on with them").click({ timeout: 500 }).catch(() => undefined);
    return (await agent(page, "second").count()) > 0;
  });
  const said = await page.locator(".transcript .user .said").allTextContents();
  assert.deepEqual(said.slice(-2), ["third, changed", "second"]);
  await isClean(page);
});

test("pictures and files go along, by paste and by drop, and what the agent does not take is refused", async () => {
  const page = await visit(browser, bus);
  await begin(page, "agent", "before");
  await page.locator(".turn-line").waitFor();
  await give(page, "paste", [{ name: "shot.png", type: "image/png", base64: picture(20, 10) }, { name: "song.wav", type: "audio/wav", base64: "UklGRg==" }]);
  await page.locator(".toast", { hasText: "song.wav was not taken: this agent takes no sounds" }).waitFor();
  await page.locator(".attachments .chip", { hasText: "shot.png" }).waitFor();
  await give(page, "drop", [{ name: "notes.md", type: "text/markdown", base64: Buffer.from("# Notes").toString("base64") }, { name: "x.bin", type: "", base64: "AP8A" }]);
  await page.locator(".attachments .chip", { hasText: "x.bin" }).waitFor();
  await page.getByRole("button", { name: "remove x.bin" }).click();
  await page.reload();
  await page.locator(".attachments .chip", { hasText: "notes.md" }).waitFor();
  assert.equal(await page.locator(".attachments .chip").count(), 2, "what was not sent outlives a reload");
  const keptNow = () => page.evaluate(() => Object.keys(sessionStorage).filter((name) => name.startsWith("stdio-bus.along ")));
  assert.equal((await keptNow()).length, 1);
  await say(page, "/parts");
  await agent(page, "text | image image/png | resource text/markdown attachment:///notes.md # Notes").waitFor();
  await page.locator(".attachments").waitFor({ state: "detached" });
  assert.deepEqual(await keptNow(), [], "what was sent is not kept");
  await page.locator(".transcript .user .attached.picture img").waitFor();
  // An agent that says nothing of what it takes gets text alone.
  await begin(page, "forgetful", "before");
  await page.locator(".turn-line").waitFor();
  await give(page, "paste", [{ name: "other.png", type: "image/png", base64: picture(8, 8) }]);
  await page.locator(".toast", { hasText: "other.png was not taken: this agent takes no pictures" }).waitFor();
  await isClean(page);
});

test("commands have their hints, files of the session are named by @, and what was written comes back by the arrow keys", async () => {
  const page = await visit(browser, bus);
  await begin(page, "agent", "/fix it");
  await page.locator(".question").waitFor();
  await page.locator(".question").locator('[data-kind="reject_once"]').click({ delay: 400 });
  await page.locator(".turn-line").waitFor();
  await box(page).focus();
  await page.keyboard.type("/review-pr ");
  await page.locator(".hint", { hasText: "number of the pull request" }).waitFor();
  await box(page).fill("");
  await page.keyboard.type("/parts look at @flow");
  await page.locator(".commands li", { hasText: "tests/e2e/flow.rs" }).first().waitFor();
  await page.keyboard.press("Enter");
  assert.match(await box(page).inputValue(), /^\/parts look at @\S*tests\/e2e\/flow\.rs $/);
  await page.keyboard.press("Enter");
  await agent(page, "text | resource_link").waitFor();
  await until("the box is empty", async () => (await box(page).inputValue()) === "");
  await page.keyboard.type("a draft");
  await page.keyboard.press("Home");
  await page.keyboard.press("ArrowUp");
  assert.match(await box(page).inputValue(), /^\/parts look at/);
  await page.keyboard.press("ArrowUp");
  assert.equal(await box(page).inputValue(), "/fix it");
  await page.keyboard.press("ArrowDown");
  await page.keyboard.press("ArrowDown");
  assert.equal(await box(page).inputValue(), "a draft");
  await page.keyboard.press("End");
  await page.keyboard.press("Shift+Enter");
  await page.keyboard.type("of two lines");
  await page.keyboard.press("Enter");
  await page.locator(".transcript .user .said", { hasText: "a draft\nof two lines" }).waitFor();
  await isClean(page);
});

test("on a phone Enter is a new line, and the button sends", async () => {
  const page = await visit(browser, bus, { viewport: { width: 390, height: 844 }, hasTouch: true, isMobile: true });
  await begin(page, "agent", "before");
  await page.locator(".turn-line").waitFor();
  await box(page).focus();
  await page.keyboard.type("one");
  await page.keyboard.press("Enter");
  await page.keyboard.type("two");
  assert.equal(await box(page).inputValue(), "one\ntwo");
  await page.locator(".send").tap();
  await page.locator(".transcript .user .said", { hasText: "one\ntwo" }).waitFor();
  await isClean(page);
});

test("a turn that does not stop is stopped by force, which says who else is hit and who may do it", async () => {
  const editor = await bus.client("neighbour", AS_CONSOLE);
  const other = await editor.open("agent");
  const { label: hit } = await editor.ask("_bus/attach", { session: other, history: "none" });
  const page = await visit(browser, bus);
  const label = await begin(page, "agent", "/stuck");
  const lesser = await visit(browser, bus, { scope: "control" });
  await lesser.open(`sessions/${label}`);
  await page.locator(".stop").click();
  await page.getByText("Stopping").waitFor();
  await lesser.locator(".stop").click();
  for (const one of [lesser, page]) {
    await one.locator(".stuck").waitFor();
    await one.locator(".stop", { hasText: "Force stop" }).click();
    await one.locator("dialog", { hasText: `${hit} of neighbour` }).waitFor();
  }
  await lesser.locator("dialog code", { hasText: "stdio-bus restart --now agent/" }).waitFor();
  await page.locator("dialog").getByRole("button", { name: "Force stop" }).click();
  await page.locator(".turn-line", { hasText: "failed" }).waitFor({ timeout: 30_000 });
  await page.locator(".stop").waitFor({ state: "detached" });
  await say(page, "and on it goes");
  await agent(page, "and on it goes").waitFor({ timeout: 30_000 });
  editor.close();
  await isClean(lesser);
  await isClean(page);
});
