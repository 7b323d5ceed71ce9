// The connection to the bus: keeps it, asks what is going on, and turns what is heard into actions of the store.

import { Fault, Peer } from "./peer.js";
import { isRefused, logout, may } from "./login.js";
import { Notices } from "./notices.js";
import { OwnSessions } from "./own.js";
import { OWN, Pace, waitOf } from "./pace.js";
import { Past } from "./past.js";
import { Sessions } from "./sessions.js";
import { Talk } from "./talk.js";
import { nextFrame } from "../state/store.js";

const RETRY_MS = 5000;
/** The page looks this often whether it still hears something. */
const LOOK_MS = 1000;
/** After a silence of this length it asks, which costs the bus next to nothing; a page that hears something never does. */
const QUIET_MS = 1500;
/** Without an answer for this long, nobody is answering. */
const SILENT_MS = 3000;
/** And after this long another connection is tried. */
const DEAD_MS = 30_000;
const CONNECT_MS = 10_000;
/** What this page shows, and agents send only to those who say so. */
export const CAPABILITIES = { elicitation: { form: {} }, session: { notices: {}, compaction: {}, configOptions: { boolean: {} } }, plan: {}, subagents: {} };
/** What agents tell of their account, and of no session. */
const ACCOUNT = new Set(["auth/status_update", "_auth/status_update", "quota/update"]);

export class Bus {
  /** @param {import("../state/store.js").Store} store */
  constructor(store) {
    this.store = store;
    this.token = "";
    /** @type {Peer | null} */ this.peer = null;
    this.attempt = 0;
    /** The handshakes of this connection, by pool. @type {Map<string, Promise<any>>} */ this.handshakes = new Map();
    this.sessions = new Sessions(this);
    this.own = new OwnSessions(this);
    this.talk = new Talk(this);
    this.past = new Past(this);
    this.notices = new Notices(this);
    /** Updates that were heard since the last frame. @type {{session: string, updates: {update: any, at: number, size: number}[]}[]} */
    this.heap = [];
    this.isFlushDue = false;
    /** @type {Peer | null} */ this.tracer = null;
    /** @type {any[]} */ this.traced = [];
    this.pace = new Pace(() => this.poll());
    /** Since when an answer of the bus itself is waited for. */
    this.beating = 0;
    this.began = 0;
  }

  /** Whether there is somebody who takes what is said. */
  get isAnswering() {
    return this.state.link.status === "live" && !!this.peer?.isOpen;
  }

  get state() {
    return this.store.state;
  }

  /** @param {any} action */
  dispatch(action) {
    this.store.dispatch(action);
  }

  /** @param {string} what */
  may(what) {
    return may(this.state.link.scope, what);
  }

  /** @param {string} token @param {string} scope */
  start(token, scope) {
    this.token = token;
    const me = `console-${Math.random().toString(36).slice(2, 6)}`;
    this.dispatch({ type: "link", scope, me, status: "connecting", since: Date.now() });
    this.notices.begin();
    this.connect();
    setInterval(() => this.look(), LOOK_MS);
    this.pace.watch();
  }

  connect() {
    clearTimeout(this.retry);
    this.beating = 0;
    this.began = Date.now();
    this.peer = new Peer(this.token, {
      opened: () => this.opened(),
      heard: (message, size) => this.heard(message, size),
      closed: (wasOpen) => this.closed(wasOpen),
    });
  }

  /**
   * A word of the bus itself is asked for. It reads what it is sent in the order in which it was sent, so its answer also tells that
   * it has all that went before.
   */
  beat() {
    const { peer } = this;
    if (!peer?.isOpen) return;
    this.beating ||= Date.now();
    const call = peer.ask("_bus/hello", { client: this.state.link.me, events: true });
    call.then(() => this.talk.readUpTo(call.rpc)).catch(() => undefined);
  }

  /** Whether anybody still answers: a door that hangs, or a network that is gone, closes no connection. */
  look() {
    const { peer, state } = this;
    const now = Date.now();
    if (!peer || state.link.status === "signed-out") return;
    const isConnecting = peer.socket.readyState === WebSocket.CONNECTING;
    if (isConnecting && now - this.began > CONNECT_MS) return peer.close();
    if (!peer.isOpen) return;
    if (this.beating && now - this.beating > DEAD_MS) return peer.close();
    if (this.beating && now - this.beating > SILENT_MS && state.link.status === "live") this.dispatch({ type: "link", status: "silent", since: now, lastWord: peer.heardAt });
    else if (!this.beating && now - peer.heardAt > QUIET_MS) this.beat();
  }

  /** Something was heard, so somebody is there. */
  isHeard() {
    this.beating = 0;
    if (this.state.link.status !== "silent") return;
    this.dispatch({ type: "link", status: "live", since: Date.now() });
    this.talk.sendAll();
  }

  async opened() {
    try {
      const hello = await this.ask("_bus/hello", { client: this.state.link.me, events: true });
      this.attempt = 0;
      this.handshakes.clear();
      this.dispatch({ type: "link", status: "live", since: Date.now(), why: "", version: hello.version, pools: hello.pools ?? [] });
      await this.poll();
      await this.own.rejoin();
      this.talk.sendAll();
      if (this.state.wireOn) this.trace(true);
    } catch (fault) {
      this.failed(fault);
    }
  }

  /** @param {boolean} wasOpen */
  async closed(wasOpen) {
    this.pace.stop();
    this.flush();
    this.sessions.here.clear();
    this.talk.lost();
    if (wasOpen) {
      this.dispatch({ type: "lost" });
      this.dispatch({ type: "link", status: "lost", since: Date.now(), lastWord: this.peer?.heardAt ?? 0 });
    } else if (await isRefused(this.token)) {
      logout();
      this.dispatch({ type: "link", status: "signed-out", why: "revoked" });
      return;
    } else if (this.state.link.status === "live" || this.state.link.status === "connecting") {
      this.dispatch({ type: "link", status: "lost", since: Date.now() });
    }
    const wait = Math.min(RETRY_MS, 200 * 2 ** this.attempt++) * (0.75 + Math.random() / 2);
    this.retry = setTimeout(() => this.connect(), wait);
  }

  /** @param {string} method @param {any} [params] @param {any} [more] */
  ask(method, params, more) {
    if (!this.peer) return Object.assign(Promise.reject(new Fault({ message: "not connected" })), { rpc: 0 });
    const call = this.peer.ask(method, params, more);
    // What was done for a person is seen in what the bus tells of it.
    const isDone = () => this.pace.hurry();
    if (!OWN.has(method)) call.then(isDone, isDone);
    return call;
  }

  /** @param {string} method @param {any} params */
  tell(method, params) {
    this.peer?.send({ method, params });
  }

  /** The handshake is put off until an agent's process is really needed. @param {string} [pool] */
  initialize(pool = "") {
    const params = { protocolVersion: 1, clientCapabilities: CAPABILITIES, clientInfo: { name: this.state.link.me || "stdio-bus-console", title: "stdio Bus console", version: this.state.link.version || "0" } };
    const before = this.handshakes.get(pool);
    if (before) return before;
    const handshake = this.ask("initialize", params, pool ? { pool } : {}).then(
      (answer) => {
        if (pool) this.dispatch({ type: "offer", pool, info: answer?.agentInfo ?? null, capabilities: answer?.agentCapabilities ?? {} });
        return answer;
      },
      (fault) => {
        this.handshakes.delete(pool);
        throw fault;
      },
    );
    this.handshakes.set(pool, handshake);
    return handshake;
  }

  /** What the agent of a session takes in prompts. @param {{pool?: string}} session @returns {Promise<any>} */
  async promptCapabilities({ pool }) {
    if (!pool) throw new Fault({ message: "the pool of this session is not known" });
    const { agentCapabilities } = (await this.initialize(pool)) ?? {};
    return agentCapabilities?.promptCapabilities ?? agentCapabilities?.session?.prompt ?? {};
  }

  /** Something that was asked for did not work. @param {any} fault */
  failed(fault) {
    if (fault?.reason === "disconnected") return;
    this.dispatch({ type: "toast", error: { message: fault?.message ?? String(fault), code: fault?.code, data: fault?.data }, at: Date.now() });
  }

  /** Asks for everything, and again after a while. */
  async poll() {
    this.pace.began();
    const began = performance.now();
    try {
      const status = this.ask("_bus/status");
      // If the connection is lost, the other one says so.
      status.catch(() => undefined);
      const list = [];
      let cursor;
      do {
        const page = await this.ask("_bus/sessions", cursor === undefined ? {} : { cursor });
        list.push(...page.sessions);
        cursor = page.nextCursor;
      } while (cursor !== undefined);
      this.dispatch({ type: "status", status: await status });
      this.dispatch({ type: "list", list });
      this.dispatch({ type: "link", lastWord: Date.now() });
      this.sessions.attend();
    } catch (fault) {
      this.failed(fault);
    }
    if (this.peer?.isOpen) this.pace.ended(performance.now() - began, waitOf(this.state, document.hidden));
  }

  /** @param {any} message @param {number} size how long it was */
  heard(message, size) {
    this.isHeard();
    if (message.method === "session/update") {
      const session = message.params?.sessionId;
      if (typeof session !== "string") return this.dispatch({ type: "account", kind: String(message.params?.update?.sessionUpdate), told: message.params?.update, at: Date.now() });
      const last = this.heap.at(-1);
      const at = this.sessions.isTold(session) ? 0 : Date.now();
      if (last?.session === session) last?.updates.push({ update: message.params.update, at, size });
      else this.heap.push({ session, updates: [{ update: message.params.update, at, size }] });
      this.flushSoon();
      return;
    }
    // What was said before is there before what comes now.
    this.flush();
    if (message.method === "_bus/session") {
      this.pace.hurry();
      this.sessions.event(message.params);
    } else if (ACCOUNT.has(message.method) && message.id === undefined) this.dispatch({ type: "account", kind: message.method, told: message.params, at: Date.now() });
    else if (message.method === "$/cancel_request") this.dispatch({ type: "withdrawn", rpc: message.params?.requestId, at: Date.now() });
    else if (message.method !== undefined && message.id !== undefined) this.sessions.asked(message);
  }

  flushSoon() {
    if (this.isFlushDue) return;
    this.isFlushDue = true;
    nextFrame(() => {
      this.isFlushDue = false;
      this.flush();
    });
  }

  flush() {
    const heap = this.heap;
    this.heap = [];
    for (const { session, updates } of heap) this.sessions.updated(session, updates);
    if (this.traced.length) {
      this.dispatch({ type: "wire", events: this.traced });
      this.traced = [];
    }
  }

  /** Follows the traffic, on a connection of its own. @param {boolean} on */
  trace(on) {
    this.tracer?.close();
    this.tracer = null;
    if (!on) return this.dispatch({ type: "wireOn", on: false });
    const tracer = new Peer(this.token, {
      opened: async () => {
        try {
          await tracer.ask("_bus/hello", { client: `${this.state.link.me}-wire` });
          const { at_us } = await tracer.ask("_bus/trace", {});
          this.dispatch({ type: "wireOn", on: true, base: Date.now() - at_us / 1000 });
        } catch (fault) {
          this.failed(fault);
        }
      },
      heard: ({ method, params }) => {
        if (method === "_bus/event") this.traced.push(params);
        else if (method === "_bus/dropped") this.dispatch({ type: "wireDropped", count: params?.count ?? 0 });
        this.flushSoon();
      },
      closed: () => undefined,
    });
    this.tracer = tracer;
  }
}
