// An ACP agent without a model: what a prompt begins with decides what it plays. For the browser tests and the pictures.
//
//     node agent.mjs [STATE_DIR]
//
// With STATE_DIR it keeps what was said there, so that `session/load` works after a crash.

import fs from "node:fs";
import path from "node:path";
import readline from "node:readline";
import { scripts } from "./scripts.mjs";

const [state] = process.argv.slice(2);
const sessions = new Map();
const waiting = new Map();
let next = 1;

const write = (message) => process.stdout.write(JSON.stringify({ jsonrpc: "2.0", ...message }) + "\n");
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

function ask(method, params) {
  const id = next++;
  write({ id, method, params });
  return new Promise((done) => waiting.set(id, done));
}

// As many settings and commands as the agents that people use have: a page that looks well with two of each may not with these.
const MODES = ["Always ask before it does something", "Accept edits", "Plan only", "Do not ask for what is allowed", "Bypass permissions"].map((name, at) => ({ id: ["ask", "edit", "plan", "allowed", "bypass"][at], name, description: `${name}.` }));
const MODELS = ["Default (recommended)", "Deep 4.8 (1M context)", "Swift 5", "Swift 5 mini, for small and quick things"].map((name, at) => ({ modelId: `model-${at}`, name, description: `${name} · a model` }));
const choice = (id, name, category, values) => ({ id, name, category, type: "select", options: values.map((value) => ({ value, name: value })) });
const OPTIONS = [choice("effort", "Reasoning effort", "thought_level", ["low", "medium", "high", "maximal"]), choice("style", "Output style", "other", ["default", "explanatory", "learning"])];
const COMMANDS = ["review", "review-pr", "compact", "init", "context", "cost", "security-review", "release-notes", ...Array.from({ length: 40 }, (_, at) => `team:deploy-${at}`)].map((name) => ({ name, description: `Does ${name} for the folder that the session is in, and tells what it did`, input: name === "review-pr" ? { hint: "number of the pull request" } : undefined }));

function settings(session) {
  return {
    modes: { currentModeId: session.mode, availableModes: MODES },
    models: { currentModelId: session.model, availableModels: MODELS },
    configOptions: [...OPTIONS.map((one) => ({ ...one, currentValue: session.options[one.id] ?? one.options[0].value })), { id: "web", name: "Web search", type: "boolean", currentValue: session.options.web ?? true }],
  };
}

/** Agents tell their commands as soon as the session is there. */
const tellCommands = (session) => setTimeout(() => session.update({ sessionUpdate: "available_commands_update", availableCommands: COMMANDS }));

class Session {
  constructor(id, cwd) {
    Object.assign(this, { id, cwd, mode: "ask", model: "model-0", options: {}, told: [], cancelled: false });
  }

  get file() {
    return state && path.join(state, `${this.id}.json`);
  }

  /** Tells the client, and remembers it. What a subagent says is of another session. */
  update(update, of = this.id) {
    if (of === this.id) this.told.push(update);
    write({ method: "session/update", params: { sessionId: of, update } });
  }

  /** Tells something that is about no session. */
  tell(method, params) {
    write({ method, params });
  }

  say(text, kind = "agent_message_chunk") {
    this.update({ sessionUpdate: kind, content: { type: "text", text } });
  }

  /** Says it in pieces, as a model does. */
  async stream(text, { kind, piece = 12, pause = 4 } = {}) {
    for (let at = 0; at < text.length && !this.cancelled; at += piece) {
      this.say(text.slice(at, at + piece), kind);
      if (pause) await sleep(pause);
    }
  }

  async call(id, first, then, took = 30) {
    this.update({ sessionUpdate: "tool_call", toolCallId: id, status: "in_progress", ...first });
    await sleep(took);
    this.update({ sessionUpdate: "tool_call_update", toolCallId: id, status: "completed", ...then });
  }

  permission(toolCall, names = ["Allow once", "Always allow", "Deny"], of = this.id) {
    const options = ["allow_once", "allow_always", "reject_once"].map((kind, at) => [kind, names[at]]).map(([kind, name]) => ({ optionId: kind, kind, name }));
    return this.request(toolCall, options, of);
  }

  request(toolCall, options, of = this.id) {
    return ask("session/request_permission", { sessionId: of, toolCall, options });
  }

  elicit(message, requestedSchema) {
    return ask("elicitation/create", { sessionId: this.id, mode: "form", message, requestedSchema });
  }

  sleep(ms) {
    return sleep(ms);
  }

  save() {
    if (this.file) fs.writeFileSync(this.file, JSON.stringify({ cwd: this.cwd, told: this.told.slice(-5000) }));
  }
}

const methods = {
  initialize: () => ({
    protocolVersion: 1,
    agentInfo: { name: "scripted", version: "1" },
    agentCapabilities: { loadSession: !!state, promptCapabilities: state ? { image: true, embeddedContext: true } : {}, sessionCapabilities: { close: {}, ...(state ? { fork: {}, title: {} } : {}) } },
    authMethods: [],
  }),
  "session/new": ({ cwd }) => {
    const id = `play-${process.pid}-${next++}`;
    sessions.set(id, new Session(id, cwd));
    sessions.get(id).save();
    tellCommands(sessions.get(id));
    return { sessionId: id, ...settings(sessions.get(id)) };
  },
  "session/load": ({ sessionId, cwd }) => {
    const session = new Session(sessionId, cwd);
    session.told = JSON.parse(fs.readFileSync(session.file, "utf8")).told;
    for (const update of session.told) write({ method: "session/update", params: { sessionId, update } });
    sessions.set(sessionId, session);
    return settings(session);
  },
  "session/prompt": async ({ sessionId, prompt }) => {
    const session = sessions.get(sessionId);
    const text = prompt.map((part) => part.text ?? "").join("");
    session.told.push({ sessionUpdate: "user_message_chunk", content: { type: "text", text } });
    session.cancelled = false;
    const name = /^\/?(\w+)/.exec(text)?.[1] ?? "";
    const played = await (scripts[name] ?? scripts.echo)(session, text, prompt);
    session.save();
    return { stopReason: session.cancelled ? "cancelled" : "end_turn", ...played };
  },
  "session/set_mode": ({ sessionId, modeId }) => {
    sessions.get(sessionId).mode = modeId;
    return {};
  },
  "session/set_model": ({ sessionId, modelId }) => {
    sessions.get(sessionId).model = modelId;
    return {};
  },
  "session/set_config_option": ({ sessionId, configId, value }) => {
    sessions.get(sessionId).options[configId] = value;
    return { configOptions: settings(sessions.get(sessionId)).configOptions };
  },
  "session/set_title": ({ sessionId, title }) => {
    sessions.get(sessionId).update({ sessionUpdate: "session_info_update", title });
    return {};
  },
  "session/fork": ({ sessionId, cwd }) => {
    const fork = new Session(`fork-${process.pid}-${next++}`, cwd);
    fork.told = [...sessions.get(sessionId).told];
    sessions.set(fork.id, fork);
    fork.save();
    return { sessionId: fork.id, ...settings(fork) };
  },
  "session/close": ({ sessionId }) => (sessions.delete(sessionId), {}),
};

readline.createInterface({ input: process.stdin }).on("line", async (line) => {
  const { id, method, params, result, error } = JSON.parse(line);
  if (method === undefined) {
    waiting.get(id)?.(result ?? { error });
    waiting.delete(id);
  } else if (method === "session/cancel") {
    const session = sessions.get(params.sessionId);
    if (session) session.cancelled = true;
    for (const done of waiting.values()) done({ outcome: { outcome: "cancelled" } });
    waiting.clear();
  } else if (id !== undefined) {
    try {
      if (!methods[method]) write({ id, error: { code: -32601, message: `no ${method}` } });
      else write({ id, result: await methods[method](params ?? {}) });
    } catch (fault) {
      write({ id, error: fault.error ?? { code: -32603, message: String(fault) } });
    }
  }
}).on("close", () => process.exit(0));
