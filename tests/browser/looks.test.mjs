// How it looks: nothing for axe, enough contrast, no place wider than the screen, and the pictures of docs/CONSOLE.md.

import assert from "node:assert/strict";
import path from "node:path";
import { after, before, test } from "node:test";
import { contrasts } from "./contrast.mjs";
import { AS_CONSOLE, AXE, begin, EXPOSE_GC, heap, isClean, launch, mainThread, nodes, REPO, TestBus, visit } from "./harness.mjs";

let bus;
let browser;
let clients;

before(async () => {
  const agent = (id) => ({ id, command: process.execPath, args: [path.join(REPO, "tests/browser/agent.mjs")] });
  bus = await TestBus.start({ default_pool: "claude", pools: [agent("claude"), agent("gemini"), { id: "echo", command: "stdio-bus", args: ["agent", "echo"] }] });
  browser = await launch(EXPOSE_GC);
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

/** What is wrong with the contrast of any text, however large. */
async function faint(page) {
  const { faults: found, looked } = await page.evaluate(contrasts, 4.5);
  return looked > 0 ? found : ["no text was looked at"];
}

/** What axe finds, with its own bounds of contrast. */
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

/** What the line in Waiting can say. */
const NOTICES = {
  off: { state: "off", push: false, why: "" },
  asking: { state: "asking", push: false, why: "" },
  "on, pushed": { state: "on", push: true, why: "" },
  "on, not pushed": { state: "on", push: false, why: "the service is not there" },
  denied: { state: "denied", push: false, why: "" },
  missing: { state: "missing", push: false, why: "" },
};

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
      found.push(...[...(await faults(page)), ...(await faint(page))].map((one) => `${name}: ${one}`));
      if (process.env.PICTURES) await page.screenshot({ path: path.join(process.env.PICTURES, `${name}-${width}-light.png`) });
      await page.emulateMedia({ colorScheme: "dark" });
      found.push(...[...(await faults(page, ["color-contrast"])), ...(await faint(page))].map((one) => `${name}, dark: ${one}`));
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
    const dispatch = (action) => page.evaluate(async (one) => (await import("/state/app.js")).dispatch(one), action);
    const closed = async () => {
      await page.keyboard.press("Escape");
      await page.locator("dialog").waitFor({ state: "detached" });
    };
    const words = { title: "Close this session?", text: "The agent ends it. `stdio-bus` keeps what was said.", label: "Close it" };
    for (const [kind, sign] of [["palette", ".palette-box li"], ["rename", "dialog form"], ["keys", ".key-list"], ["confirm", "dialog .deny"], ["note", "dialog code"]]) {
      await dispatch({ type: "dialog", dialog: { kind, session: label, key: "k", name: "x", ...(sign.startsWith("dialog ") && kind !== "rename" ? words : {}) } });
      await page.locator(sign).first().waitFor();
      await check(kind);
      await closed();
    }
    await page.open("waiting");
    for (const [name, notices] of Object.entries(NOTICES)) {
      await dispatch({ type: "notices", notices });
      await page.locator(".notices").waitFor();
      await page.waitForTimeout(50);
      await check(`notices ${name}`);
    }
    await dispatch({ type: "toast", text: "The link is copied.", at: Date.now() });
    await dispatch({ type: "toast", error: { message: "the process is gone", code: -32003, data: { reason: "worker_lost", stderr: ["out of memory"] } }, at: Date.now() });
    await page.locator(".toast .error-box").waitFor();
    await check("toasts");
    // A turn that does not stop, and the question before it is stopped by force.
    await page.open(`sessions/${rich}`);
    const id = await page.evaluate(async (name) => (await import("/state/app.js")).bus.sessions.find(name).id, rich);
    await dispatch({ type: "turn", session: id, at: Date.now(), turn: "running" });
    await dispatch({ type: "session", session: id, stopAt: Date.now(), isStuck: true });
    await page.locator(".stop", { hasText: "Force stop" }).click();
    await page.locator("dialog .deny, dialog [data-first]").first().waitFor();
    await check("force stop");
    await closed();
    await check("stuck");
    assert.deepEqual(found, []);
    await isClean(page);
  });
}

/** How much an element's edge differs from what is behind it, as WCAG counts. */
const edgeContrast = (locator) =>
  locator.evaluate((el) => {
    const parts = (colour) => colour.match(/[\d.]+/g).slice(0, 3).map((one) => Number(one) / 255);
    const light = (colour) => parts(colour).map((one) => (one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4)).reduce((sum, one, at) => sum + one * [0.2126, 0.7152, 0.0722][at], 0);
    const [edge, paper] = [light(getComputedStyle(el).borderTopColor), light(getComputedStyle(document.body).backgroundColor)];
    return (Math.max(edge, paper) + 0.05) / (Math.min(edge, paper) + 0.05);
  });

test("fields have an edge that is seen, and what is shown can be read while the bus is away", async () => {
  const page = await visit(browser, bus, { colorScheme: "light" });
  const found = [];
  for (const colorScheme of ["light", "dark"]) {
    await page.emulateMedia({ colorScheme });
    await page.open("new");
    for (const field of ["input[name=cwd]", "textarea[name=prompt]", ".choice >> nth=1"]) {
      await page.locator(field).waitFor();
      const contrast = await edgeContrast(page.locator(field));
      if (contrast < 3) found.push(`${colorScheme}: the edge of ${field} has ${contrast.toFixed(2)}`);
    }
    for (const place of ["waiting", "sessions"]) {
      await page.open(place);
      await page.locator(PLACES[place]).first().waitFor();
      await page.evaluate(async () => (await import("/state/app.js")).dispatch({ type: "link", status: "lost", since: Date.now(), lastWord: Date.now() - 5000 }));
      await page.locator(".body.is-stale").waitFor();
      found.push(...[...(await faults(page, ["color-contrast"])), ...(await faint(page))].map((one) => `${place}, ${colorScheme}, reconnecting: ${one}`));
      if (process.env.PICTURES) await page.screenshot({ path: path.join(process.env.PICTURES, `away-${place}-1440-${colorScheme}.png`) });
      await page.evaluate(async () => (await import("/state/app.js")).dispatch({ type: "link", status: "live" }));
      await page.locator(".body:not(.is-stale)").waitFor();
    }
  }
  assert.deepEqual(found, []);
  await isClean(page);
});

test("headings of an answer have sizes of their own, and code has colours that can be read", async () => {
  const page = await visit(browser, bus);
  const code = "// says it\nconst it = `a`; // 1\nif (it) return 12;";
  await begin(page, "echo", `# One\n\n## Two\n\n### Three\n\n#### Four\n\nwords\n\n\`\`\`js\n${code}\n\`\`\`\n\n\`\`\`html\n<a href="b">\n\`\`\`\n\n\`\`\`diff\n+a\n-b\n\`\`\`\n\n[http://a.example](http://b.example)\n`);
  await page.locator(".agent h6").waitFor();
  const sizes = await page.evaluate(() => ["h3", "h4", "h5", "h6", "p"].map((tag) => parseFloat(getComputedStyle(document.querySelector(`.agent ${tag}`)).fontSize)));
  assert.deepEqual(sizes.slice(0, 4), [...new Set(sizes.slice(0, 4))].sort((one, other) => other - one));
  assert.ok(sizes[3] >= sizes[4], `${sizes}`);
  assert.equal(await page.locator(".agent a").count(), 1);
  assert.equal(await page.locator(".agent pre").first().textContent(), code);
  for (const colorScheme of ["light", "dark"]) {
    await page.emulateMedia({ colorScheme });
    const colours = await page.evaluate(() => [...document.querySelectorAll(".agent pre *")].map((one) => getComputedStyle(one).color));
    assert.ok(new Set(colours).size >= 7, `${colorScheme}: ${[...new Set(colours)]}`);
    assert.deepEqual(await faint(page), []);
  }
  await isClean(page);
});

/** What a message of five million characters may cost the page's thread in all, in seconds of the processor: how long that takes depends on what else it does. */
const BIG_MAX = 3;

for (const how of ["chunk", "message", "stream", "line", "code", "marks", "thought", "prompt", "plan"]) {
  test(`a message of 5 MB does not hold up the page: ${how}`, async () => {
    const page = await visit(browser, bus);
    await begin(page, "gemini", "before");
    await page.locator(".turn-line").waitFor();
    await page.evaluate(() => {
      window.longest = 0;
      new PerformanceObserver((list) => (window.longest = Math.max(window.longest, ...list.getEntries().map((one) => one.duration)))).observe({ type: "longtask" });
    });
    const before = await heap(page);
    const spent = await mainThread(page);
    const began = await spent();
    await page.fill("sb-prompt textarea", `/big ${how}`);
    await page.press("sb-prompt textarea", "Enter");
    await page.locator(".notice", { hasText: `that was ${how}` }).waitFor({ timeout: 60_000 });
    // From its end to its beginning, opened.
    for (const top of [1e9, 40_000, 0, 4000, 1e9]) {
      await page.evaluate((y) => (document.querySelector(".transcript .list-view").scrollTop = y), top);
      await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
      if (how === "thought") await page.evaluate(() => document.querySelector('.thought [aria-expanded="false"]')?.click());
    }
    await page.open("sessions");
    await page.locator("a.session-row").first().waitFor();
    const cost = (await spent()) - began;
    const longest = await page.evaluate(() => window.longest);
    console.log(`5 MB, ${how}: ${cost.toFixed(2)} s of the page's thread, the longest task ${longest.toFixed(0)} ms, heap ${(((await heap(page)) - before) / 1e6).toFixed(0)} MB more, ${await nodes(page)} nodes`);
    assert.ok(cost < BIG_MAX, `${cost} s`);
    assert.ok((await heap(page)) - before < 60e6 && (await nodes(page)) < 4000);
    await isClean(page);
  });
}

test("the first paint is quick", async () => {
  const page = await visit(browser, bus);
  const paints = [];
  for (let load = 0; load < 15; load++) {
    await page.reload();
    await page.waitForSelector(".link.is-live");
    paints.push(await page.evaluate(() => performance.getEntriesByType("paint").find((one) => one.name === "first-contentful-paint")?.startTime));
  }
  const median = paints.toSorted((one, other) => one - other)[7];
  console.log(`first contentful paint after ${median.toFixed(0)} ms, the median of ${paints.map((one) => one.toFixed(0)).join(", ")}`);
  assert.ok(median < 300, `${paints}`);
  await isClean(page);
});

for (const [width, height] of [[1440, 900], [390, 844]]) {
  test(`${width} wide: a form with faults, the output of a command, and code are in order, in light and dark`, async () => {
    const page = await visit(browser, bus, { viewport: { width, height }, hasTouch: width < 700, isMobile: width < 700 });
    const found = [];
    const check = async (name) => {
      for (const colorScheme of ["light", "dark"]) {
        await page.emulateMedia({ colorScheme });
        found.push(...[...(await faults(page)), ...(await faint(page))].map((one) => `${name}, ${colorScheme}: ${one}`));
      }
      const wide = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
      if (wide > 0) found.push(`${name} is ${wide} px too wide`);
    };
    await begin(page, "gemini", "/fields");
    await page.locator(".question [type=submit]").click();
    await page.locator(".fault").first().getByText("Choose one").waitFor();
    await check("a form");
    await begin(page, "gemini", "/output 1000");
    await page.getByRole("button", { name: "Show all" }).waitFor();
    await check("output");
    await begin(page, "echo", "```sh\nls -l\n```\n");
    await page.locator(".agent .copy-code").focus();
    await check("code");
    assert.deepEqual(found, []);
    await isClean(page);
  });
}
