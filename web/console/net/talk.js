// What a person says in a session: prompts, answers, settings, taking over.

export class Talk {
  /** @param {import("./bus.js").Bus} bus */
  constructor(bus) {
    this.bus = bus;
  }

  /** @param {any} question @param {any} result @param {string} choice */
  answer(question, result, choice) {
    this.bus.peer?.send({ id: question.rpc, result });
    this.bus.dispatch({ type: "decided", key: question.key, by: this.bus.state.link.me, choice, end: Date.now() });
  }

  /** A prompt that waited is now the agent's. @param {string} session @param {{rpc: any, text: string}} waiting */
  begun(session, { rpc, text }) {
    this.bus.dispatch({ type: "unqueue", session, rpc });
    this.bus.dispatch({ type: "item", session, item: { kind: "user", text, at: Date.now(), mine: true } });
  }

  /** @param {string} session @param {string} text */
  async prompt(session, text) {
    const known = this.bus.state.sessions[session];
    const isQueued = known?.turn === "running" && known.turnBy !== this.bus.state.link.me;
    const call = this.bus.ask("session/prompt", { sessionId: session, prompt: [{ type: "text", text }] });
    if (isQueued) {
      this.bus.dispatch({ type: "queue", session, rpc: call.rpc, text });
    } else {
      this.bus.dispatch({ type: "item", session, item: { kind: "user", text, at: Date.now(), mine: true } });
      this.bus.dispatch({ type: "turn", session, turn: "running", at: Date.now(), by: this.bus.state.link.me });
    }
    try {
      const { stopReason, usage } = (await call) ?? {};
      // One that was taken back before its turn came has no turn to end.
      if (this.bus.state.sessions[session]?.queue.some((one) => one.rpc === call.rpc)) return;
      this.bus.dispatch({ type: "turn", session, turn: "idle", at: Date.now(), reason: stopReason, usage });
    } catch (fault) {
      if (fault.reason === "disconnected") return;
      this.bus.dispatch({ type: "item", session, item: { kind: "error", at: Date.now(), error: { message: fault.message, code: fault.code, data: fault.data } } });
      this.bus.dispatch({ type: "turn", session, turn: "idle", at: Date.now(), reason: "error" });
    } finally {
      this.bus.dispatch({ type: "unqueue", session, rpc: call.rpc });
    }
  }

  /** @param {string} session */
  stop(session) {
    this.bus.tell("session/cancel", { sessionId: session });
  }

  /** Takes a prompt back that waits. @param {any} rpc */
  unqueue(rpc) {
    this.bus.tell("$/cancel_request", { requestId: rpc });
  }

  /** @param {string} session */
  async take(session) {
    await this.bus.initialize();
    await this.bus.ask("_bus/take", { session });
    this.bus.dispatch({ type: "session", session, role: "owner" });
  }

  /** Sets a mode, a model or an option. @param {string} session @param {"mode" | "model" | "option"} what @param {string} value @param {string} [option] */
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
      const answer = await this.bus.ask("session/set_config_option", { sessionId, configId: option, value });
      const options = answer?.configOptions ?? known.options.map((one) => (one.id === option ? { ...one, currentValue: value } : one));
      this.bus.dispatch({ type: "session", session, options });
    }
  }
}
