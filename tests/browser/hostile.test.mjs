// Pages and agents that mean harm: nothing of theirs reaches an agent, and nothing of theirs runs.

import assert from "node:assert/strict";
import http from "node:http";
import { after, before, test } from "node:test";
import { begin, EXPOSE_GC, freePort, heap, isClean, launch, mainThread, nodes, TestBus, until, visit } from "./harness.mjs";

let bus;
let browser;
let server;
let elsewhere;

before(async () => {
  bus = await TestBus.start();
  // The name of an attacker's site that suddenly resolves to this machine.
  browser = await launch(`--host-resolver-rules=MAP rebind.example 127.0.0.1`, EXPOSE_GC);
  elsewhere = await freePort();
  server = http.createServer((_, response) => response.setHeader("Content-Type", "text/html").end("<!doctype html><title>evil</title>")).listen(elsewhere, "127.0.0.1");
});

after(async () => {
  server?.close();
  await browser?.close();
  await bus?.stop();
});

/** Runs in the page of the attacker: everything that a page can try. Returns what it got. */
async function attack({ url, token }) {
  const got = {};
  const tried = async (name, what) => {
    const late = new Promise((done) => setTimeout(() => done("nothing"), 3000));
    got[name] = await Promise.race([what(), late]).catch((error) => `failed: ${error.name ?? error}`);
  };
  const line = JSON.stringify({ jsonrpc: "2.0", id: 1, method: "session/new", params: { cwd: "/tmp", mcpServers: [] } });
  const fetched = (how) => async () => {
    const answer = await fetch(`${url}${how.path}`, how);
    return answer.type === "opaque" ? "opaque" : `heard ${answer.status} ${(await answer.text()).slice(0, 40)}`;
  };
  const socket = (protocols) => () =>
    new Promise((done) => {
      const one = new WebSocket(`${url.replace("http", "ws")}/acp`, protocols);
      one.onopen = () => (one.send(line), done("open"));
      one.onerror = () => done("failed: refused");
    });
  await tried("fetch", fetched({ path: "/acp", method: "POST", headers: { "Content-Type": "application/json" }, body: line }));
  await tried("simple post", fetched({ path: "/acp", method: "POST", mode: "no-cors", body: line }));
  await tried("login", fetched({ path: "/login", method: "POST", mode: "no-cors", body: JSON.stringify({ code: "guess" }) }));
  await tried("with a token", fetched({ path: "/metrics", headers: { Authorization: `Bearer ${token}` } }));
  await tried("script", () => new Promise((done) => Object.assign(document.head.appendChild(document.createElement("script")), { src: `${url}/state/app.js`, type: "module", onload: () => done("ran"), onerror: () => done("failed: refused") })));
  await tried("socket", socket([]));
  await tried("socket with a token", socket(["acp.v1", `bearer.${token}`]));
  await tried("event stream", () => new Promise((done) => Object.assign(new EventSource(`${url}/acp`), { onopen: () => done("open"), onerror: () => done("failed: refused") })));
  await tried("form", () => new Promise((done) => {
    const frame = Object.assign(document.body.appendChild(document.createElement("iframe")), { name: "target" });
    const form = Object.assign(document.body.appendChild(document.createElement("form")), { method: "post", action: `${url}/acp`, target: "target", enctype: "text/plain" });
    Object.assign(form.appendChild(document.createElement("input")), { name: line.slice(0, -1), value: "}" });
    frame.onload = () => done("failed: a frame");
    form.submit();
  }));
  await tried("frame", () => new Promise((done) => {
    const frame = document.body.appendChild(document.createElement("iframe"));
    frame.onload = () => {
      try {
        done(frame.contentDocument?.querySelector("#app") ? "read it" : "failed: closed");
      } catch {
        done("failed: closed");
      }
    };
    frame.src = `${url}/`;
  }));
  return got;
}

test("another port of this machine, and another name for it, get nothing and do nothing", async () => {
  const page = await visit(browser, bus);
  const token = await page.evaluate(() => sessionStorage.getItem("stdio-bus.token"));
  const client = await bus.client("judge");
  const { sessions, counters } = await client.ask("_bus/status");
  for (const origin of [`http://127.0.0.1:${elsewhere}`, `http://localhost:${elsewhere}`]) {
    const context = await browser.newContext();
    const evil = await context.newPage();
    await evil.goto(origin);
    const got = await evil.evaluate(attack, { url: bus.url, token });
    for (const [name, what] of Object.entries(got)) assert.match(what, /^failed|^opaque|^nothing/, `${origin}: ${name}: ${what}`);
    // A form in the window itself, as a person may be tricked to send it.
    await evil.setContent(`<form id=f method=post action="${bus.url}/acp" enctype="text/plain"><input name="x" value="y"></form>`).catch(() => undefined);
    await evil.evaluate(() => document.querySelector("#f")?.submit());
    await until("the answer to the form", async () => evil.url().startsWith(bus.url));
    assert.equal(await evil.evaluate(() => sessionStorage.length), 0);
    await context.close();
  }
  const now = await client.ask("_bus/status");
  assert.deepEqual([now.sessions, now.counters.requests], [sessions, counters.requests]);
  client.close();
  await isClean(page);
});

test("a name that is bound to this machine anew is not served", async () => {
  const context = await browser.newContext();
  const page = await context.newPage();
  const answer = await page.goto(`http://rebind.example:${bus.port}/`);
  assert.equal(answer.status(), 421);
  const got = await page.evaluate(attack, { url: `http://rebind.example:${bus.port}`, token: "x" });
  for (const [name, what] of Object.entries(got)) assert.match(what, /^failed|^nothing|^heard 4\d\d/, `${name}: ${what}`);
  await context.close();
});

test("what an agent writes is text: in answers, titles, plans, diffs, file names and questions", async () => {
  const page = await visit(browser, bus);
  await page.evaluate(() => document.addEventListener("securitypolicyviolation", () => (window.violated = true)));
  await begin(page, "agent", "/evil");
  const card = page.locator(".question");
  await card.waitFor();
  for (const hidden of ["U+202E", "U+2066", "U+2069"]) await card.getByText(hidden).first().waitFor();
  await card.getByText("characters in it that cannot be seen").waitFor();
  // A button says what it does where its name says the opposite, and no status of a plan is another class of ours.
  await card.locator('[data-kind="allow_always"]', { hasText: "allow always" }).waitFor();
  assert.equal(await page.locator(".plan .toasts").count(), 0);
  await page.locator(".session-title h2", { hasText: "<script>" }).waitFor();
  await page.locator(".diff .path", { hasText: "<img src=x" }).waitFor();
  for (const place of ["waiting", "sessions", "pools", "wire"]) {
    await page.open(place);
    await page.waitForTimeout(200);
  }
  await page.keyboard.press("Control+k");
  await page.locator(".palette-box li").first().waitFor();
  const found = await page.evaluate(() => ({ owned: window.owned, violated: window.violated, images: [...document.images].map((one) => one.src), frames: document.querySelectorAll("iframe, object, embed").length }));
  assert.deepEqual(found, { owned: undefined, violated: undefined, images: [`${bus.url}/icon.svg`], frames: 0 });
  await isClean(page);
});

test("whatever an agent pretends to be, it changes nothing outside its card", async () => {
  const page = await visit(browser, bus);
  await page.evaluate(() => document.addEventListener("securitypolicyviolation", (event) => (window.violated = event.violatedDirective)));
  const frame = () => page.evaluate(() => [...document.querySelectorAll(".top, .rail, .toasts, title")].map((one) => one.textContent.replace(/\d+ s/g, "")).join(" | "));
  await begin(page, "agent", "hello");
  await page.locator(".turn-line").waitFor();
  const before = await frame();
  await page.fill("sb-prompt textarea", "/pretend");
  await page.press("sb-prompt textarea", "Enter");
  await page.locator(".transcript .agent", { hasText: "pretending is over" }).waitFor();
  const seen = { images: new Set(), links: new Set(), outside: new Set() };
  for (let step = 0; step < 12; step++) {
    await page.evaluate((top) => {
      document.querySelector(".transcript .list-view").scrollTop = top;
      document.querySelectorAll("main details:not([open]):not(.menu) > summary, main [aria-expanded=false]").forEach((one) => one.click());
    }, step * 500);
    await page.waitForTimeout(60);
    const found = await page.evaluate(() => {
      const card = document.querySelector("section.session").getBoundingClientRect();
      // What is cut off by an edge of its own card is inside it.
      const isOut = (one) => {
        const { left, right, width } = one.getBoundingClientRect();
        return width > 0 && (left < card.left - 1 || right > card.right + 1) && !one.closest(".code, .diff-lines, .scroll, .ellipsis, .session-settings, option");
      };
      const all = [...document.querySelectorAll("section.session *")];
      return { images: [...document.images].map((one) => one.src.slice(0, 30)), links: all.filter((one) => one.tagName === "A" && one.hasAttribute("href")).map((one) => one.getAttribute("href").slice(0, 12)), outside: all.filter(isOut).map((one) => one.outerHTML.slice(0, 200)) };
    });
    for (const [name, list] of Object.entries(found)) for (const one of list) seen[name].add(one);
  }
  assert.deepEqual([...seen.outside], []);
  assert.deepEqual([...seen.images].sort(), [`${bus.url}/icon.svg`.slice(0, 30), "data:image/png;base64,iVBORw0K"].sort());
  assert.deepEqual([...seen.links].filter((one) => !one.startsWith("#/sessions") && !one.startsWith("http://evil")), []);
  assert.equal(await frame(), before);
  await page.open(`sessions/${await page.evaluate(() => location.hash.split("/")[2])}/changes`);
  await page.locator(".file-head", { hasText: "<img" }).first().waitFor();
  await page.open("sessions");
  await page.locator("a.session-row").first().waitFor();
  const end = await page.evaluate(() => ({ owned: window.owned, violated: window.violated, frames: document.querySelectorAll("iframe, object, embed").length, wide: document.documentElement.scrollWidth - innerWidth }));
  assert.deepEqual(end, { owned: undefined, violated: undefined, frames: 0, wide: 0 });
  await isClean(page);
});

test("updates of any shape do not break the page", async () => {
  const page = await visit(browser, bus);
  const warned = [];
  page.on("console", (message) => message.type() === "warning" && warned.push(message.text()));
  await begin(page, "agent", "/garbage");
  await page.locator(".transcript .agent", { hasText: "still here" }).waitFor();
  await page.locator(".question").waitFor();
  for (let step = 0; step < 10; step++) {
    await page.evaluate((top) => (document.querySelector(".transcript .list-view").scrollTop = top), step * 600);
    await page.waitForTimeout(50);
    await page.evaluate(() => document.querySelectorAll('.tool-head[aria-expanded="false"]').forEach((one) => one.click()));
  }
  await page.open("waiting");
  await page.locator(".waiting .question").first().waitFor();
  assert.deepEqual(warned, []);
  await isClean(page);
});

/** Runs in the page: hears so many updates of every kind that could leave something, each with a name of its own, so many between two frames. */
async function flooded({ total, each }) {
  const { bus, store } = await import("/state/app.js");
  const sessionId = Object.keys(store.state.sessions).at(-1);
  const words = (at) => ({ type: "text", text: `word ${at} ` });
  const kinds = [
    (at) => ({ sessionUpdate: "agent_message_chunk", content: words(at) }),
    (at) => ({ sessionUpdate: "agent_message_chunk", messageId: `m${at}`, content: words(at) }),
    (at) => ({ sessionUpdate: "tool_call", toolCallId: `call ${at}`, title: `step ${at}`, kind: "other", status: "completed" }),
    (at) => ({ sessionUpdate: "tool_call_update", toolCallId: `call ${at - 1}`, content: [{ type: "content", content: words(at) }] }),
    (at) => ({ sessionUpdate: "agent_thought_chunk", content: words(at) }),
    (at) => ({ sessionUpdate: "tool_call", toolCallId: `inner ${at}`, title: "inner", _meta: { claudeCode: { parentToolUseId: `call ${at - 3}` } } }),
    (at) => ({ sessionUpdate: "notice", severity: "info", title: `notice ${at}` }),
    (at) => ({ sessionUpdate: "subagent_update", sessionId: `sub ${at}`, title: `sub ${at}`, state: { state: "running" } }),
    (at) => ({ sessionUpdate: "terminal_update", terminalId: `terminal ${at}`, command: "x", output: { data: btoa(`line ${at}`) } }),
    (at) => ({ sessionUpdate: "plan", entries: [{ content: `step ${at}`, status: "pending", priority: "low" }] }),
    (at) => ({ sessionUpdate: "plan_update", plan: { type: "markdown", planId: `plan ${at}`, content: `# ${at}` } }),
    (at) => ({ sessionUpdate: "compaction_update", compactionId: `compaction ${at}`, status: "completed", summary: [words(at)] }),
    (at) => ({ sessionUpdate: "session_message", messageId: `said ${at}`, content: [words(at)] }),
    (at) => ({ sessionUpdate: `kind ${at}`, x: at }),
    (at) => ({ sessionUpdate: "config_option_update", configOptions: [{ id: `option ${at}`, name: "x", type: "boolean", currentValue: true }] }),
    (at) => ({ sessionUpdate: "usage_update", used: at, size: 1e9, [`more ${at % 50}`]: at }),
  ];
  for (let at = 0; at < total; at++) {
    const line = JSON.stringify({ jsonrpc: "2.0", method: "session/update", params: { sessionId, update: kinds[at % kinds.length](at) } });
    bus.heard(JSON.parse(line), line.length);
    if (at % each === each - 1) await new Promise(requestAnimationFrame);
  }
}

test("a million updates take neither the memory of the page nor its thread", async () => {
  const page = await visit(browser, bus);
  await begin(page, "agent", "before");
  await page.locator(".turn-line").waitFor();
  const before = await heap(page);
  const spent = await mainThread(page);
  const [began, start] = [await spent(), Date.now()];
  const flood = page.evaluate(flooded, { total: 1_000_000, each: 10_000 });
  // In the middle of it the page answers.
  await page.keyboard.press("Control+k");
  await page.locator(".palette-box").waitFor();
  await page.keyboard.press("Escape");
  await flood;
  const [cost, took] = [(await spent()) - began, (Date.now() - start) / 1000];
  const kept = await page.evaluate(async () => Object.values((await import("/state/app.js")).store.state.sessions).reduce((sum, one) => sum + one.items.length, 0));
  await until("the last of it", async () => (await page.evaluate(async () => (await import("/state/app.js")).bus.heap.length)) === 0);
  const grown = (await heap(page)) - before;
  console.log(`a million updates: ${took.toFixed(1)} s, ${cost.toFixed(1)} s of the page's thread, ${kept} items kept, heap ${(grown / 1e6).toFixed(0)} MB more, ${await nodes(page)} nodes`);
  assert.ok(kept > 1000 && kept <= 20_000, `${kept} items`);
  assert.ok(grown < 120e6, `${grown} bytes more`);
  assert.ok((await nodes(page)) < 4000);
  assert.ok(cost < 30, `${cost} s of the page's thread`);
  await isClean(page);
});

test("the page cannot be framed, has a strict policy, and needs no other host", async () => {
  const answer = await fetch(`${bus.url}/`);
  const policy = answer.headers.get("content-security-policy");
  for (const rule of ["default-src 'none'", "script-src 'self'", "style-src 'self'", "frame-ancestors 'none'", "require-trusted-types-for 'script'", "base-uri 'none'", "form-action 'none'"]) assert.ok(policy.includes(rule), rule);
  assert.ok(!/unsafe|\*/.test(policy), policy);
  assert.equal(answer.headers.get("access-control-allow-origin"), null);
});
