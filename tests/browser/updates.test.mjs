// Every kind of update leaves something on the page, and subagents are a tree.

import assert from "node:assert/strict";
import fs from "node:fs";
import path from "node:path";
import { after, before, test } from "node:test";
import { AS_CONSOLE, begin, isClean, launch, REPO, TestBus, visit } from "./harness.mjs";
import { kinds } from "./kinds.mjs";

let bus;
let browser;

before(async () => {
  [bus, browser] = await Promise.all([TestBus.start(), launch()]);
});

after(async () => {
  await browser?.close();
  await bus?.stop();
});

test("every kind of update that the schemas name is shown, and one that is not known too", async () => {
  const told = kinds("x");
  const named = fs.readFileSync(path.join(REPO, "tests/interop/methods.py"), "utf8").split("UPDATES = {")[1].matchAll(/^ {4}"([^"]+)":/gm);
  for (const [, kind] of named) assert.ok(told.some(([, update]) => update.sessionUpdate === kind), `${kind} is not played`);
  const page = await visit(browser, bus, { viewport: { width: 1440, height: 6000 } });
  await begin(page, "agent", "/kinds");
  await page.locator(".unshown summary", { hasText: "_example.com/other" }).waitFor();
  for (const opener of new Set(told.map(([, , , one]) => one).filter((one) => one && one !== "textarea"))) {
    for (const one of await page.locator(opener.startsWith("details") ? `${opener} > summary` : opener).all()) await one.click();
  }
  await page.fill("sb-prompt textarea", "/on");
  for (const [place, update, words] of told) {
    const found = words ? page.locator(place).filter({ hasText: words }) : page.locator(place);
    await found.first().waitFor({ timeout: 5000 }).catch(() => assert.fail(`${JSON.stringify(update).slice(0, 200)} is not at ${place}`));
  }
  // All of what is not known is one click away.
  await page.locator(".unshown summary", { hasText: "_example.com/other" }).click();
  await page.locator(".unshown .code", { hasText: "words of the unknown" }).waitFor();
  assert.equal(await page.getByText("this could not be shown").count(), 0);
  // What is about no session is about an account, and stands with the pools.
  await page.open("pools");
  await page.locator(".accounts .quota summary", { hasText: "monthly: 3 of 9" }).waitFor();
  await page.locator(".accounts summary", { hasText: "auth/status_update" }).waitFor();
  await isClean(page);
});

test("subagents are a tree: in the call that they work for, with their own questions, and for a guest too", async () => {
  const editor = await bus.client("editor", AS_CONSOLE);
  const session = await editor.open("agent");
  const { label } = await editor.ask("_bus/attach", { session, history: "none" });
  const page = await visit(browser, bus);
  await page.open(`sessions/${label}`);
  await page.getByText("editor owns it").waitFor();
  editor.prompt(session, "/team").catch(() => undefined);
  // A question of a subagent is in sight although what the subagent says is folded, and it is among what waits.
  const card = page.locator(".subagent .question");
  await card.getByText("rm -rf nested").first().waitFor();
  assert.equal(await page.locator(".subagent .nested").count(), 0);
  await page.locator(".subagent .fold-line").first().click();
  await page.locator(".nested .agent", { hasText: "the scout looks around" }).waitFor();
  await page.locator(".nested .nested .agent", { hasText: "the scout of the scout" }).waitFor({ state: "detached" });
  await page.locator(".nested .subagent .fold-line").click();
  await page.locator(".nested .nested .agent", { hasText: "the scout of the scout" }).waitFor();
  await page.open("waiting");
  await page.locator(".waiting .question", { hasText: "rm -rf nested" }).focus();
  await page.waitForTimeout(350);
  await page.keyboard.press("d");
  await page.open(`sessions/${label}`);
  await page.locator(".transcript .agent", { hasText: "the scout heard reject_once" }).waitFor();
  // What is told of a call inside another one is in that call.
  await page.locator(".tool-head", { hasText: "Task: look for the token" }).click();
  await page.locator(".nested .tool-head", { hasText: "Searched 3 times" }).waitFor();
  assert.equal(await page.locator(".transcript .tool-head", { hasText: "Searched 3 times" }).count(), 1);
  editor.close();
  await isClean(page);
});
