// How it looks: nothing for axe, enough contrast, no place wider than the screen, and the pictures of docs/CONSOLE.md.

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
  for (const [name, pool, cwd, prompt] of [["zed", "claude", "/home/me/src/bus", "/fix the flaky test"], ["vscode", "gemini", "/home/me/src/site", "/edit"], ["nvim", "gemini", "/home/me/notes", "/slow 5000"], ["ci", "echo", "/srv/jobs/17", "nightly report"], ["ci", "echo", "/srv/jobs/18", "release notes"], ["rich", "gemini", "/home/me/src/site", "/kinds"], ["emacs", "claude", "/home/me/src/bus", "where is the token read?"]]) {
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

/** What axe finds; contrast of at least 4.5 is among it. */
async function faults(page, rules) {
  // The page's policy lets no script in, so axe comes in by the debugger.
  await page.evaluate(AXE);
  const { violations } = await page.evaluate((only) => window.axe.run(document, { resultTypes: ["violations"], ...(only ? { runOnly: only } : {}) }), rules);
  return violations.map((one) => `${one.id}: ${one.nodes.slice(0, 3).map((node) => `${node.html} ${node.any[0]?.message ?? ""}`).join(" | ")}`);
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

/** What a subagent said, in sight. */
async function unfold(page, label) {
  await page.locator(".transcript .item").first().waitFor();
  await page.evaluate(async (name) => {
    const { bus } = await import("/state/app.js");
    document.querySelector(".transcript").reveal(bus.sessions.find(name).items.findIndex((item) => item.kind === "subagent"));
  }, label);
  await page.locator(".subagent .fold-line").first().click();
}

/** Comments on lines. */
async function comment(page) {
  await page.locator(".comment-on").first().click();
  await page.locator(".comment textarea").fill("Why five seconds?");
  await page.locator(".comment .primary").click();
  await page.locator(".comment-on").nth(2).click();
  await page.locator(".comment textarea").waitFor();
}

/** Something to see on the wire. */
async function traffic(page) {
  await page.getByText("Pause").waitFor();
  for (const client of clients.slice(-3)) await client.prompt(client.session, client === clients.at(-1) ? "/slow 8" : "once more, ".repeat(40));
  await clients.at(-1).ask("session/load", { sessionId: "no such", cwd: "/", mcpServers: [] }).catch(() => undefined);
  await page.locator(".wire-row", { hasText: "session/prompt" }).filter({ hasText: "emacs" }).click();
}

const PLACES = { waiting: ".question >> nth=1", session: ".question", changes: ".file-head", kinds: ".subagent", sessions: "a.session-row >> nth=3", past: "a.past-row >> nth=2", read: ".transcript .item >> nth=1", pools: ".pool-row", wire: ".wire-row", new: "form" };

/** Goes to a place, and has something to see there. */
async function arrive(page, place, { label, rich }) {
  if (place === "read") await page.locator("a.past-row", { hasText: "flaky" }).first().click();
  else await page.open({ session: `sessions/${label}`, changes: `sessions/${label}/changes`, kinds: `sessions/${rich}` }[place] ?? place);
  if (place === "changes") await comment(page);
  if (place === "kinds") await unfold(page, rich);
  if (place === "sessions") await page.getByRole("button", { name: "By folder" }).click();
  if (place === "pools") await page.locator(".pool-row .fold-line").first().click();
  if (place === "wire") await traffic(page);
}

for (const [width, height] of [[1440, 900], [1024, 768], [390, 844]]) {
  test(`${width} wide: every place is in order, in light and dark`, async () => {
    const page = await visit(browser, bus, { colorScheme: "light", viewport: { width, height }, hasTouch: width < 700, isMobile: width < 700 });
    const [label, rich] = await page.evaluate(async () => {
      const { store } = await import("/state/app.js");
      return ["zed", "rich"].map((name) => store.state.list.filter((one) => one.client === name).at(-1).session);
    });
    const found = [];
    /** Light and dark differ in nothing but colours. */
    const check = async (name) => {
      found.push(...(await faults(page)).map((one) => `${name}: ${one}`));
      if (process.env.PICTURES) await page.screenshot({ path: path.join(process.env.PICTURES, `${name}-${width}-light.png`) });
      await page.emulateMedia({ colorScheme: "dark" });
      found.push(...(await faults(page, ["color-contrast"])).map((one) => `${name}, dark: ${one}`));
      if (process.env.PICTURES) await page.screenshot({ path: path.join(process.env.PICTURES, `${name}-${width}-dark.png`) });
      await page.emulateMedia({ colorScheme: "light" });
    };
    for (const [place, sign] of Object.entries(PLACES)) {
      await arrive(page, place, { label, rich });
      await page.locator(sign).first().waitFor();
      await page.waitForTimeout(250);
      await check(place);
      if (place === "session" || place === "kinds") found.push(...(await headFaults(page)).map((one) => `${place}: ${one}`));
      const wide = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
      if (wide > 0) found.push(`${place} is ${wide} px too wide`);
    }
    for (const [kind, sign] of [["palette", ".palette-box li"], ["rename", "dialog form"], ["keys", ".key-list"]]) {
      await page.evaluate(async (dialog) => (await import("/state/app.js")).dispatch({ type: "dialog", dialog }), { kind, session: label, key: "k", name: "x" });
      await page.locator(sign).first().waitFor();
      await check(kind);
      await page.keyboard.press("Escape");
      await page.locator("dialog").waitFor({ state: "detached" });
    }
    assert.deepEqual(found, []);
    await isClean(page);
  });
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
