// The sessions that this page has joined: opening, joining, answering, prompting, leaving, coming back.

import { rootOf } from "../state/questions.js";

const KEPT = 4;
const ATTENDED = 50;

export class Sessions {
  /** @param {import("./bus.js").Bus} bus */
  constructor(bus) {
    this.bus = bus;
    /** Sessions that were looked at, the last one last. @type {string[]} */ this.recent = [];
    /** Sessions whose past is being told. @type {Set<string>} */ this.told = new Set();
    /** Sessions that are being left, to be joined anew. @type {Set<string>} */ this.leaving = new Set();
    /** Sessions that this connection is in, so that one can speak in them. @type {Set<string>} */ this.here = new Set();
    /** How many are being joined; until it is answered, what is heard may be of a session that is not known yet. */
    this.joining = 0;
    /** @type {Map<string, Promise<string>>} */ this.joins = new Map();
    /** @type {Map<string, number>} */ this.joinedAt = new Map();
    /** @type {Map<string, number>} */ this.quietSince = new Map();
  }

  get known() {
    return this.bus.state.sessions;
  }

  /** @param {string} id */
  isTold(id) {
    const root = rootOf(this.bus.state, id);
    return !root || this.told.has(id) || this.told.has(root.id);
  }

  /** The session with this label or id, as far as it is joined. @param {string | null} name */
  find(name) {
    if (!name) return undefined;
    return this.known[name] ?? Object.values(this.known).find((session) => session.label === name);
  }

  /** @param {string} id @param {any[]} updates */
  updated(id, updates) {
    if (this.leaving.has(id)) return;
    if (!rootOf(this.bus.state, id)) {
      if (!this.joining) return;
      this.told.add(id);
      this.bus.dispatch({ type: "opened", session: id, loading: true });
    }
    this.bus.dispatch({ type: "updates", session: id, updates });
    // The agent itself may have told that its turn is over.
    if (updates.some(({ update }) => update?.sessionUpdate === "state_update")) this.bus.talk.next(id);
  }

  /**
   * Joins a session, or finds that it is joined.
   * @param {string} name a label or an id
   * @param {{history?: string, role?: string}} [how]
   * @returns {Promise<string>} its id
   */
  join(name, how = {}) {
    const going = this.joins.get(name);
    // Who only wanted to be asked has not heard the whole of it.
    if (going) return going.then((id) => (how.history === "full" && this.known[id]?.history !== "full" ? this.join(id, how) : id));
    const found = this.find(name);
    if (found && !how.role && how.history !== "full") return Promise.resolve(found.id);
    const join = this.attach(name, how).finally(() => this.joins.delete(name));
    this.joins.set(name, join);
    return join;
  }

  /** @param {string} name @param {{history?: string, role?: string}} how */
  async attach(name, { history = "full", role }) {
    const wanted = role ?? (this.bus.may("approve") ? "control" : "observe");
    const before = this.find(name);
    if (before) await this.letGo(before.id, history === "full");
    this.joining += 1;
    try {
      const result = await this.bus.ask("_bus/attach", { session: name, role: wanted, history });
      this.bus.flush();
      const id = result.session;
      if (!this.known[id]) this.bus.dispatch({ type: "opened", session: id });
      this.bus.dispatch({ type: "session", session: id, history: before && history !== "full" ? before.history : history });
      this.settled(id, result);
      // Nobody who was not here has heard how the last turn failed.
      const error = history === "full" ? result.lastTurn?.error : undefined;
      if (error) this.bus.dispatch({ type: "item", session: id, item: { kind: "error", at: Date.now(), error } });
      return id;
    } finally {
      this.joining -= 1;
      if (this.joining === 0) this.tidy();
    }
  }

  /** What was heard meanwhile of sessions that nobody has joined, such as those of subagents, is not kept. */
  tidy() {
    for (const { id, loading, label } of Object.values(this.known)) {
      if (loading && !label && !this.asks(id)) this.bus.dispatch({ type: "dropped", session: id });
    }
  }

  /** Leaves a session in order to join it again: to be told it from its start, or with another role. @param {string} id @param {boolean} isWhole */
  async letGo(id, isWhole) {
    this.here.delete(id);
    this.bus.dispatch({ type: isWhole ? "dropped" : "unasked", session: id });
    const left = this.bus.ask("_bus/detach", { session: id }).catch(() => undefined);
    // With another role it goes on without a word in between. What is told again from its start must not begin with its end.
    if (!isWhole) return;
    this.leaving.add(id);
    await left;
    this.leaving.delete(id);
  }

  /** @param {string} id @param {any} result */
  settled(id, result) {
    this.told.delete(id);
    const view = this.bus.state.list.find((one) => one.session === result.label);
    if (view) this.bus.dispatch({ type: "session", session: id, guests: view.guests });
    if (typeof result.pool === "string") this.bus.dispatch({ type: "offer", pool: result.pool, modes: result.modes, models: result.models, options: result.configOptions });
    this.bus.dispatch({ type: "attached", session: id, result, mine: result.owner === this.bus.state.link.me });
    if (result.turn === "running") this.bus.dispatch({ type: "turn", session: id, turn: "running", at: Date.now() });
    this.here.add(id);
    this.joinedAt.set(id, Date.now());
    this.bus.talk.back(id);
  }

  /** A person looks at this session. @param {string} name */
  async show(name) {
    try {
      const own = this.bus.own.find(name);
      const found = this.find(name);
      if (found?.history === "full" || found?.role === "owner") return this.looked(found.id);
      const id = own ? await this.bus.own.comeBack(own) : await this.join(name, { history: "full" });
      this.looked(id);
    } catch (fault) {
      if (fault.reason !== "disconnected") this.bus.dispatch({ type: "unshared", label: name, why: fault.message });
    }
  }

  /** Only so many stay joined that nobody looks at. @param {string} id */
  looked(id) {
    this.recent = [...this.recent.filter((one) => one !== id), id];
    const spare = this.recent.filter((one) => this.known[one]?.role !== "owner" && one !== id && !this.asks(one));
    for (const one of spare.slice(0, Math.max(0, spare.length - KEPT))) this.leave(one);
  }

  /** @param {string} id */
  asks(id) {
    return this.bus.state.questions.some((question) => rootOf(this.bus.state, question.session)?.id === id);
  }

  /** @param {string} id */
  leave(id) {
    this.here.delete(id);
    this.joinedAt.delete(id);
    this.recent = this.recent.filter((one) => one !== id);
    this.bus.dispatch({ type: "dropped", session: id });
    this.bus.ask("_bus/detach", { session: id }).catch(() => undefined);
  }

  /** Joins the sessions that wait for somebody, and leaves those that do not any more. */
  attend() {
    const { list, unshared, route } = this.bus.state;
    if (!this.bus.may("approve")) return;
    // Those that have waited longest first. The others are joined as these are answered.
    const waiting = list.filter((view) => view.questions > 0).sort((one, other) => (other.idle_sec ?? 0) - (one.idle_sec ?? 0)).slice(0, ATTENDED);
    for (const view of waiting) {
      const found = this.find(view.session);
      if (unshared[view.session]) continue;
      if (!found) this.join(view.session, { history: "pending" }).catch((fault) => this.notShared(view.session, fault));
      else if (!this.asks(found.id)) this.askAgain(found.id);
    }
    for (const session of Object.values(this.known)) {
      const isWanted = this.asks(session.id) || session.label === route.id || waiting.some((view) => view.session === session.label);
      const isIdle = session.history === "pending" && !isWanted;
      const since = this.quietSince.get(session.id) ?? Date.now();
      if (!isIdle) this.quietSince.delete(session.id);
      else if (Date.now() - since > 5000) this.leave(session.id);
      else this.quietSince.set(session.id, since);
    }
  }

  /** @param {string} label @param {any} fault */
  notShared(label, fault) {
    if (fault.reason !== "disconnected") this.bus.dispatch({ type: "unshared", label, why: fault.message });
  }

  /** A question that is open did not come here: some are only asked of clients that can show a form. @param {string} id */
  async askAgain(id) {
    const session = this.known[id];
    const since = this.quietSince.get(`ask ${id}`);
    if (!since) return void this.quietSince.set(`ask ${id}`, Date.now());
    if (Date.now() - since < 3000 || session?.triedForm || this.bus.handshakes.size) return;
    this.bus.dispatch({ type: "session", session: id, triedForm: true });
    try {
      await this.bus.initialize();
      await this.join(id, { history: session?.history ?? "pending", role: "control" });
    } catch (fault) {
      this.bus.failed(fault);
    }
  }

  /**
   * Since when a question has been open. Who joins a session is asked what was open before; the agent has said nothing since then, so
   * it is as old as the session is idle.
   * @param {string} session @param {any} view
   */
  askedAt(session, view) {
    const now = Date.now();
    const hasJustJoined = now - (this.joinedAt.get(session) ?? 0) < 1000;
    return hasJustJoined && view?.questions > 0 ? now - 1000 * (view.idle_sec ?? 0) : now;
  }

  /** An agent asks something. @param {any} message */
  asked(message) {
    const { id: rpc, method, params } = message;
    const session = params?.sessionId;
    const isQuestion = method === "session/request_permission" || method === "elicitation/create";
    if (!isQuestion || typeof session !== "string") {
      const error = { code: -32601, message: `a web page cannot do ${method}` };
      this.bus.peer?.send({ id: rpc, error });
      return;
    }
    if (!rootOf(this.bus.state, session)) this.bus.dispatch({ type: "opened", session, loading: true });
    const root = /** @type {any} */ (rootOf(this.bus.state, session));
    const view = this.bus.state.list.find((one) => one.session === root.label);
    const question = { key: `${session} ${rpc}`, rpc, session, method, params, at: this.askedAt(root.id, view), state: "open" };
    this.bus.dispatch({ type: "asked", question, at: Date.now() });
    const pool = view?.pool ?? "An agent";
    this.bus.dispatch({ type: "say", text: `${pool} waits for you` });
    // Who only joined for the question has not heard what it is about, if the question itself does not say.
    if (method === "session/request_permission" && !params.toolCall?.title && root.history === "pending") {
      this.join(root.id, { history: "full" }).catch(() => undefined);
    }
  }

  /** A turn begins or ends. @param {string} session @param {any} event @param {number} at */
  turned(session, { turn, by, stopReason, error }, at) {
    const known = this.known[session];
    if (turn === "running" && by === this.bus.state.link.me) this.bus.talk.begins(session);
    // The answers to prompts of this page tell more of their turns than this does, and come with it.
    if (turn === "idle" && this.bus.talk.working.has(session)) return;
    if (error) this.bus.dispatch({ type: "item", session, item: { kind: "error", at, error } });
    this.bus.dispatch({ type: "turn", session, at, turn, by, reason: error ? "error" : stopReason });
    if (turn === "idle") this.bus.talk.next(session);
    if (turn === "idle" && known?.turn === "running") this.bus.dispatch({ type: "say", text: `${known.label}: the turn is over` });
  }

  /** `_bus/session` @param {any} event */
  event(event) {
    const { session, event: what } = event;
    const at = Date.now();
    this.bus.dispatch({ type: "event", session, event, at });
    const known = this.known[session];
    if (what === "turn") {
      this.turned(session, event, at);
    } else if (what === "queued") {
      if (event.by === this.bus.state.link.me) this.bus.talk.waits(session);
    } else if (what === "decided") {
      this.bus.dispatch({ type: "decidedBy", session, event });
    } else if (what === "owner") {
      this.bus.dispatch({ type: "session", session, role: event.owner === this.bus.state.link.me ? "owner" : known?.role === "owner" ? "control" : known?.role });
    } else if (what === "behind") {
      this.join(session, { history: "full" }).catch((fault) => this.bus.failed(fault));
    }
  }
}
