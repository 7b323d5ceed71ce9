// Ways into the console beside a link of its own: a link on a page of another site, and another tab; and the way out.

import assert from "node:assert/strict";
import http from "node:http";
import { after, before, test } from "node:test";
import { isClean, launch, TestBus, visit } from "./harness.mjs";

let bus;
let browser;

before(async () => {
  [bus, browser] = await Promise.all([TestBus.start(), launch()]);
});

after(async () => {
  await browser?.close();
  await bus?.stop();
});

/** A chat with a link to the console, at an address that is another site for the browser. */
async function chat() {
  const server = http.createServer((_, response) => {
    response.writeHead(200, { "Content-Type": "text/html" });
    response.end(`<a id="link" href="${bus.url}/#/sessions">a question waits</a> <a id="login" href="${bus.url}/login">something else</a>`);
  });
  await new Promise((done) => server.listen(0, "127.0.0.1", done));
  return { server, url: `http://localhost:${server.address().port}/` };
}

/** What is done in the palette. */
async function goTo(page, name) {
  await page.keyboard.press("Control+k");
  await page.locator("dialog.palette input").fill(name);
  await page.locator("#palette-list li", { hasText: name }).first().waitFor();
  await page.keyboard.press("Enter");
}

test("a link on a page of another site opens the console where a tab of it is in", async () => {
  const page = await visit(browser, bus);
  const { server, url } = await chat();
  const other = await page.context().newPage();
  await other.goto(url);
  await other.click("#link");
  await other.waitForSelector(".link.is-live");
  assert.equal(other.url(), `${bus.url}/#/sessions`);
  await other.goto(url);
  const [answer] = await Promise.all([other.waitForResponse(`${bus.url}/login`), other.click("#login")]);
  assert.equal(answer.status(), 403);
  server.close();
  server.closeAllConnections();
  await isClean(page);
});

test("a new tab is in as long as another one is, and one that knows nobody needs a link", async () => {
  const page = await visit(browser, bus, { scope: "approve" });
  const second = await page.context().newPage();
  await second.goto(`${bus.url}/#/waiting`);
  await second.waitForSelector(".link.is-live");
  await second.locator(".chip", { hasText: "approve" }).waitFor();
  // It has the token of its own now.
  await page.goto("about:blank");
  await second.reload();
  await second.waitForSelector(".link.is-live");
  assert.equal(await second.evaluate(() => localStorage.getItem("stdio-bus.token")), null);
  const stranger = await browser.newContext();
  const alone = await stranger.newPage();
  await alone.goto(`${bus.url}/`);
  await alone.getByText("This page needs a link").waitFor();
  await stranger.close();
  await isClean(page);
});

test("who signs out is out in every tab with this token, and stays out until there is another link", async () => {
  const page = await visit(browser, bus);
  const known = () => JSON.parse(bus.web("tokens", "--json")).length;
  const before = known();
  const second = await page.context().newPage();
  await second.goto(`${bus.url}/`);
  await second.waitForSelector(".link.is-live");
  await goTo(page, "Sign out");
  await page.getByText("This page needs a link").waitFor();
  await second.getByText("This page may no longer come in").waitFor();
  assert.equal(known(), before - 1);
  for (const one of [page, second]) assert.equal(await one.evaluate(() => sessionStorage.getItem("stdio-bus.token")), null);
  // A tab that comes in by another link does not take the others along.
  await second.goto(bus.link());
  await second.waitForSelector(".link.is-live");
  await page.reload();
  await page.getByText("This page needs a link").waitFor();
  await page.goto(bus.link());
  await page.waitForSelector(".link.is-live");
  await isClean(page);
});
