// A bus with its web door, a browser, and clients over TCP, for the tests of the console.

import assert from "node:assert/strict";
import { spawn, spawnSync } from "node:child_process";
import fs from "node:fs";
import net from "node:net";
import { createRequire } from "node:module";
import os from "node:os";
import path from "node:path";
import readline from "node:readline";
import { fileURLToPath } from "node:url";

export const HERE = path.dirname(fileURLToPath(import.meta.url));
export const REPO = path.join(HERE, "../..");
const require = createRequire(path.join(process.env.STDIO_BUS_BROWSER_CACHE ?? path.join(REPO, "target/browser"), "index.js"));
const { chromium } = require("playwright-core");
/** A package of the cache. @param {string} name */
export const need = (name) => require(name);
export const AXE = fs.readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
const BINARY = process.env.BUS ?? path.join(REPO, "target/release/stdio-bus");
const ARGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"];

/** Waits until it is so. Everything that a test waits for has this one bound. */
export async function until(what, check, ms = 15_000) {
  const end = Date.now() + ms;
  for (;;) {
    const found = await check();
    if (found) return found;
    assert.ok(Date.now() < end, `${what} did not come`);
    await new Promise((done) => setTimeout(done, 25));
  }
}

/** A port that nobody has at the moment; the door must have the same one after a restart. */
export function freePort() {
  return new Promise((done) => {
    const server = net.createServer().listen(0, "127.0.0.1", () => {
      const { port } = server.address();
      server.close(() => done(port));
    });
  });
}

export class TestBus {
  /** Starts a bus with an echo pool and the scripted agent as `agent`, and as `forgetful`, which keeps nothing. */
  static async start({ web, ...more } = {}) {
    const bus = new TestBus();
    bus.folder = fs.mkdtempSync(path.join(os.tmpdir(), "console-"));
    bus.port = await freePort();
    bus.url = `http://127.0.0.1:${bus.port}`;
    fs.mkdirSync(path.join(bus.folder, "state"));
    const agent = [path.join(HERE, "agent.mjs"), path.join(bus.folder, "state")];
    const config = {
      listen: ["tcp://127.0.0.1:0"],
      ...(process.env.ASSETS ? {} : { web: { listen: bus.url, ...web } }),
      default_pool: "echo",
      limits: { drain_timeout_sec: 1 },
      pools: [
        { id: "echo", command: "stdio-bus", args: ["agent", "echo"], max_sessions: 20000 },
        { id: "private", command: "stdio-bus", args: ["agent", "echo"], share: false, store: "private" },
        { id: "agent", command: process.execPath, args: agent, max_sessions: 500 },
        { id: "forgetful", command: process.execPath, args: agent.slice(0, 1) },
      ],
      ...more,
    };
    fs.writeFileSync(path.join(bus.folder, "bus.json"), JSON.stringify(config));
    await bus.run();
    return bus;
  }

  get env() {
    const homes = Object.fromEntries(["HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR"].map((name) => [name, this.folder]));
    return { ...process.env, ...homes, RUST_LOG: "info" };
  }

  async run() {
    this.log = "";
    this.process = spawn(BINARY, ["serve", "--config", path.join(this.folder, "bus.json")], { env: this.env, stdio: ["ignore", "pipe", "pipe"] });
    const listening = [];
    readline.createInterface({ input: this.process.stdout }).on("line", (line) => listening.push(JSON.parse(line).listening));
    this.process.stderr.on("data", (data) => (this.log += data));
    this.exited = new Promise((done) => this.process.on("exit", done));
    const tcp = await until("the bus", () => listening.find((one) => one?.startsWith("tcp:")));
    this.tcp = Number(tcp.split(":").at(-1));
    if (process.env.ASSETS) await this.openDoor(listening);
    await until("the door", () => listening.find((one) => one?.startsWith("http:")));
  }

  /** A door of its own that serves the console from a folder, for work on the console without a build. */
  async openDoor(listening) {
    const args = ["web", "--listen", this.url, "--assets", process.env.ASSETS, "--tcp", `127.0.0.1:${this.tcp}`, "--config", path.join(this.folder, "bus.json")];
    this.door = spawn(BINARY, args, { env: this.env, stdio: ["ignore", "pipe", "pipe"] });
    readline.createInterface({ input: this.door.stdout }).on("line", (line) => listening.push(JSON.parse(line).listening));
    this.door.stderr.on("data", (data) => (this.log += data));
  }

  /** The link that `serve` has printed. */
  printed() {
    return until("the link", () => /http:\/\/\S+#c=\S+/.exec(this.log)?.[0]);
  }

  /** What `stdio-bus web ..` prints. */
  web(...args) {
    const done = spawnSync(BINARY, ["web", ...args, "--config", path.join(this.folder, "bus.json")], { env: this.env, encoding: "utf8" });
    assert.equal(done.status, 0, done.stderr);
    return done.stdout.trim();
  }

  /** A fresh link. */
  link(scope) {
    return this.web("url", ...(scope ? ["--scope", scope] : []));
  }

  async kill(signal = "SIGKILL") {
    this.door?.kill(signal);
    this.process.kill(signal);
    await this.exited;
  }

  async stop() {
    if (this.process.exitCode === null) await this.kill("SIGTERM");
    fs.rmSync(this.folder, { recursive: true, force: true });
  }

  /** A client over TCP. */
  async client(name, capabilities) {
    const client = new Client(this.tcp);
    await client.ask("_bus/hello", { client: name });
    if (capabilities) await client.ask("initialize", { protocolVersion: 1, clientCapabilities: capabilities });
    return client;
  }
}

/** What the console tells of itself; who wants to be taken over by it says the same. */
export const AS_CONSOLE = { elicitation: { form: {} }, session: { notices: {}, compaction: {}, configOptions: { boolean: {} } }, plan: {}, subagents: {} };

export class Client {
  constructor(port) {
    this.next = 1;
    this.waiting = new Map();
    this.heard = [];
    this.socket = net.connect(port, "127.0.0.1");
    this.socket.on("error", () => undefined);
    readline.createInterface({ input: this.socket }).on("line", (line) => {
      const message = JSON.parse(line);
      if (message.method === undefined) this.waiting.get(message.id)?.(message);
      else this.heard.push(message);
    });
  }

  async ask(method, params = {}) {
    const id = this.next++;
    const answer = new Promise((done) => this.waiting.set(id, done));
    this.send({ id, method, params });
    const { result, error } = await answer;
    if (error) throw Object.assign(new Error(error.message), error);
    return result;
  }

  send(message) {
    this.socket.write(`${JSON.stringify({ jsonrpc: "2.0", ...message })}\n`);
  }

  open(pool, cwd = "/tmp") {
    return this.ask("session/new", { cwd, mcpServers: [], _meta: { "bus/pool": pool } }).then((result) => result.sessionId);
  }

  prompt(sessionId, text) {
    return this.ask("session/prompt", { sessionId, prompt: [{ type: "text", text }] });
  }

  /** All that the agent has said to this client. */
  get said() {
    return this.heard.filter((one) => one.method === "session/update").map((one) => one.params.update.content?.text ?? "").join("");
  }

  close() {
    this.socket.destroy();
  }
}

export const launch = (...more) => chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: [...ARGS, ...more] });

/** A page that has come in, and on which nothing may go wrong unnoticed. Somebody is at it, so that it is told all news soon, unless it is `alone`. */
export async function visit(browser, bus, { scope, link, alone, ...options } = {}) {
  const context = await browser.newContext({ viewport: { width: 1440, height: 900 }, ...options });
  context.setDefaultTimeout(10_000);
  // $LATE draws every frame so many milliseconds later. A test that looks before the page has drawn passes on some machines only; so it fails.
  if (process.env.LATE) {
    await context.addInitScript((ms) => {
      window.requestAnimationFrame = (then) => window.setTimeout(() => then(performance.now()), ms);
      window.cancelAnimationFrame = (timer) => clearTimeout(timer);
    }, Number(process.env.LATE));
  }
  if (!alone) await context.addInitScript(() => setInterval(() => window.dispatchEvent(new Event("focus")), 500));
  const page = await context.newPage();
  page.faults = [];
  page.strangers = [];
  page.on("pageerror", (error) => page.faults.push(String(error)));
  page.on("console", (message) => {
    // A socket that is refused while the bus is away is no fault of the page.
    if (message.type() === "error" && !/WebSocket|ERR_CONNECTION|Failed to load resource/.test(message.text())) page.faults.push(message.text());
  });
  page.on("dialog", (dialog) => page.faults.push(`dialog ${dialog.message()}`));
  page.on("request", (request) => {
    if (!request.url().startsWith(bus.url) && !request.url().startsWith("blob:") && !request.url().startsWith("data:")) page.strangers.push(request.url());
  });
  await page.goto(link ?? bus.link(scope));
  await page.waitForSelector(".link.is-live");
  page.open = (place) => page.evaluate((hash) => (location.hash = hash), `#/${place}`);
  return page;
}

/** Nothing went wrong on the page, and it spoke to nobody else. */
export async function isClean(page) {
  assert.deepEqual([page.faults, page.strangers], [[], []]);
  await page.context().close();
}

/** Begins a session by the form. */
export async function begin(page, pool, prompt) {
  await page.open("new");
  await page.check(`input[value="${pool}"]`);
  await page.fill('input[name="cwd"]', "/tmp");
  await page.fill('textarea[name="prompt"]', prompt);
  await page.click('button[type="submit"]');
  await page.waitForSelector("sb-prompt");
  return page.evaluate(() => location.hash.split("/").at(-1));
}

/** Writes into the box of the session that is open. */
export async function say(page, text) {
  await page.fill("sb-prompt textarea", text);
  await page.press("sb-prompt textarea", "Enter");
}

export const nodes = (page) => page.evaluate(() => document.querySelectorAll("*").length);

/** What is kept in memory, without what is only waiting to be collected; the browser must have been launched with `EXPOSE_GC`. */
export async function heap(page) {
  return page.evaluate(() => {
    globalThis.gc?.();
    return performance.memory.usedJSHeapSize;
  });
}

export const EXPOSE_GC = "--js-flags=--expose-gc";

/** The processor time of the page's main thread, in seconds. It does not depend on what else the machine does. */
export async function mainThread(page) {
  const session = await page.context().newCDPSession(page);
  await session.send("Performance.enable", { timeDomain: "threadTicks" });
  return async () => {
    const { metrics } = await session.send("Performance.getMetrics");
    return metrics.find(({ name }) => name === "TaskDuration").value;
  };
}
