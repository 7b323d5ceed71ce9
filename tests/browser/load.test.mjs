// Much at once: the page stays usable, and what it keeps is bounded.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { AS_CONSOLE, begin, isClean, launch, say, TestBus, until, visit } from "./harness.mjs";

const NODES_MAX = 4000;
const HEAP_MAX = 120e6;

let bus;
let browser;

before(async () => {
  [bus, browser] = await Promise.all([TestBus.start(), launch("--js-flags=--expose-gc")]);
});

after(async () => {
  await browser?.close();
  await bus?.stop();
});

const nodes = (page) => page.evaluate(() => document.querySelectorAll("*").length);
const items = (page) => page.evaluate(async () => Object.values((await import("/state/app.js")).store.state.sessions).at(-1)?.next ?? 0);

async function heap(page) {
  return page.evaluate(() => {
    globalThis.gc?.();
    return performance.memory.usedJSHeapSize;
  });
}

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

/** The processor time of the page's main thread, in seconds. It does not depend on what else the machine does. */
async function mainThread(page) {
  const session = await page.context().newCDPSession(page);
  await session.send("Performance.enable", { timeDomain: "threadTicks" });
  return async () => {
    const { metrics } = await session.send("Performance.getMetrics");
    return metrics.find(({ name }) => name === "TaskDuration").value;
  };
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
