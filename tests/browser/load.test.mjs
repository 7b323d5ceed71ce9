// Much at once: the page stays usable, and what it keeps is bounded.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { AS_CONSOLE, begin, EXPOSE_GC, heap, isClean, launch, mainThread, nodes, say, TestBus, until, visit } from "./harness.mjs";

const NODES_MAX = 4000;
const HEAP_MAX = 120e6;
/** What a frame may cost the page's thread while somebody scrolls, in milliseconds: at 60 frames a second there are so many. */
const FRAME_MAX = 16;

let bus;
let browser;

before(async () => {
  [bus, browser] = await Promise.all([TestBus.start(), launch(EXPOSE_GC)]);
});

after(async () => {
  await browser?.close();
  await bus?.stop();
});

const items = (page) => page.evaluate(async () => Object.values((await import("/state/app.js")).store.state.sessions).at(-1)?.next ?? 0);

/** Counts frames while something goes on: how many there were a second, and the longest wait for one. */
const watchFrames = (page) =>
  page.evaluate(() => {
    cancelAnimationFrame(window.frames_?.handle);
    window.frames_ = { count: 0, worst: 0, began: performance.now() };
    let last = performance.now();
    const tick = (now) => {
      window.frames_.count += 1;
      window.frames_.worst = Math.max(window.frames_.worst, now - last);
      last = now;
      window.frames_.handle = requestAnimationFrame(tick);
    };
    requestAnimationFrame(tick);
  });
const frames = (page) => page.evaluate(() => ({ count: window.frames_.count, rate: (window.frames_.count * 1000) / (performance.now() - window.frames_.began), worst: window.frames_.worst }));

/** At 2,000 updates a second and 60 frames a second so many come between two frames. */
const STREAM = 34;

/**
 * Scrolls a list, so many pixels in each frame, and holds it to its bound; with `updates` so many are heard between two frames. How many
 * frames come in a second depends on what else the machine does; what a frame costs the page's thread does not.
 */
async function isSmooth(page, what, selector, { step = 300, updates = 0 } = {}) {
  const spent = await mainThread(page);
  const before = await spent();
  await watchFrames(page);
  const [rows, way] = await page.evaluate(async ([name, pixels, count]) => {
    const { bus, store } = await import("/state/app.js");
    const sessionId = Object.keys(store.state.sessions).at(-1);
    const view = document.querySelector(name);
    let sign = -1;
    const tops = new Set();
    for (let frame = 0; frame < 180; frame++) {
      await new Promise(requestAnimationFrame);
      tops.add(Math.round(view.scrollTop / 100));
      if (view.scrollTop < pixels) sign = 1;
      view.scrollTop += sign * pixels;
      for (let one = 0; one < count; one++) {
        const at = frame * count + one;
        const update = one % 4 ? { sessionUpdate: "agent_message_chunk", content: { type: "text", text: `word **${at}** ` } } : { sessionUpdate: "tool_call", toolCallId: `stream ${at}`, title: `step ${at}`, kind: "other", status: "completed" };
        const line = JSON.stringify({ jsonrpc: "2.0", method: "session/update", params: { sessionId, update } });
        bus.heard(JSON.parse(line), line.length);
      }
    }
    return [view.querySelectorAll(".list-row").length, tops.size];
  }, [selector, step, updates]);
  const { count, rate, worst } = await frames(page);
  const perFrame = (((await spent()) - before) * 1000) / count;
  console.log(`scrolling ${what}: ${rate.toFixed(0)} frames a second, the longest after ${worst.toFixed(0)} ms, ${perFrame.toFixed(1)} ms of the page's thread for each`);
  assert.ok(count > 100 && rows > 5, `it was scrolled: ${count} frames, ${rows} rows`);
  assert.ok(way > 100, `it moves: ${way} places`);
  assert.ok(perFrame < FRAME_MAX, `${perFrame} ms a frame`);
}

test("20,000 updates at once, then 2,000 a second: the page answers, follows, scrolls, and does not grow", async () => {
  const page = await visit(browser, bus);
  const spent = await mainThread(page);
  await begin(page, "agent", "hello");
  await page.locator(".turn-line").waitFor();
  /** A turn of that many updates, 2,000 a second: processor time, and what `frames` tells. */
  const flood = async (updates, meanwhile = async () => undefined) => {
    const before = await spent();
    await watchFrames(page);
    await say(page, `/flood ${updates} 2000`);
    await page.locator(".stop").waitFor();
    await meanwhile();
    await page.locator(".stop").waitFor({ state: "detached", timeout: 60_000 });
    const seen = await frames(page);
    const cost = (await spent()) - before;
    return { ...seen, cost, perFrame: (cost * 1000) / seen.count };
  };
  const inShort = await flood(4000);
  await begin(page, "agent", "/flood 20000");
  await page.locator(".turn-line").waitFor({ timeout: 60_000 });
  assert.ok((await items(page)) >= 10_000);
  assert.ok((await nodes(page)) < NODES_MAX);
  const before = await heap(page);
  // In the middle of it a person opens the palette.
  let answered = 0;
  const inLong = await flood(8000, async () => {
    const began = Date.now();
    await page.keyboard.press("Control+k");
    await page.locator(".palette-box").waitFor();
    await page.keyboard.press("Escape");
    answered = Date.now() - began;
  });
  console.log(`2,000 updates a second for 4 s: ${inLong.cost.toFixed(1)} s of the page's thread, ${inLong.perFrame.toFixed(0)} ms a frame (${inShort.perFrame.toFixed(0)} in a short session), ${inLong.rate.toFixed(0)} frames a second, longest ${inLong.worst.toFixed(0)} ms, palette within ${answered} ms, heap ${((await heap(page)) / 1e6).toFixed(0)} MB`);
  // How long a frame takes depends on the machine; that it takes no longer in a long session does not.
  assert.ok(inLong.perFrame < 2 * inShort.perFrame + 5, `${inLong.perFrame} ms a frame, ${inShort.perFrame} ms in a short session`);
  assert.ok(inLong.perFrame < FRAME_MAX, `${inLong.perFrame} ms a frame`);
  const bottom = await page.evaluate(() => {
    const view = document.querySelector(".transcript .list-view");
    return view.scrollHeight - view.scrollTop - view.clientHeight;
  });
  assert.ok(bottom < 40, `it follows to the end, ${bottom}`);
  // Reading further up, nothing jumps while more comes.
  await page.evaluate(() => (document.querySelector(".transcript .list-view").scrollTop = 5000));
  await page.waitForTimeout(200);
  const first = () => page.evaluate(() => {
    const view = document.querySelector(".transcript .list-view").getBoundingClientRect();
    const row = [...document.querySelectorAll(".transcript .list-row")].find((one) => one.getBoundingClientRect().bottom > view.top + 5);
    return [row.textContent.slice(0, 40), Math.round(row.getBoundingClientRect().top)];
  });
  const seenFirst = await first();
  await page.evaluate(async () => {
    const { bus, store } = await import("/state/app.js");
    bus.talk.prompt(Object.keys(store.state.sessions).at(-1), "/flood 500 1000");
  });
  await page.locator(".jump", { hasText: "new" }).waitFor();
  await page.locator(".stop").waitFor({ state: "detached", timeout: 60_000 });
  assert.deepEqual(await first(), seenFirst);
  // Who writes wants to see what comes of it.
  await page.fill("sb-prompt textarea", "hello again");
  await page.press("sb-prompt textarea", "Enter");
  await page.locator(".transcript .user", { hasText: "hello again" }).waitFor();
  await isSmooth(page, "a long transcript", ".transcript .list-view");
  await isSmooth(page, "a long transcript that grows", ".transcript .list-view", { updates: STREAM });
  assert.ok((await items(page)) >= 10_000);
  assert.ok((await heap(page)) < before + HEAP_MAX && (await nodes(page)) < NODES_MAX);
  await isClean(page);
});

test("10,000 sessions are listed, filtered and scrolled", async () => {
  const client = await bus.client("many", AS_CONSOLE);
  for (let opened = 0; opened < 10_000; opened += 500) {
    await Promise.all(Array.from({ length: 500 }, () => client.open("echo")));
  }
  const page = await visit(browser, bus);
  await page.open("sessions");
  await page.getByText(/^100\d\d sessions$/).waitFor();
  assert.ok((await nodes(page)) < NODES_MAX);
  await isSmooth(page, "10,000 sessions", ".session-list .list-view");
  // One of them is at work, and the page hears it.
  await page.evaluate(async () => (await import("/state/app.js")).bus.sessions.join("s1"));
  await isSmooth(page, "10,000 sessions, one of which is heard", ".session-list .list-view", { updates: STREAM });
  const spent = await mainThread(page);
  const before = await spent();
  for (let step = 0; step < 20; step++) {
    await page.evaluate((top) => (document.querySelector(".session-list .list-view").scrollTop = top), step * 15000);
    await page.waitForTimeout(20);
  }
  await page.fill(".session-list .filter", "s9999");
  await until("the filter", async () => (await page.locator("a.session-row").count()) === 1);
  const cost = (await spent()) - before;
  console.log(`10,000 sessions: ${cost.toFixed(2)} s of the page's thread to scroll through them and find one, heap ${((await heap(page)) / 1e6).toFixed(0)} MB`);
  assert.ok(cost < 3, `the page is at work for ${cost} s`);
  assert.ok((await heap(page)) < HEAP_MAX);
  client.close();
  await isClean(page);
});
