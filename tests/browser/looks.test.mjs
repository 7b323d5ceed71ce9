// How it looks: nothing serious for axe, no place wider than the screen, and the pictures of docs/CONSOLE.md.

import assert from "node:assert/strict";
import path from "node:path";
import { after, before, test } from "node:test";
import { AS_CONSOLE, AXE, begin, isClean, launch, REPO, TestBus, visit } from "./harness.mjs";

let bus;
let browser;
let clients;

before(async () => {
  const agent = (id) => ({ id, command: process.execPath, args: [path.join(REPO, "tests/browser/agent.mjs")] });
  bus = await TestBus.start({ default_pool: "claude", pools: [agent("claude"), agent("gemini"), { id: "echo", command: "stdio-bus", args: ["agent", "echo"] }] });
  browser = await launch();
  clients = [];
  for (const [name, pool, cwd, prompt] of [["zed", "claude", "/home/me/src/bus", "/fix the flaky test"], ["vscode", "gemini", "/home/me/src/site", "/edit"], ["nvim", "gemini", "/home/me/notes", "/slow 5000"], ["ci", "echo", "/srv/jobs/17", "nightly report"], ["ci", "echo", "/srv/jobs/18", "release notes"], ["emacs", "claude", "/home/me/src/bus", "where is the token read?"]]) {
    const client = await bus.client(name, AS_CONSOLE);
    client.session = await client.open(pool, cwd);
    client.prompt(client.session, prompt).catch(() => undefined);
    clients.push(client);
  }
});

after(async () => {
  await browser?.close();
  for (const client of clients ?? []) client.close();
  await bus?.stop();
});

/** What axe finds that a person would suffer from. */
async function faults(page) {
  // The page's policy lets no script in, so axe comes in by the debugger.
  await page.evaluate(AXE);
  const { violations } = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
  return violations.filter((one) => ["serious", "critical"].includes(one.impact)).map((one) => `${one.id}: ${one.nodes.slice(0, 3).map((node) => `${node.html} ${node.any[0]?.message ?? ""}`).join(" | ")}`);
}

/** The head of a session has room for its title, its parts lie beside each other, and three quarters of the screen are left for what was said. */
const headFaults = (page) =>
  page.evaluate(() => {
    const rect = (selector) => document.querySelector(selector).getBoundingClientRect();
    const found = [];
    if (rect(".session-title h2").width < 60) found.push("no room for the title");
    if (rect(".session-head").height > innerHeight * 0.25) found.push(`the head is ${rect(".session-head").height} px high`);
    const parts = [".session-title", ".session-facts", ".session-tools", ".session-settings"].map((one) => [one, rect(one)]);
    for (const [name, a] of parts) for (const [other, b] of parts) if (name < other && Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1) found.push(`${name} lies over ${other}`);
    return found;
  });

/** Something to see on the wire. */
async function traffic(page) {
  await page.getByText("Pause").waitFor();
  for (const client of clients.slice(-3)) await client.prompt(client.session, client === clients.at(-1) ? "/slow 8" : "once more, ".repeat(40));
  await clients.at(-1).ask("session/load", { sessionId: "no such", cwd: "/", mcpServers: [] }).catch(() => undefined);
  await page.locator(".wire-row", { hasText: "session/prompt" }).filter({ hasText: "emacs" }).click();
}

const PLACES = { waiting: ".question >> nth=1", session: ".question", sessions: "a.session-row >> nth=3", pools: ".pool-row", wire: ".wire-row", new: "form" };

for (const scheme of ["light", "dark"]) {
  for (const [width, height] of [[1440, 900], [1024, 768], [390, 844]]) {
    test(`${scheme}, ${width} wide: every place is in order`, async () => {
      const page = await visit(browser, bus, { colorScheme: scheme, viewport: { width, height }, hasTouch: width < 700, isMobile: width < 700 });
      const label = await page.evaluate(async () => {
        const { store } = await import("/state/app.js");
        return store.state.list.find((one) => one.client === "zed").session;
      });
      for (const [place, sign] of Object.entries(PLACES)) {
        await page.open(place === "session" ? `sessions/${label}` : place);
        if (place === "pools") await page.locator(".pool-row .fold-line").first().click();
        if (place === "wire") await traffic(page);
        await page.locator(sign).first().waitFor();
        await page.waitForTimeout(250);
        if (width !== 1024) assert.deepEqual(await faults(page), [], place);
        if (place === "session") assert.deepEqual(await headFaults(page), []);
        const wide = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
        assert.ok(wide <= 0, `${place} is ${wide} px too wide`);
        if (process.env.PICTURES) await page.screenshot({ path: path.join(process.env.PICTURES, `${place}-${width}-${scheme}.png`) });
      }
      await page.evaluate(async () => (await import("/state/app.js")).dispatch({ type: "dialog", dialog: { kind: "palette" } }));
      await page.locator(".palette-box li").first().waitFor();
      assert.deepEqual(await faults(page), [], "palette");
      await isClean(page);
    });
  }
}

test("everything can be done by keyboard, and the focus is seen", async () => {
  const page = await visit(browser, bus);
  await page.keyboard.press("g");
  await page.keyboard.press("s");
  await page.locator("a.session-row").first().waitFor();
  await page.keyboard.press("j");
  const outline = await page.evaluate(() => getComputedStyle(document.activeElement).outlineStyle);
  assert.equal(outline, "solid");
  await page.keyboard.press("Enter");
  await page.locator(".session-head").waitFor();
  await page.keyboard.press("Escape");
  await page.keyboard.press("n");
  await page.locator("form.form").waitFor();
  await page.keyboard.press("?");
  await page.locator(".key-list").waitFor();
  await page.keyboard.press("Escape");
  await begin(page, "echo", "by hand");
  await isClean(page);
});

test("the first paint is quick", async () => {
  const page = await visit(browser, bus);
  await page.reload();
  await page.waitForSelector(".link.is-live");
  const paint = await page.evaluate(() => performance.getEntriesByType("paint").find((one) => one.name === "first-contentful-paint")?.startTime);
  console.log(`first contentful paint after ${paint?.toFixed(0)} ms`);
  assert.ok(paint < 2000, `${paint}`);
  await isClean(page);
});
