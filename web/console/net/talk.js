// What a person says in a session: prompts, answers, settings, taking over.

import { arrived, nextQueued, timesSaid } from "../state/outbox.js";

/** A prompt that is on its way for longer than this is shown as such. */
const SLOW_MS = 600;
/** A turn that goes on for so long after it was cancelled may never stop by itself. */
export const STUCK_MS = 5000;

export class Talk {
  /** @param {import("./bus.js").Bus} bus */
  constructor(bus) {
    this.bus = bus;
    /** Prompts of this page that the agent works on, in their order, by session. @type {Map<string, string[]>} */
    this.working = new Map();
  }

  /** Whether it was sent. @param {any} question @param {any} result @param {{choice: string, verdict?: string}} how */
  answer(question, result, how) {
    if (!this.bus.isAnswering) return false;
    this.bus.peer?.send({ id: question.rpc, result });
    this.bus.dispatch({ type: "decided", key: question.key, by: this.bus.state.link.me, ...how, end: Date.now() });
    return true;
  }

  /** While a turn runs, a prompt waits here, where it can still be changed. @param {string} session @param {string} text @param {any[]} [parts] */
  prompt(session, text, parts = []) {
    const key = `${Date.now()} ${Math.random()}`;
    const waits = this.bus.isAnswering && this.bus.state.sessions[session]?.turn === "running";
    this.bus.dispatch({ type: "out", entry: { key, session, text, parts, state: waits ? "queued" : "unsent" } });
    this.sendAll();
  }

  /** The turn is over: the first prompt that waits here is next. @param {string} session */
  next(session) {
    const entry = nextQueued(this.bus.state, session);
    if (!entry || !this.bus.isAnswering || !this.bus.sessions.here.has(session)) return;
    this.bus.dispatch({ type: "outChanged", key: entry.key, state: "unsent" });
    this.sendAll();
  }

  /** What was held after a stop goes on. @param {string} session */
  goOn(session) {
    this.bus.dispatch({ type: "outHeld", session, isHeld: false });
    this.next(session);
  }

  /** Sends what waits for the connection, or for the session to be joined again. */
  sendAll() {
    if (!this.bus.isAnswering) return;
    for (const entry of this.bus.state.outbox) {
      if (entry.state === "unsent" && this.bus.sessions.here.has(entry.session)) this.send(entry);
    }
  }

  /** @param {import("../state/outbox.js").Entry} entry */
  async send({ key, session, text, parts = [] }) {
    const prompt = [...(text ? [{ type: "text", text }] : []), ...parts];
    const call = this.bus.ask("session/prompt", { sessionId: session, prompt });
    this.bus.dispatch({ type: "outChanged", key, state: "sent", rpc: call.rpc, said: timesSaid(this.bus.state, session, text), isSlow: false });
    setTimeout(() => this.bus.dispatch({ type: "outChanged", key, isSlow: true }), SLOW_MS);
    this.bus.beat();
    try {
      const { stopReason, usage, messageId } = (await call) ?? {};
      // In version 2 the answer only says that the agent has it, and the agent tells when the turn is over.
      if (stopReason === undefined && messageId !== undefined) this.taken(key, session);
      else this.ended(key, session, { reason: stopReason, usage });
    } catch (fault) {
      if (fault.reason === "disconnected") return;
      const error = { message: fault.message, code: fault.code, data: fault.data };
      // What the bus refuses at once has not become a turn, and is still the person's.
      if (this.find(key)) this.bus.dispatch({ type: "outChanged", key, state: "refused" });
      this.bus.dispatch({ type: "item", session, item: { kind: "error", at: Date.now(), error } });
      this.ended(key, session, { reason: "error" });
    }
  }

  /** @param {string} key */
  find(key) {
    return this.bus.state.outbox.find((one) => one.key === key);
  }

  /** The bus has read all that was sent before this request. @param {number} rpc */
  readUpTo(rpc) {
    for (const entry of this.bus.state.outbox) if (entry.state === "sent" && entry.rpc < rpc) this.begun(entry);
  }

  /** A turn of this page has begun in a session: the first of its prompts that has none yet is the agent's. @param {string} session */
  begins(session) {
    const entry = this.bus.state.outbox.find((one) => one.session === session && (one.state === "waits" || one.state === "sent"));
    if (entry) this.begun(entry);
  }

  /** A prompt of this page waits for the end of another's turn. @param {string} session */
  waits(session) {
    const entry = this.bus.state.outbox.find((one) => one.session === session && one.state === "sent");
    if (entry) this.bus.dispatch({ type: "outChanged", key: entry.key, state: "waits" });
  }

  /** The agent has the prompt, so it was said. @param {import("../state/outbox.js").Entry} entry */
  begun({ key, session, text, parts }) {
    this.bus.dispatch({ type: "outGone", key });
    this.bus.dispatch({ type: "item", session, item: { kind: "user", text, parts, size: JSON.stringify(parts ?? []).length, at: Date.now(), mine: true } });
    this.bus.dispatch({ type: "turn", session, turn: "running", at: Date.now(), by: this.bus.state.link.me });
    this.working.set(session, [...(this.working.get(session) ?? []), key]);
  }

  /** A prompt was answered. The turn is over when the last one is. @param {string} key @param {string} session @param {{reason?: string, usage?: any}} how */
  ended(key, session, { reason, usage }) {
    const entry = this.find(key);
    // One that was taken back before its turn came has no turn to end; one that was answered at once has had its turn.
    if (entry?.state === "waits" && reason === "cancelled") return this.bus.dispatch({ type: "outGone", key });
    if (entry?.state === "refused") return;
    if (entry) this.begun(entry);
    const working = this.working.get(session) ?? [];
    const rest = working.filter((one) => one !== key);
    if (rest.length) this.working.set(session, rest);
    else this.working.delete(session);
    const at = Date.now();
    if (rest.length && working[0] !== key) return;
    this.bus.dispatch({ type: "turn", session, turn: "idle", at, reason, usage });
    if (rest.length) this.bus.dispatch({ type: "turn", session, turn: "running", at, by: this.bus.state.link.me });
    else this.next(session);
  }

  /** The agent has a prompt, and says by itself when it is done with it. @param {string} key @param {string} session */
  taken(key, session) {
    const entry = this.find(key);
    if (entry) this.begun(entry);
    const rest = (this.working.get(session) ?? []).filter((one) => one !== key);
    if (rest.length) this.working.set(session, rest);
    else this.working.delete(session);
  }

  /** The connection is lost, and with it the answers. */
  lost() {
    this.working.clear();
  }

  /** A session was joined again and told from its start: what has come after all is in it, and what was kept here can go. @param {string} session */
  back(session) {
    for (const { key } of arrived(this.bus.state, session)) this.bus.dispatch({ type: "outGone", key });
    this.sendAll();
    this.next(session);
  }

  /** Cancels the turn. One that does not stop for it is said to be stuck. @param {string} session */
  stop(session) {
    const stopAt = Date.now();
    this.bus.tell("session/cancel", { sessionId: session });
    const known = this.bus.state.sessions[session];
    this.bus.dispatch({ type: "session", session, stopAt: known?.stopAt || stopAt });
    // Who stops a turn does not want the next one to begin by itself.
    this.bus.dispatch({ type: "outHeld", session, isHeld: true });
    if (known?.stopAt) return;
    setTimeout(() => {
      const now = this.bus.state.sessions[session];
      if (now?.stopAt === stopAt && now.turn === "running") this.bus.dispatch({ type: "session", session, isStuck: true });
    }, STUCK_MS);
  }

  /** Takes a prompt back. The bus answers one that waits there, which ends it. @param {import("../state/outbox.js").Entry} entry */
  takeBack(entry) {
    if (entry.state === "waits") this.bus.tell("$/cancel_request", { requestId: entry.rpc });
    else this.bus.dispatch({ type: "outGone", key: entry.key });
  }

  /** @param {import("../state/outbox.js").Entry} entry */
  sendAgain(entry) {
    this.bus.dispatch({ type: "outChanged", key: entry.key, state: "unsent" });
    this.sendAll();
  }

  /** @param {string} session */
  async take(session) {
    await this.bus.initialize();
    await this.bus.ask("_bus/take", { session });
    this.bus.dispatch({ type: "session", session, role: "owner" });
  }

  /** Renames a session at its agent, which tells all who are in it. @param {string} session @param {string} title */
  async rename(session, title) {
    await this.bus.ask("session/set_title", { sessionId: session, title });
    this.bus.dispatch({ type: "session", session, title });
  }

  /** Sets a mode, a model or an option. @param {string} session @param {"mode" | "model" | "option"} what @param {any} value @param {string} [option] */
  async choose(session, what, value, option) {
    const known = this.bus.state.sessions[session];
    const sessionId = session;
    if (what === "mode") {
      await this.bus.ask("session/set_mode", { sessionId, modeId: value });
      this.bus.dispatch({ type: "session", session, modes: { ...known.modes, currentModeId: value } });
    } else if (what === "model") {
      await this.bus.ask("session/set_model", { sessionId, modelId: value });
      this.bus.dispatch({ type: "session", session, models: { ...known.models, currentModelId: value } });
    } else {
      const answer = await this.bus.ask("session/set_config_option", { sessionId, configId: option, value, ...(typeof value === "boolean" ? { type: "boolean" } : {}) });
      const options = answer?.configOptions ?? known.options.map((one) => ((one.id ?? one.configId) === option ? { ...one, currentValue: value } : one));
      this.bus.dispatch({ type: "session", session, options });
    }
  }
}
