// The console as a person uses it, in a real browser, with a real bus.

import assert from "node:assert/strict";
import fs from "node:fs";
import { after, before, test } from "node:test";
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

const transcript = (page) => page.locator(".transcript");

test("the printed link opens the console once, and its code is nowhere to be seen", async () => {
  const link = await bus.printed();
  const page = await visit(browser, bus, { link });
  assert.ok(!page.url().includes("c="), page.url());
  await page.reload();
  await page.waitForSelector(".link.is-live");
  await isClean(page);
  const context = await browser.newContext();
  const late = await context.newPage();
  await late.goto(link);
  await late.getByText("This link is used up").waitFor();
  await late.getByText("stdio-bus web url").waitFor();
  await late.goto(`${bus.url}/`);
  await late.getByText("This page needs a link").waitFor();
  await context.close();
});

test("a page whose token is revoked is out at once, and says how to come in again", async () => {
  const page = await visit(browser, bus);
  const { id } = JSON.parse(bus.web("tokens", "--json")).sort((one, other) => one.created - other.created).at(-1);
  bus.web("revoke", id);
  await page.getByText("This page may no longer come in").waitFor();
  assert.equal(await page.evaluate(() => sessionStorage.getItem("stdio-bus.token")), null);
  await isClean(page);
});

test("a session is begun and prompted, and its answer streams in", async () => {
  const page = await visit(browser, bus);
  await begin(page, "echo", "good morning, bus");
  await transcript(page).locator(".agent", { hasText: "good morning, bus" }).waitFor();
  await say(page, "/think about it");
  await page.locator(".thought").waitFor();
  await page.locator(".turn-line").nth(1).waitFor();
  await page.selectOption(".picker select", "shout");
  await say(page, "loud");
  await transcript(page).locator(".agent", { hasText: "LOUD" }).waitFor();
  await isClean(page);
});

test("a whole turn is shown: thought, plan, reads, a diff, output with colours, a question, where the time went", async () => {
  const page = await visit(browser, bus);
  await begin(page, "agent", "/fix the flaky test");
  await page.locator(".question").waitFor();
  await page.getByText("Read 3 files").waitFor();
  await page.locator(".diff mark").first().waitFor();
  await page.locator(".tool-head", { hasText: "cargo test" }).click();
  await page.locator(".terminal .f2").nth(3).waitFor();
  await page.locator(".question").focus();
  await page.waitForTimeout(350);
  await page.keyboard.press("a");
  await page.getByText("by you, from this page").waitFor();
  await page.locator("button.turn-line").click();
  await page.locator(".waterfall li", { hasText: "waited for an answer" }).waitFor();
  await page.getByText("42.3 k of 200 k tokens").waitFor();
  const [download] = await Promise.all([page.waitForEvent("download"), page.locator(".menu summary").click().then(() => page.getByText("Export as Markdown").click())]);
  assert.match(fs.readFileSync(await download.path(), "utf8"), /^# Fix the flaky test\n[\s\S]*cargo test/);
  await isClean(page);
});

test("the output of a command is at its end, follows it, and can be shown from its start", async () => {
  const page = await visit(browser, bus);
  await begin(page, "agent", "/output 1000");
  const screen = page.locator("pre.terminal");
  const more = async () => {
    await page.locator(".question").waitFor();
    await page.waitForTimeout(400);
    await page.locator(".question .choices button").first().click();
    await screen.getByText("line 1004").waitFor();
  };
  const below = () => screen.evaluate((one) => one.scrollHeight - one.scrollTop - one.clientHeight);
  await screen.waitFor();
  assert.ok((await below()) < 2, "the end is in sight");
  assert.equal((await screen.textContent()).split("\n")[0], "line 601", "the last 400 lines and the empty one");
  await more();
  assert.ok((await below()) < 2, "it follows");
  await page.getByRole("button", { name: "Show all" }).click();
  assert.deepEqual(await screen.evaluate((one) => [one.textContent.split("\n")[0], one.scrollTop]), ["line 0", 0]);
  await page.getByRole("button", { name: "Show all" }).waitFor({ state: "detached" });
  await isClean(page);
});

test("a click that comes too soon does not answer, one that is meant does", async () => {
  const page = await visit(browser, bus);
  await begin(page, "agent", "hello");
  await page.locator(".turn-line").waitFor();
  await say(page, "/ask");
  // Clicked from inside the page in the very frame in which it appears.
  await page.evaluate(() => new Promise((done) => {
    const look = () => {
      const button = document.querySelector('.question [data-kind="allow_once"]');
      if (!button) return requestAnimationFrame(look);
      button.click();
      done(undefined);
    };
    look();
  }));
  assert.equal(await page.locator(".question").count(), 1);
  await page.waitForTimeout(350);
  await page.locator('.question [data-kind="reject_once"]').click();
  await transcript(page).locator(".agent", { hasText: "You chose reject_once" }).waitFor();
  await isClean(page);
});

test("what other clients are asked waits here, and the first answer counts for all", async () => {
  const page = await visit(browser, bus);
  const editor = await bus.client("editor", AS_CONSOLE);
  const session = await editor.open("agent", "/home/me/src");
  let turn = editor.prompt(session, "/edit");
  await page.open("waiting");
  const card = page.locator(".waiting .question");
  await card.locator(".diff").waitFor();
  await until("the title", async () => (await page.title()).startsWith("(1)"));
  await page.waitForTimeout(350);
  await page.keyboard.press("j");
  await page.keyboard.press("a");
  assert.equal((await turn).stopReason, "end_turn");
  assert.match(editor.said, /You chose allow_once/);
  // The other way round: the editor answers, and the card goes.
  turn = editor.prompt(session, "/ask");
  await card.waitFor();
  const asked = await until("the question", () => editor.heard.findLast((one) => one.method === "session/request_permission" && one.params.toolCall.toolCallId === "ask"));
  editor.send({ id: asked.id, result: { outcome: { outcome: "selected", optionId: "reject_once" } } });
  await turn;
  await card.waitFor({ state: "detached" });
  await page.getByText("by editor").waitFor();
  editor.close();
  await isClean(page);
});

test("code in an answer is copied by its button", async () => {
  const page = await visit(browser, bus);
  await page.context().grantPermissions(["clipboard-read", "clipboard-write"], { origin: bus.url });
  await begin(page, "echo", "Say:\n\n```sh\nls -l\n\necho two\n```\n");
  const button = transcript(page).locator(".agent .copy-code");
  await button.focus();
  await page.keyboard.press("Enter");
  await button.getByText("copied").waitFor();
  assert.equal(await page.evaluate(() => navigator.clipboard.readText()), "ls -l\n\necho two");
  await button.getByText("copy", { exact: true }).waitFor();
  await isClean(page);
});

test("a page that nobody touches hears of a question too, and asks seldom while nothing happens", async () => {
  const page = await visit(browser, bus, { alone: true });
  const asked = await page.evaluate(async () => {
    const { bus } = await import("/state/app.js");
    const times = (window.asked_ = []);
    const ask = bus.ask;
    bus.ask = (method, ...more) => (method === "_bus/sessions" && times.push(Date.now()), ask.call(bus, method, ...more));
    await new Promise((done) => setTimeout(done, 6000));
    return times.length;
  });
  assert.ok(asked <= 2, `${asked} times in six seconds`);
  const editor = await bus.client("editor", AS_CONSOLE);
  const turn = editor.prompt(await editor.open("agent"), "/ask");
  turn.catch(() => undefined);
  await page.locator(".question").waitFor({ timeout: 15_000 });
  await page.keyboard.press("j");
  await page.waitForTimeout(400);
  await page.keyboard.press("a");
  await turn;
  editor.close();
  await isClean(page);
});

test("a form of an agent is filled in", async () => {
  const page = await visit(browser, bus);
  await begin(page, "agent", "/form");
  await page.locator(".question input[name=branch]").fill("next");
  await page.waitForTimeout(1100);
  assert.equal(await page.inputValue(".question input[name=branch]"), "next", "it stays while the page is told news");
  await page.locator(".question [type=submit]").click();
  await transcript(page).locator(".agent", { hasText: '"branch":"next"' }).waitFor();
  await isClean(page);
});

test("a form takes several of some choices, chooses nothing by itself, and sends nothing that does not fit", async () => {
  const page = await visit(browser, bus);
  await begin(page, "agent", "/fields");
  const form = page.locator(".question form");
  const faults = () => form.locator(".fault").allTextContents();
  await form.locator("[type=submit]").click();
  assert.deepEqual(await faults(), ["Choose one of these.", "", "", "", "This is needed.", ""]);
  assert.equal(await page.evaluate(() => document.activeElement.name), "size", "what is wrong first has the focus");
  assert.deepEqual(await form.locator("fieldset input").evaluateAll((all) => all.map((one) => one.checked)), [false, true, false]);
  assert.equal(await form.locator("select[name=tone] option:checked").textContent(), "kind");
  assert.deepEqual(await form.locator("input[name=copies]").evaluate((one) => [one.type, one.min, one.max, one.value]), ["number", "1", "9", "1"]);
  await form.locator("select[name=size]").selectOption({ label: "Large" });
  await form.locator("input[name=copies]").fill("12");
  await form.locator("input[name=name]").fill("Not This");
  await form.locator("input[name=mail]").fill("nobody");
  await form.getByLabel("Tests").uncheck();
  await form.locator("[type=submit]").click();
  assert.deepEqual(await faults(), ["", "Choose at least 1.", "", "It must be at most 9.", "It must fit the pattern ^[a-z-]+$", "This is not an e-mail address."]);
  await form.getByLabel("Documents").check();
  await form.getByLabel("Checks").check();
  await form.locator("input[name=copies]").fill("2");
  await form.locator("input[name=name]").fill("one-two");
  await form.locator("input[name=mail]").fill("");
  await form.locator("[type=submit]").click();
  await transcript(page).locator(".agent", { hasText: '{"size":"l","parts":["docs","ci"],"tone":"kind","copies":2,"name":"one-two"}' }).waitFor();
  await isClean(page);
});

test("a second client's session is watched, joined and taken over", async () => {
  const page = await visit(browser, bus);
  const editor = await bus.client("editor", AS_CONSOLE);
  const session = await editor.open("agent");
  await editor.prompt(session, "said before");
  await page.open("sessions");
  const label = await until("its label", async () => (await editor.ask("_bus/sessions")).sessions.findLast((one) => one.client === "editor")?.session);
  await page.locator(`.session-row[href="#/sessions/${label}"]`).click();
  await transcript(page).locator(".agent", { hasText: "said before" }).waitFor();
  await page.getByText("editor owns it").waitFor();
  await page.getByRole("button", { name: "Only watch" }).click();
  await page.getByRole("button", { name: "Take part" }).waitFor();
  assert.equal(await page.locator("sb-prompt").count(), 0);
  await editor.prompt(session, "said while watched");
  await transcript(page).locator(".agent", { hasText: "said while watched" }).waitFor();
  await page.getByRole("button", { name: "Take part" }).click();
  await say(page, "from the page");
  await until("the prompt at the editor", () => editor.said.includes("from the page"));
  await page.getByRole("button", { name: "Take over" }).click();
  await page.getByText("you own it").waitFor();
  await page.getByText("editor controls").waitFor();
  const view = (await editor.ask("_bus/sessions")).sessions.find((one) => one.session === label);
  assert.match(view.client, /^console-/);
  editor.close();
  await isClean(page);
});

test("a prompt waits for another's turn, and can be taken back", async () => {
  const page = await visit(browser, bus);
  const editor = await bus.client("editor", AS_CONSOLE);
  const session = await editor.open("agent");
  const turn = editor.prompt(session, "/slow 400");
  const { label } = await editor.ask("_bus/attach", { session, history: "none" });
  await page.open(`sessions/${label}`);
  await page.locator(".stop").waitFor();
  await say(page, "one thing more");
  await page.locator(".queue li", { hasText: "one thing more" }).waitFor();
  await page.getByRole("button", { name: "take back" }).click();
  await page.locator(".queue").waitFor({ state: "detached" });
  await page.locator(".stop").click();
  assert.equal((await turn).stopReason, "cancelled");
  editor.close();
  await isClean(page);
});

test("pools, the wire and the palette tell what is going on", async () => {
  const page = await visit(browser, bus);
  await page.open("wire");
  await page.getByText("Pause").waitFor();
  const editor = await bus.client("wired", AS_CONSOLE);
  const session = await editor.open("echo");
  await editor.prompt(session, "x ".repeat(2000));
  const row = page.locator(".wire-row", { hasText: "session/prompt" }).first();
  await row.click();
  await page.locator(".wire-detail .waterfall").waitFor();
  await page.fill(".wire .filter", "error");
  await editor.ask("session/prompt", { sessionId: "no such" }).catch(() => undefined);
  await page.locator(".wire-row.is-failed", { hasText: "unknown_session" }).waitFor();
  await page.keyboard.press("Escape");
  await page.keyboard.press("g");
  await page.keyboard.press("p");
  await page.locator(".pool-row", { hasText: "echo" }).locator(".fold-line").click();
  await page.locator(".worker", { hasText: "echo/0" }).getByText("pid").waitFor();
  await begin(page, "echo", "a needle in the hay");
  await page.locator(".turn-line").waitFor();
  await page.open("pools");
  const palette = async (text) => {
    await page.keyboard.press("Control+k");
    await page.locator(".palette-box input:focus").waitFor();
    await page.keyboard.type(text);
    await page.keyboard.press("Enter");
  };
  await palette("needle in the");
  await page.locator(".agent", { hasText: "needle" }).waitFor();
  await palette("new sess");
  await page.locator('textarea[name="prompt"]').waitFor();
  editor.close();
  await isClean(page);
});

test("a link for looking only looks, and one for answering only answers", async () => {
  const editor = await bus.client("editor", AS_CONSOLE);
  const session = await editor.open("agent");
  const turn = editor.prompt(session, "/ask");
  const { label } = await editor.ask("_bus/attach", { session, history: "none" });
  const looks = await visit(browser, bus, { scope: "observe" });
  await looks.open(`sessions/${label}`);
  await transcript(looks).getByText("/ask").waitFor();
  assert.equal(await looks.locator("sb-prompt").count(), 0);
  const answers = await visit(browser, bus, { scope: "approve" });
  await answers.open("waiting");
  await answers.waitForTimeout(350);
  await answers.locator('.question [data-kind="allow_once"]').click();
  await turn;
  assert.match(editor.said, /You chose allow_once/);
  await answers.open(`sessions/${label}`);
  await transcript(answers).getByText("You chose allow_once").waitFor();
  assert.equal(await answers.locator("sb-prompt").count(), 0);
  editor.close();
  await isClean(looks);
  await isClean(answers);
});

test("a process is restarted or drained after a question, its session goes on, and who only looks cannot", async () => {
  const editor = await bus.client("editor", AS_CONSOLE);
  const session = await editor.open("agent");
  const worker = async () => (await editor.ask("_bus/status")).pools.find((pool) => pool.id === "agent").workers.find((one) => one.state === "up");
  const looks = await visit(browser, bus, { scope: "control" });
  await looks.open("pools");
  await looks.locator(".pool-row", { hasText: "agent" }).locator(".fold-line").click();
  await looks.locator(".worker", { hasText: "agent/" }).first().getByText("pid").waitFor();
  assert.equal(await looks.getByRole("button", { name: /restart|drain/i }).count(), 0);
  await isClean(looks);
  const page = await visit(browser, bus);
  await page.open("pools");
  await page.locator(".pool-row", { hasText: "agent" }).locator(".fold-line").click();
  for (const [what, why] of [["restart", "restart"], ["drain", "drained"]]) {
    const { worker: index, pid } = await until("a process", worker);
    const button = page.getByRole("button", { name: `${what} agent/${index}` });
    await button.click();
    await page.locator("dialog[open]").waitFor();
    await page.keyboard.press("Escape");
    await page.locator("dialog").waitFor({ state: "detached" });
    assert.equal((await worker()).pid, pid, "a question that is not answered does nothing");
    // Keys and clicks that come before the next frame count too.
    await button.evaluate((one) => {
      one.click();
      one.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape", bubbles: true }));
    });
    await page.evaluate(() => new Promise((shown) => requestAnimationFrame(() => requestAnimationFrame(shown))));
    assert.equal(await page.locator("dialog").count(), 0, "an early Escape takes the question back");
    await button.click();
    await page.locator("dialog[open]").waitFor();
    await button.evaluate((one) => {
      document.querySelector("dialog").close();
      one.click();
    });
    await page.locator("dialog[open]").getByRole("button", { name: what }).click();
    const next = await until("another process", async () => {
      const now = await worker();
      return now && now.pid !== pid && now;
    });
    await page.locator(".worker", { hasText: `pid ${next.pid}` }).waitFor();
    assert.equal((await editor.prompt(session, `after the ${what}`)).stopReason, "end_turn");
    await until("its end", async () => (await editor.ask("_bus/status")).pools.find((pool) => pool.id === "agent").last_recycled === why);
  }
  editor.close();
  await isClean(page);
});

test("a session goes on after its process was killed, and the error says what to do", async () => {
  const page = await visit(browser, bus);
  await begin(page, "agent", "remember me");
  await page.locator(".turn-line").waitFor();
  await say(page, "/slow 400");
  await transcript(page).locator(".agent", { hasText: "0 1 2" }).waitFor();
  const client = await bus.client("killer");
  const { pools } = await client.ask("_bus/status");
  for (const worker of pools.find((pool) => pool.id === "agent").workers) if (worker.calls > 0) process.kill(worker.pid, "SIGKILL");
  await page.locator(".error-box", { hasText: "ended before it answered" }).waitFor();
  await say(page, "still there?");
  await transcript(page).locator(".agent", { hasText: "still there?" }).waitFor();
  client.close();
  await isClean(page);
});

test("a page that is loaded anew, or loses its connection, takes its session up again", async () => {
  const page = await visit(browser, bus);
  await begin(page, "echo", "before");
  await page.locator(".turn-line").waitFor();
  await page.reload();
  await transcript(page).locator(".agent", { hasText: "before" }).waitFor();
  await page.getByText("you own it").waitFor();
  await say(page, "between");
  await transcript(page).locator(".agent", { hasText: "between" }).waitFor();
  await page.evaluate(async () => (await import("/state/app.js")).bus.peer.socket.close());
  await page.locator(".link.is-lost").waitFor();
  await page.waitForSelector(".link.is-live");
  await page.getByText("you own it").waitFor();
  await say(page, "after");
  await transcript(page).locator(".agent", { hasText: "after" }).waitFor();
  assert.equal(await transcript(page).locator(".user").count(), 3);
  await isClean(page);
});

test("a session of a pool that does not share can be begun too, and another's is not shown", async () => {
  const page = await visit(browser, bus);
  await begin(page, "private", "only mine");
  await transcript(page).locator(".agent", { hasText: "only mine" }).waitFor();
  await page.locator(".turn-line").waitFor();
  const editor = await bus.client("editor", AS_CONSOLE);
  await editor.open("private");
  const { sessions } = await editor.ask("_bus/sessions");
  await page.open(`sessions/${sessions.at(-1).session}`);
  await page.getByText("This session cannot be joined").waitFor();
  editor.close();
  await isClean(page);
});

test("a page survives a restart of the bus: it says so, keeps what was there, and goes on", async () => {
  const page = await visit(browser, bus);
  const label = await begin(page, "agent", "before the restart");
  await page.locator(".turn-line").waitFor();
  await bus.kill();
  await page.locator(".link.is-lost", { hasText: "reconnecting" }).waitFor();
  assert.ok(await transcript(page).getByText("before the restart").count());
  await bus.run();
  await page.waitForSelector(".link.is-live", { timeout: 20_000 });
  await transcript(page).locator(".agent", { hasText: "before the restart" }).waitFor();
  await say(page, "after the restart");
  await transcript(page).locator(".agent", { hasText: "after the restart" }).waitFor();
  assert.ok(label);
  await isClean(page);
});
