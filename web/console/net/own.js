// Sessions that this page began: opened, and taken up again after the page or the bus was started anew.

const MINE = "stdio-bus.mine";

/** @typedef {{id: string, pool: string, cwd: string, label: string}} Own */

export class OwnSessions {
  /** @param {import("./bus.js").Bus} bus */
  constructor(bus) {
    this.bus = bus;
    /** @type {Own[]} */
    this.mine = JSON.parse(sessionStorage.getItem(MINE) ?? "[]");
  }

  /** @param {string} name a label or an id */
  find(name) {
    return this.mine.find((one) => one.label === name || one.id === name);
  }

  /** Opens a session. @param {{pool: string, cwd: string}} wants @returns {Promise<string>} its label */
  async open({ pool, cwd }) {
    await this.bus.initialize(pool);
    const opened = await this.bus.ask("session/new", { cwd, mcpServers: [], _meta: { "bus/pool": pool } });
    const session = opened.sessionId;
    this.bus.flush();
    const { modes = null, models = null, configOptions: options = [] } = opened;
    this.bus.dispatch({ type: "opened", session, modes, models, options, role: "owner", owner: this.bus.state.link.me, history: "full", cwd, pool });
    this.bus.dispatch({ type: "offer", pool, modes, models, options });
    const label = await this.named(session);
    this.mine = [...this.mine.filter((one) => one.id !== session), { id: session, pool, cwd, label }].slice(-50);
    this.remember();
    this.bus.poll();
    return label;
  }

  /** Opens a copy of a session, in which what was said so far stands too. @param {any} original @returns {Promise<string>} its label */
  async fork(original) {
    const { pool, cwd = "/", label: from } = original;
    await this.bus.initialize(pool);
    const opened = await this.bus.ask("session/fork", { sessionId: original.id, cwd, mcpServers: [] });
    const { sessionId: session, modes = original.modes, models = original.models, configOptions: options = original.options } = opened;
    const { items, next, size, children, terminals, places, commands, hasDiffs } = this.bus.state.sessions[original.id] ?? original;
    this.bus.dispatch({ type: "opened", session, items, next, size, children, terminals, places: new Map(places), commands, hasDiffs, modes, models, options, role: "owner", owner: this.bus.state.link.me, history: "full", cwd, pool });
    this.bus.dispatch({ type: "item", session, item: { kind: "note", at: Date.now(), text: `A copy of ${from} begins here.` } });
    this.bus.flush();
    const label = await this.named(session);
    this.mine = [...this.mine, { id: session, pool, cwd, label }].slice(-50);
    this.remember();
    this.bus.poll();
    return label;
  }

  /** The label of a session of this page. @param {string} session @returns {Promise<string>} */
  async named(session) {
    try {
      const result = await this.bus.ask("_bus/attach", { session, history: "none" });
      this.bus.sessions.settled(session, result);
      return result.label;
    } catch (fault) {
      if (fault.reason !== "unknown_session" && fault.reason !== "no_method") throw fault;
    }
    // A pool that does not share tells its label to nobody; it is the newest of this page.
    await this.bus.poll();
    const me = this.bus.state.link.me;
    const label = this.bus.state.list.find((view) => view.client === me && !this.bus.sessions.find(view.session))?.session ?? session;
    this.bus.dispatch({ type: "session", session, label, role: "owner", owner: me, loading: false });
    this.bus.sessions.told.delete(session);
    this.bus.sessions.here.add(session);
    this.bus.talk.back(session);
    return label;
  }

  remember() {
    sessionStorage.setItem(MINE, JSON.stringify(this.mine));
  }

  /** Takes a session up again that this page began before it was loaded anew, or before the bus was. @param {Own} own */
  async comeBack(own) {
    let id;
    try {
      id = await this.bus.sessions.join(own.id, { history: "full" });
      if (this.bus.state.sessions[id].owner === null && this.bus.may("control")) await this.bus.talk.take(id).catch(() => undefined);
    } catch (fault) {
      if (fault.reason !== "unknown_session") throw fault;
      id = await this.load(own);
    }
    const label = this.bus.state.sessions[id].label;
    if (label !== own.label) {
      if (this.bus.state.route.id === own.label) history.replaceState(null, "", `#/sessions/${label}`);
      const isHere = this.bus.state.route.id === own.label;
      this.mine = this.mine.map((one) => (one.id === own.id ? { ...one, label } : one));
      this.remember();
      if (isHere) this.bus.dispatch({ type: "route", route: { ...this.bus.state.route, place: "sessions", id: label } });
    }
    return id;
  }

  /** Goes on with a past session, which is of this page from now on. @param {{id: string, pool: string, cwd: string, method: string}} wants @returns {Promise<string>} its label */
  async resume({ id, pool, cwd, method }) {
    const own = { id, pool, cwd, label: "" };
    await this.load(own, method);
    const { label } = this.bus.state.sessions[id];
    this.mine = [...this.mine.filter((one) => one.id !== id), { ...own, label }].slice(-50);
    this.remember();
    this.bus.poll();
    return label;
  }

  /** The bus was started anew, or the session is a past one: the agent opens it again. @param {Own} own @param {string} [method] */
  async load({ id, cwd, pool }, method = "session/load") {
    await this.bus.initialize(pool);
    this.bus.dispatch({ type: "opened", session: id, loading: true, history: "full", cwd, pool });
    this.bus.sessions.told.add(id);
    const loaded = await this.bus.ask(method, { sessionId: id, cwd, mcpServers: [], _meta: { "bus/pool": pool } });
    this.bus.flush();
    const { modes = null, models = null, configOptions: options = [] } = loaded ?? {};
    this.bus.dispatch({ type: "session", session: id, modes, models, options });
    await this.named(id);
    return id;
  }

  /** After the connection was lost: what is open is joined again. */
  async rejoin() {
    this.bus.sessions.told.clear();
    this.bus.sessions.quietSince.clear();
    const here = this.bus.state.route.id;
    for (const session of Object.values(this.bus.state.sessions)) {
      const own = this.mine.find((one) => one.id === session.id);
      const isSeen = session.label === here || session.id === here;
      if (!own && !isSeen) {
        this.bus.dispatch({ type: "dropped", session: session.id });
        continue;
      }
      const back = own ? this.comeBack(own) : this.bus.sessions.join(session.id, { history: "full" });
      await back.catch((fault) => this.gone(session.id, fault));
    }
    if (here && !this.bus.sessions.find(here) && this.bus.state.route.place === "sessions") await this.bus.sessions.show(here);
  }

  /** @param {string} session @param {any} fault */
  gone(session, fault) {
    if (fault.reason === "disconnected") return;
    this.bus.dispatch({ type: "opened", session, label: this.bus.state.route.id ?? "", role: "observe" });
    this.bus.dispatch({ type: "item", session, item: { kind: "error", at: Date.now(), error: { message: fault.message, code: fault.code, data: fault.data } } });
  }
}
