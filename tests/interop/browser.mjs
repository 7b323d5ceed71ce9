// A page that tries to speak to a port: by fetch, form, image, frame, event stream and WebSocket, in a headless Chromium.
//
//     node browser.mjs NODE_MODULES PORT
//
// Tries everything first against a port of its own that records what arrives, then against PORT, and prints one JSON object:
// `recorded`, what the browser sent (base64, one connection each), and `outcomes`, what the page got from PORT.

import http from "node:http";
import net from "node:net";
import path from "node:path";
import { createRequire } from "node:module";

const [modules, port] = process.argv.slice(2);
const require = createRequire(path.join(modules, "index.js"));
const { default: chromium } = await import(require.resolve("@sparticuz/chromium"));
const puppeteer = require("puppeteer-core");

const LINE = '{"jsonrpc":"2.0","id":1,"method":"evil/from_a_page","params":{}}';
const PATIENCE_MS = 5000;

// Runs in the page. Every attempt ends by itself or is given up.
async function attempts(port, line, patience) {
  const url = `http://127.0.0.1:${port}/`;
  const body = `\n${line}\n`;
  const within = (promise) =>
    Promise.race([promise, new Promise((done) => setTimeout(() => done("nothing came"), patience))]).catch((error) => `failed: ${error.message ?? error}`);
  const heard = async (response) => `heard: ${response.type} ${response.status} ${await response.text()}`;
  const element = (name, source) =>
    new Promise((done) => {
      const one = document.createElement(name);
      one.onload = () => done(name === "iframe" ? "failed: a frame" : "heard: it loaded");
      one.onerror = () => done("failed: an error");
      one.src = source;
      document.body.append(one);
    });
  const form = (enctype) =>
    new Promise((done) => {
      const frame = document.createElement("iframe");
      frame.name = `frame ${enctype}`;
      document.body.append(frame);
      const one = document.createElement("form");
      Object.assign(one, { method: "post", action: url, target: frame.name, enctype });
      const field = document.createElement("textarea");
      // The equals sign between name and value becomes a part of a harmless value.
      field.name = `\n{"jsonrpc":"2.0","id":1,"method":"evil/from_a_page","params":{"x":"`;
      field.value = `"}}\n`;
      one.append(field);
      document.body.append(one);
      frame.onload = () => done("failed: a frame");
      one.submit();
    });
  const socket = new Promise((done) => {
    const one = new WebSocket(`ws://127.0.0.1:${port}/`);
    one.onopen = () => done("heard: it is open");
    one.onmessage = () => done("heard: a message");
    one.onerror = () => done("failed: an error");
  });
  const stream = new Promise((done) => {
    const one = new EventSource(url);
    one.onmessage = () => done("heard: a message");
    one.onerror = () => done("failed: an error");
  });
  const plain = { "Content-Type": "text/plain" };
  return {
    "fetch, no-cors": await within(fetch(url, { method: "POST", mode: "no-cors", body }).then(heard)),
    "fetch, cors": await within(fetch(url, { method: "POST", headers: plain, body }).then(heard)),
    "fetch, with a preflight": await within(fetch(url, { method: "PUT", headers: { "X-Y": "z" }, body }).then(heard)),
    "fetch, https": await within(fetch(url.replace("http", "https"), { method: "POST", mode: "no-cors", body }).then(heard)),
    "fetch, a query": await within(fetch(`${url}?x=${encodeURIComponent(body)}`, { mode: "no-cors" }).then(heard)),
    beacon: (navigator.sendBeacon(url, body), "failed: nobody can know"),
    "form, text/plain": await within(form("text/plain")),
    "form, multipart": await within(form("multipart/form-data")),
    image: await within(element("img", url)),
    script: await within(element("script", url)),
    frame: await within(element("iframe", url)),
    WebSocket: await within(socket),
    EventSource: await within(stream),
  };
}

const listening = (server) => new Promise((done) => server.listen(0, "127.0.0.1", () => done(server.address().port)));

const recorded = [];
const recorder = net.createServer((socket) => {
  const chunks = [];
  socket.on("data", (chunk) => {
    chunks.push(chunk);
    // As the bus does, but late enough to see a body that comes after the head.
    setTimeout(() => socket.destroy(), 100);
  });
  socket.on("error", () => {});
  socket.on("close", () => chunks.length && recorded.push(Buffer.concat(chunks).toString("base64")));
});
const site = http.createServer((_, response) => response.setHeader("Content-Type", "text/html").end("<!doctype html><body>"));
const [own, home] = [await listening(recorder), await listening(site)];
const browser = await puppeteer.launch({ args: [...chromium.args, "--no-proxy-server"], executablePath: await chromium.executablePath(), headless: "shell" });
try {
  const page = await browser.newPage();
  const visit = async (to) => {
    await page.goto(`http://127.0.0.1:${home}/`);
    return page.evaluate(attempts, to, LINE, PATIENCE_MS);
  };
  await visit(own);
  const outcomes = await visit(Number(port));
  const version = await browser.version();
  console.log(JSON.stringify({ version, recorded, outcomes }));
} finally {
  await browser.close();
  recorder.close();
  site.close();
}
