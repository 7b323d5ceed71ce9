// Many sessions in order, and new ones with what their agents offer.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { AS_CONSOLE, begin, isClean, launch, say, TestBus, until, visit } from "./harness.mjs";

let bus;
let browser;
let client;

before(async () => {
  [bus, browser] = await Promise.all([TestBus.start(), launch()]);
  client = await bus.client("zed", AS_CONSOLE);
});

after(async () => {
  client?.close();
  await browser?.close();
  await bus?.stop();
});

const labels = (page) => page.evaluate(() => [...document.querySelectorAll("a.session-row")].map((one) => one.getAttribute("href").split("/").at(-1)));
const row = (page, label) => page.locator(`a.session-row[href="#/sessions/${label}"]`);

test("sessions are pinned, named, put away, grouped and chosen by state, and it is kept", async () => {
  for (const cwd of ["/srv/shop", "/srv/site", "/srv/shop"]) await client.open("echo", cwd);
  const asking = await client.open("agent", "/srv/site");
  client.prompt(asking, "/ask").catch(() => undefined);
  const page = await visit(browser, bus);
  await page.open("sessions");
  await until("the one that asks is first", async () => (await labels(page)).join() === "s4,s3,s2,s1");
  await row(page, "s1").focus();
  await page.keyboard.press("p");
  await until("the pinned one is next", async () => (await labels(page)).join() === "s4,s1,s3,s2");
  await row(page, "s2").focus();
  await page.keyboard.press("r");
  await page.locator('dialog input[name="name"]').fill("the shop's window");
  await page.keyboard.press("Enter");
  await row(page, "s2").getByText("the shop's window").waitFor();
  await row(page, "s3").hover();
  await page.getByRole("button", { name: "archive s3" }).click();
  await until("it is out of sight", async () => (await labels(page)).join() === "s4,s1,s2");
  await page.reload();
  await until("it is kept", async () => (await labels(page)).join() === "s4,s1,s2");
  await page.getByRole("button", { name: /^Archived/ }).click();
  await until("it is in the archive", async () => (await labels(page)).join() === "s3");
  await page.getByRole("button", { name: /^Waiting/ }).click();
  await until("only what waits", async () => (await labels(page)).join() === "s4");
  await page.getByRole("button", { name: /^All/ }).click();
  await page.getByRole("button", { name: "By folder" }).click();
  await page.locator(".group-row", { hasText: "/srv/shop" }).waitFor();
  assert.deepEqual(await page.locator(".group-row .mono").allTextContents(), ["/srv/site", "/srv/shop"], "the group that needs somebody is first");
  await page.fill(".session-list .filter", "window");
  await until("found by its name", async () => (await labels(page)).join() === "s2");
  // One that is put away and asks is in sight again.
  await page.fill(".session-list .filter", "");
  await row(page, "s4").focus();
  await page.keyboard.press("e");
  assert.ok((await labels(page)).includes("s4"));
  await isClean(page);
});

test("a session is renamed at its agent and forked, and New knows folders, settings and what is offered", async () => {
  const page = await visit(browser, bus);
  const label = await begin(page, "agent", "remember the heron");
  await page.locator(".turn-line").waitFor();
  await page.locator(".menu summary").click();
  await page.getByRole("button", { name: "Rename" }).click();
  await page.getByText("The agent is told").waitFor();
  await page.locator('dialog input[name="name"]').fill("about birds");
  await page.keyboard.press("Enter");
  await page.locator(".session-title h2", { hasText: "about birds" }).waitFor();
  await until("all see it", async () => (await client.ask("_bus/sessions")).sessions.find((one) => one.session === label)?.title === "about birds");
  await page.locator(".menu summary").click();
  await page.getByRole("button", { name: "Fork" }).click();
  await page.locator(".note", { hasText: `A copy of ${label} begins here.` }).waitFor();
  await page.locator(".transcript .user", { hasText: "remember the heron" }).waitFor();
  await say(page, "and the stork");
  await page.locator(".transcript .agent", { hasText: "and the stork" }).waitFor();
  await page.open(`sessions/${label}`);
  // The original is as it was.
  await page.getByText("and the stork").first().waitFor({ state: "detached" });
  await page.locator(".transcript .user", { hasText: "remember the heron" }).waitFor();
  await page.open("new");
  await page.check('input[value="agent"]');
  await page.getByText("takes pictures, files").waitFor();
  await page.locator('select[name$=" mode mode"]').selectOption({ label: "Plan only" });
  await page.locator('select[name$=" option web"]').selectOption({ label: "off" });
  assert.equal(await page.inputValue('input[name="cwd"]'), "/tmp", "the last folder");
  await page.fill('textarea[name="prompt"]', "hello");
  await page.click('button[type="submit"]');
  await page.locator(".session-settings .picker", { hasText: /^mode(?!l)/ }).locator("select").waitFor();
  assert.equal(await page.locator(".session-settings .picker", { hasText: /^mode(?!l)/ }).locator("select").inputValue(), "plan");
  await until("the option is off", async () => !(await page.locator(".session-settings input[type=checkbox]").isChecked()));
  await page.locator(".session-settings input[type=checkbox]").check();
  await until("it is on again", async () => page.evaluate(async () => Object.values((await import("/state/app.js")).store.state.sessions).at(-1).options.find((one) => one.id === "web")?.currentValue === true));
  await isClean(page);
});
