// Telling people who are away: notifications, the service worker, what can be installed. Leave is asked for by a button alone.

import assert from "node:assert/strict";
import http from "node:http";
import { after, before, test } from "node:test";
import { AS_CONSOLE, AXE, begin, isClean as isCleanPage, launch, TestBus, until, visit } from "./harness.mjs";

let bus;
let browser;

before(async () => {
  [bus, browser] = await Promise.all([TestBus.start(), launch()]);
});

after(async () => {
  await browser?.close();
  await bus?.stop();
});

/** What the person has told the browser about notifications of this page. */
async function allow(page, setting) {
  const [whole, own] = await Promise.all([browser.newBrowserCDPSession(), page.context().newCDPSession(page)]);
  const { targetInfo } = await own.send("Target.getTargetInfo");
  await whole.send("Browser.setPermission", { permission: { name: "notifications" }, setting, origin: bus.url, browserContextId: targetInfo.browserContextId });
}

/** Somebody looks at something else, or comes back. */
const look = (page, isAway) => page.evaluate((away) => Object.defineProperty(document, "hidden", { configurable: true, get: () => away }), isAway);

const shown = (page) => page.evaluate(async () => (await (await navigator.serviceWorker.ready).getNotifications()).map(({ title, body, tag, data }) => ({ title, body, tag, data })));

/** A page with notifications on. */
async function told(options) {
  const page = await visit(browser, bus, { permissions: ["notifications"], ...options });
  await page.open("waiting");
  await page.getByRole("button", { name: "Tell me while I am away" }).click();
  await page.getByText("Notifications are on").waitFor();
  return page;
}

/** Chromium has no Web Push in a window that keeps nothing, and complains to the console instead of to the page. */
async function isClean(page) {
  page.faults = page.faults.filter((one) => !one.includes("incognito"));
  await isCleanPage(page);
}

async function axe(page) {
  await page.evaluate(AXE);
  const { violations } = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
  return violations.map((one) => `${one.id}: ${one.nodes[0].html}`);
}

test("leave is asked for by a press of the button, and never by itself", async () => {
  const context = { permissions: ["notifications"] };
  const page = await visit(browser, bus, context);
  await allow(page, "prompt");
  const count = () => {
    window.asked = 0;
    const { requestPermission } = Notification;
    Notification.requestPermission = () => ((window.asked += 1), requestPermission.call(Notification));
  };
  await page.context().addInitScript(count);
  await page.reload();
  await page.waitForSelector(".link.is-live");
  await begin(page, "agent", "/ask");
  await page.open("waiting");
  await page.locator(".question").waitFor();
  assert.deepEqual(await page.evaluate(async () => [window.asked, (await navigator.serviceWorker.getRegistrations()).length]), [0, 0]);
  await allow(page, "granted");
  await page.getByRole("button", { name: "Tell me while I am away" }).click();
  await page.getByText("Notifications are on").waitFor();
  assert.equal(await page.evaluate(() => window.asked), 1);
  // It is known after a reload without being asked again, and can be taken back.
  await page.reload();
  await page.getByText("Notifications are on").waitFor();
  assert.equal(await page.evaluate(() => window.asked), 0);
  await page.getByRole("button", { name: "Turn off" }).click();
  await page.getByText("Notifications are off").waitFor();
  await until("the end of the worker", () => page.evaluate(async () => (await navigator.serviceWorker.getRegistrations()).length === 0));
  await isClean(page);
});

test("a browser that blocks notifications, or has none, is said", async () => {
  const page = await visit(browser, bus);
  await allow(page, "denied");
  await page.reload();
  await page.open("waiting");
  await page.getByText("Notifications are blocked by the browser").waitFor();
  await allow(page, "prompt");
  await page.getByText("Notifications are off").waitFor();
  await allow(page, "denied");
  await page.getByText("Notifications are blocked by the browser").waitFor();
  await isClean(page);
  const none = await visit(browser, bus);
  await none.context().addInitScript(() => delete window.Notification);
  await none.reload();
  await none.open("waiting");
  await none.getByText("This browser cannot tell you while you are away").waitFor();
  await isClean(none);
});

test("who is away is told of a question once, as plain text, and a click opens its session", async () => {
  const page = await told();
  const editor = await bus.client("editor", AS_CONSOLE);
  const session = await editor.open("agent");
  const { label } = await editor.ask("_bus/attach", { session, history: "none" });
  // Nothing is told to somebody who looks.
  const first = editor.prompt(session, "/ask");
  await page.locator(".question").first().waitFor();
  assert.deepEqual((await shown(page)).filter((one) => one.data.session === label), []);
  const answer = async (from) => {
    const asked = () => editor.heard.slice(from).find((one) => one.method === "session/request_permission");
    const { id } = await until("the question", asked);
    editor.send({ id, result: { outcome: { outcome: "selected", optionId: "reject_once" } } });
  };
  await answer(0);
  await first;
  await look(page, true);
  const from = editor.heard.length;
  const second = editor.prompt(session, "/ask");
  const [one] = await until("the notification", async () => {
    const own = (await shown(page)).filter(({ data }) => data.session === label);
    return own.length && own;
  });
  assert.deepEqual([one.title, one.data.link], ["agent waits for you", `/#/sessions/${label}`]);
  assert.match(one.body, /^git push origin main\n/);
  const [worker] = page.context().serviceWorkers();
  await worker.evaluate(async (tag) => {
    const [notification] = await self.registration.getNotifications({ tag });
    self.dispatchEvent(new NotificationEvent("notificationclick", { notification }));
  }, one.tag);
  await page.waitForURL(new RegExp(`#/sessions/${label}$`));
  await answer(from);
  await second;
  // The next one goes when somebody else answers.
  const later = editor.heard.length;
  const third = editor.prompt(session, "/ask");
  await until("the next notification", async () => (await shown(page)).some(({ data }) => data.session === label));
  await answer(later);
  await third;
  await until("it is closed", async () => !(await shown(page)).some(({ data }) => data.session === label));
  editor.close();
  await isClean(page);
});

test("what is pushed is shown, and what cannot be read is shown as little as it must", async () => {
  const page = await told();
  const cdp = await page.context().newCDPSession(page);
  const registrations = [];
  cdp.on("ServiceWorker.workerRegistrationUpdated", (event) => registrations.push(...event.registrations));
  await cdp.send("ServiceWorker.enable");
  await until("the registration", () => registrations.length);
  const { registrationId } = registrations.find((one) => one.scopeURL.startsWith(bus.url));
  const push = (data) => cdp.send("ServiceWorker.deliverPushMessage", { origin: bus.url, registrationId, data });
  // This page knows better and would close it at once.
  await page.evaluate(async () => ((await import("/state/app.js")).bus.notices.isClosing = true));
  const [worker] = page.context().serviceWorkers();
  await worker.evaluate(() => (self.clients.matchAll = async () => self.pages ?? []));
  await push(JSON.stringify({ event: "asked", label: "s99", pool: "claude", link: "/#/sessions/s99", title: "<b>bold</b>", question: "rm -rf /" }));
  await push("not JSON");
  await push(JSON.stringify({ label: 7, pool: ["x"], link: "https://evil.example/" }));
  const all = await until("both", async () => (await shown(page)).length >= 2 && shown(page));
  const one = all.find((notice) => notice.data.session === "s99");
  assert.deepEqual([one.title, one.body, one.data.link], ["claude waits for you", "rm -rf /\n<b>bold</b>", "/#/sessions/s99"]);
  const other = all.find((notice) => notice.data.session === "");
  assert.deepEqual([other.title, other.data.link], ["An agent waits for you", "/#/waiting"]);
  // Who looks at a page is told there.
  await worker.evaluate(() => (self.pages = [{ focused: true, visibilityState: "visible" }]));
  await push(JSON.stringify({ event: "asked", label: "s100", pool: "claude", link: "/#/sessions/s100" }));
  await worker.evaluate(() => (self.pages = []));
  await push(JSON.stringify({ event: "asked", label: "s101", pool: "claude", link: "/#/sessions/s101" }));
  const sessions = async () => (await shown(page)).map((notice) => notice.data.session);
  await until("the next push", async () => (await sessions()).includes("s101"));
  assert.ok(!(await sessions()).includes("s100"));
  await isClean(page);
});

test("the door pushes to a browser that has subscribed, which stays signed in until that is turned off", async () => {
  const pushed = [];
  const service = http.createServer((request, response) => (pushed.push(request.headers), request.resume(), response.writeHead(201).end())).listen(0, "127.0.0.1");
  await until("the push service", () => service.listening);
  const page = await visit(browser, bus, { permissions: ["notifications"] });
  // This browser may not reach the push service of its maker, so the test is one.
  await page.context().addInitScript((endpoint) => {
    const keys = { p256dh: "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4", auth: "BTBZMqHH6r4Tts7J_aSIgg" };
    const bytes = (text) => Uint8Array.from(atob(text.replaceAll("-", "+").replaceAll("_", "/")), (one) => one.charCodeAt(0)).buffer;
    const made = (key) => key && { options: { applicationServerKey: bytes(key) }, toJSON: () => ({ endpoint, keys }), unsubscribe: async () => (localStorage.removeItem("test.push"), true) };
    PushManager.prototype.subscribe = async ({ applicationServerKey }) => (localStorage.setItem("test.push", applicationServerKey), made(applicationServerKey));
    PushManager.prototype.getSubscription = async () => made(localStorage.getItem("test.push"));
  }, `http://127.0.0.1:${service.address().port}/page`);
  await page.reload();
  await page.open("waiting");
  await page.getByRole("button", { name: "Tell me while I am away" }).click();
  await page.getByText("also while no page is open").waitFor();
  const editor = await bus.client("editor", AS_CONSOLE);
  await until("the one who watches", async () => (await editor.ask("_bus/status")).tracers === 1);
  editor.prompt(await editor.open("agent"), "/ask").catch(() => undefined);
  await until("the push", () => pushed.length === 1);
  assert.match(pushed[0].authorization, /^vapid t=/);
  // A notification that is clicked when no page is open opens another one.
  const other = await page.context().newPage();
  await other.goto(`${bus.url}/#/waiting`);
  await other.getByText("also while no page is open").waitFor();
  await other.getByRole("button", { name: "Turn off" }).click();
  await other.getByText("Notifications are off").waitFor();
  await until("nobody is pushed to", async () => (await editor.ask("_bus/status")).tracers === 0);
  assert.deepEqual(await other.evaluate(() => [localStorage.getItem("stdio-bus.token"), localStorage.getItem("test.push")]), [null, null]);
  editor.close();
  service.close();
  service.closeAllConnections();
  await isClean(page);
});

test("the page can be installed, and its worker keeps nothing", async () => {
  const page = await told();
  const cdp = await page.context().newCDPSession(page);
  const { errors, data } = await cdp.send("Page.getAppManifest");
  assert.deepEqual(errors, []);
  const manifest = JSON.parse(data);
  assert.deepEqual([manifest.display, manifest.start_url], ["standalone", "/"]);
  for (const { src, sizes, type } of manifest.icons) {
    const answer = await fetch(bus.url + src);
    assert.deepEqual([answer.status, answer.headers.get("content-type")], [200, type], src);
    const size = await page.evaluate((url) => new Promise((done) => Object.assign(new Image(), { src: url, onload: ({ target }) => done(`${target.naturalWidth}x${target.naturalHeight}`) })), src);
    if (sizes !== "any") assert.equal(size, sizes);
  }
  const worker = await (await fetch(`${bus.url}/sw.js`)).text();
  assert.doesNotMatch(worker, /caches|indexedDB|addEventListener\("fetch|importScripts|fetch\(/);
  assert.deepEqual(await page.evaluate(() => caches.keys()), []);
  const policy = (await fetch(`${bus.url}/`)).headers.get("content-security-policy");
  assert.match(policy, /worker-src 'self';/);
  assert.match(policy, /manifest-src 'self';/);
  await isClean(page);
});

test("a page on a Home Screen comes in by a link that is pasted", async () => {
  const context = await browser.newContext();
  const page = await context.newPage();
  await page.goto(`${bus.url}/`);
  await page.getByRole("textbox", { name: "link" }).fill(bus.link());
  await page.getByRole("button", { name: "Come in" }).click();
  await page.waitForSelector(".link.is-live");
  assert.ok(!page.url().includes("c="), page.url());
  await context.close();
});

for (const width of [1440, 390]) {
  test(`${width} wide: the new controls are in order, in light and dark`, async () => {
    const found = [];
    for (const colorScheme of ["light", "dark"]) {
      const options = { colorScheme, viewport: { width, height: 844 } };
      const off = await visit(browser, bus, { ...options, permissions: ["notifications"] });
      await off.open("waiting");
      await off.getByText("Notifications are off").waitFor();
      found.push(...(await axe(off)));
      await isClean(off);
      const on = await told(options);
      found.push(...(await axe(on)));
      const wide = await on.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
      if (wide > 0) found.push(`${wide} px too wide`);
      await isClean(on);
      const context = await browser.newContext(options);
      const out = await context.newPage();
      await out.goto(`${bus.url}/`);
      await out.getByRole("button", { name: "Come in" }).waitFor();
      found.push(...(await axe(out)));
      await context.close();
    }
    assert.deepEqual(found, []);
  });
}
