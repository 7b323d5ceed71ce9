// Web Push without a browser: the test is the browser that subscribes and the push service, and reads what comes with an
// implementation that is not ours.

import assert from "node:assert/strict";
import crypto from "node:crypto";
import fs from "node:fs";
import http from "node:http";
import path from "node:path";
import { after, before, test } from "node:test";
import { AS_CONSOLE, HERE, need, TestBus, until } from "./harness.mjs";

const ece = need("http_ece");

let plain;
let full;
let service;

/** A push service: keeps what it is sent, and answers 410 for browsers that are gone. */
class PushService {
  constructor() {
    this.got = [];
    this.gone = new Set();
    this.server = http.createServer((request, response) => {
      const body = [];
      request.on("data", (data) => body.push(data));
      request.on("end", () => {
        this.got.push({ path: request.url, method: request.method, headers: request.headers, body: Buffer.concat(body) });
        response.writeHead(this.gone.has(request.url) ? 410 : 201).end();
      });
    });
  }

  async open() {
    await new Promise((done) => this.server.listen(0, "127.0.0.1", done));
    this.url = `http://127.0.0.1:${this.server.address().port}`;
    return this;
  }

  /** The pushes to a browser. */
  to(browser) {
    return this.got.filter((one) => one.path === browser.path);
  }
}

/** A browser as a push service sees it, with keys of its own. */
class Subscriber {
  constructor(name) {
    this.path = `/${name}`;
    this.keys = crypto.createECDH("prime256v1");
    this.keys.generateKeys();
    this.auth = crypto.randomBytes(16).toString("base64url");
  }

  get subscription() {
    return { endpoint: service.url + this.path, expirationTime: null, keys: { p256dh: this.keys.getPublicKey("base64url"), auth: this.auth } };
  }

  read({ body }) {
    return JSON.parse(ece.decrypt(body, { version: "aes128gcm", privateKey: this.keys, authSecret: this.auth }).toString());
  }
}

/** A token of this scope. */
async function login(bus, scope) {
  const code = new URL(bus.link(scope)).hash.slice("#c=".length);
  const answer = await fetch(`${bus.url}/login`, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ code }) });
  return (await answer.json()).token;
}

async function door(bus, token, method, body) {
  const headers = { ...(token ? { Authorization: `Bearer ${token}` } : {}), ...(body ? { "Content-Type": "application/json" } : {}) };
  const answer = await fetch(`${bus.url}/push`, { method, headers, body: body && JSON.stringify(body) });
  const text = await answer.text();
  return { status: answer.status, ...(answer.status === 200 ? JSON.parse(text) : { text }) };
}

/** The file of the subscriptions, beside that of the tokens. */
function kept(bus) {
  const folder = path.join(bus.folder, "stdio-bus");
  const file = path.join(folder, fs.readdirSync(folder).find((name) => name.endsWith(".push")));
  return { mode: fs.statSync(file).mode & 0o777, ...JSON.parse(fs.readFileSync(file, "utf8")) };
}

/** Who signed it, for whom, and until when. */
function checkSigned({ headers }, key) {
  const [, token, shown] = /^vapid t=([^,]+), k=(\S+)$/.exec(headers.authorization);
  assert.equal(shown, key);
  const point = Buffer.from(key, "base64url");
  const jwk = { kty: "EC", crv: "P-256", x: point.subarray(1, 33).toString("base64url"), y: point.subarray(33).toString("base64url") };
  const [head, claims, signature] = token.split(".");
  const isSigned = crypto.verify("sha256", Buffer.from(`${head}.${claims}`), { key: crypto.createPublicKey({ key: jwk, format: "jwk" }), dsaEncoding: "ieee-p1363" }, Buffer.from(signature, "base64url"));
  assert.ok(isSigned);
  assert.deepEqual(JSON.parse(Buffer.from(head, "base64url")), { typ: "JWT", alg: "ES256" });
  const { aud, exp, sub } = JSON.parse(Buffer.from(claims, "base64url"));
  const left = exp - Date.now() / 1000;
  assert.deepEqual([aud, left > 0 && left <= 86_400, /^(https:|mailto:)/.test(sub)], [service.url, true, true]);
}

before(async () => {
  service = await new PushService().open();
  const secret = { id: "secret", command: process.execPath, args: [path.join(HERE, "agent.mjs")], share: false, store: "secret" };
  const agent = { id: "agent", command: process.execPath, args: [path.join(HERE, "agent.mjs")] };
  [plain, full] = await Promise.all([TestBus.start(), TestBus.start({ web: { push: "full" }, pools: [agent, secret], default_pool: "agent" })]);
});

after(async () => {
  await plain?.stop();
  await full?.stop();
  service?.server.closeAllConnections();
  service?.server.close();
});

test("a subscription is of a token, and only an admin's may be near", async () => {
  assert.equal((await door(plain, null, "GET")).status, 401);
  const [admin, observer] = [await login(plain, "admin"), await login(plain, "observe")];
  const own = await door(plain, admin, "GET");
  assert.deepEqual([own.subscribed, Buffer.from(own.key, "base64url").length], [false, 65]);
  const browser = new Subscriber("first");
  assert.equal((await door(plain, observer, "POST", browser.subscription)).status, 400, "it is on this machine");
  assert.equal((await door(plain, observer, "POST", { ...browser.subscription, endpoint: "https://push.example/a" })).status, 204);
  assert.equal((await door(plain, admin, "POST", { ...browser.subscription, keys: {} })).status, 400);
  assert.equal((await door(plain, admin, "POST", { ...browser.subscription, more: "x".repeat(5000) })).status, 413);
  assert.equal((await door(plain, admin, "PUT")).status, 405);
  assert.equal((await door(plain, admin, "POST", browser.subscription)).status, 204);
  assert.equal((await door(plain, admin, "GET")).subscribed, true);
  assert.deepEqual([kept(plain).mode, kept(plain).subscriptions.length], [0o600, 2]);
  // It goes with its token, within a second or so, although nobody asks.
  const { id } = JSON.parse(plain.web("tokens", "--json")).find((one) => one.scope === "observe");
  plain.web("revoke", id);
  await until("the end of the subscription", () => kept(plain).subscriptions.length === 1);
  assert.equal((await door(plain, admin, "DELETE")).status, 204);
  assert.deepEqual([(await door(plain, admin, "GET")).subscribed, kept(plain).subscriptions], [false, []]);
  assert.equal((await door(plain, admin, "GET")).key, own.key);
});

test("a question that waits is pushed once, encrypted and signed, without what was said", async () => {
  const [browser, left] = [new Subscriber("phone"), new Subscriber("left")];
  const token = await login(plain);
  service.gone.add(left.path);
  await door(plain, token, "POST", browser.subscription);
  await door(plain, token, "POST", left.subscription);
  const { key } = await door(plain, token, "GET");
  const editor = await plain.client("editor", AS_CONSOLE);
  await until("the one who watches", async () => (await editor.ask("_bus/status")).tracers === 1);
  const [quick, slow] = [await editor.open("agent"), await editor.open("agent", "/home/me/src")];
  const labels = (await editor.ask("_bus/sessions")).sessions.slice(-2).map((one) => one.session);
  // One is answered at once, as an editor or a rule does; the other waits.
  const turn = editor.prompt(quick, "/ask");
  const asked = await until("the question", () => editor.heard.find((one) => one.method === "session/request_permission"));
  const began = Date.now();
  const waiting = editor.prompt(slow, "/edit");
  editor.send({ id: asked.id, result: { outcome: { outcome: "selected", optionId: "allow_once" } } });
  await turn;
  const [push] = await until("the push", () => service.to(browser).length && service.to(browser));
  assert.ok(Date.now() - began >= 4900, "it is held for five seconds");
  assert.deepEqual(browser.read(push), { event: "asked", label: labels[1], pool: "agent", link: `/#/sessions/${labels[1]}` });
  const { ttl, urgency, topic, "content-encoding": encoding } = push.headers;
  assert.deepEqual([push.method, Number(ttl) > 0, urgency, topic, encoding], ["POST", true, "high", labels[1], "aes128gcm"]);
  checkSigned(push, key);
  await until("the browser that is gone is forgotten", () => kept(plain).subscriptions.length === 1);
  // Who joins is asked the same question; that is no other one.
  const guest = await plain.client("guest", AS_CONSOLE);
  await guest.ask("_bus/attach", { session: labels[1], role: "control" });
  const again = await until("the question of the guest", () => guest.heard.find((one) => one.method === "session/request_permission"));
  guest.send({ id: again.id, result: { outcome: { outcome: "selected", optionId: "reject_once" } } });
  await waiting;
  // The next one of this session waits for the end of the minute; one of another session does not.
  editor.prompt(slow, "/ask").catch(() => undefined);
  editor.prompt(quick, "/ask").catch(() => undefined);
  await until("the push of the other session", () => service.to(browser).length > 1);
  assert.deepEqual(service.to(browser).map((one) => browser.read(one).label), [labels[1], labels[0]]);
  editor.close();
  guest.close();
});

test("who has subscribed is told after a restart of the bus as well, and by the same key", async () => {
  const browser = new Subscriber("tablet");
  const token = await login(plain);
  await door(plain, token, "POST", browser.subscription);
  const { key } = await door(plain, token, "GET");
  await plain.kill();
  await plain.run();
  assert.deepEqual([(await door(plain, token, "GET")).key, (await door(plain, token, "GET")).subscribed], [key, true]);
  const editor = await plain.client("editor", AS_CONSOLE);
  await until("the one who watches", async () => (await editor.ask("_bus/status")).tracers === 1);
  editor.prompt(await editor.open("agent"), "/ask").catch(() => undefined);
  const [push] = await until("the push", () => service.to(browser).length && service.to(browser));
  assert.equal(browser.read(push).event, "asked");
  checkSigned(push, key);
  await door(plain, token, "DELETE");
  editor.close();
});

test("nobody is watched for while nobody has subscribed", async () => {
  for (const { id } of JSON.parse(plain.web("tokens", "--json"))) plain.web("revoke", id);
  const editor = await plain.client("editor", AS_CONSOLE);
  await until("the end of the watch", async () => (await editor.ask("_bus/status")).tracers === 0);
  editor.close();
});

test("with push full the titles come too, but never those of a pool that does not share", async () => {
  const browser = new Subscriber("full");
  const token = await login(full);
  await door(full, token, "POST", browser.subscription);
  const editor = await full.client("editor", AS_CONSOLE);
  await until("the one who watches", async () => (await editor.ask("_bus/status")).tracers === 1);
  for (const pool of ["agent", "secret"]) editor.prompt(await editor.open(pool), "/ask").catch(() => undefined);
  const pushes = await until("both pushes", () => service.to(browser).length === 2 && service.to(browser).map((one) => browser.read(one)));
  const of = (pool) => pushes.find((one) => one.pool === pool);
  assert.ok(of("agent").question, JSON.stringify(of("agent")));
  assert.deepEqual([of("secret").title ?? null, of("secret").question ?? null], [null, null]);
  editor.close();
});
