// Errors in words: what happened, what the bus did about it, what to do.

import { look, table } from "./table.js";

/** @typedef {{what: string, bus?: string, todo?: string}} Explained */

/** @type {Record<string, Explained>} */
const REASONS = table({
  worker_lost: { what: "The agent's process ended before it answered.", bus: "It is started again; the session is opened anew with the next message where the agent can do that.", todo: "Send the prompt again. If it ends each time, look at the lines below and at Pools." },
  unknown_session: { what: "The bus has no such session for this page.", bus: "It is closed, belongs to a pool that does not share, or was lost with its process.", todo: "Open another one, or look for it under Sessions." },
  unknown_pool: { what: "There is no such pool.", todo: "Name one of bus.json, or set default_pool there." },
  pool_down: { what: "No process of this pool can be started.", bus: "It tries again, with growing pauses.", todo: "`stdio-bus check --probe` tells why; often a command is missing or wants a login." },
  busy: { what: "There is no room for this now.", bus: "It refused rather than let others wait.", todo: "Wait, close sessions, or raise the limit that is named." },
  stopping: { what: "The bus is being stopped.", bus: "What is in flight may finish.", todo: "This page comes back by itself when a bus does." },
  unauthorized: { what: "The token is missing, wrong or revoked.", todo: "`stdio-bus web url` prints a new link." },
  no_start: { what: "The agent did not answer in time when it was started.", bus: "It is started again.", todo: "Look at the lines below; raise init_timeout_sec if it is only slow." },
  read_only: { what: "This page may only look on here.", todo: "Take control in the session's head, or ask for a link with another scope." },
  node_lost: { what: "The machine of this session is away.", bus: "The session is good again when the machine is back.", todo: "Look at `stdio-bus nodes`." },
  no_workspace: { what: "The folder does not exist where the agent runs.", todo: "Name another folder, or map it in bus.json." },
  too_large: { what: "The message is longer than the bus carries.", todo: "Shorten it, or raise max_input_buffer." },
  disconnected: { what: "The connection to the bus was lost.", bus: "Turns go on without this page.", todo: "It connects again by itself." },
  no_method: { what: "This bus does not know that.", todo: "It may be older than this page: reload." },
});

/** @type {Record<string, Explained>} */
const CODES = table({
  "-32000": { what: "The agent wants a login.", todo: "Log in with the agent's own program in a terminal, then try again." },
  "-32601": { what: "The agent does not offer this." },
  "-32602": { what: "The agent did not accept what was asked." },
  "-32603": { what: "Something went wrong inside the agent." },
});

/** @param {{message?: string, code?: number, data?: any}} error @returns {Explained & {detail: string, stderr: string[], reason: string}} */
export function explain(error) {
  const reason = String(error.data?.reason ?? "");
  const known = look(REASONS, reason) ?? look(CODES, String(error.code)) ?? { what: "The agent answered with an error." };
  const stderr = error.data?.stderr;
  const lines = Array.isArray(stderr) ? stderr.map(String) : typeof stderr === "string" ? stderr.split("\n") : [];
  const raise = typeof error.data?.raise === "string" ? { todo: `Wait, close sessions, or raise ${error.data.raise} of pool ${error.data.pool}.` } : {};
  return { ...known, ...raise, detail: error.message ?? "", stderr: lines.filter(Boolean), reason: reason || String(error.code ?? "") };
}

const STOPS = table({ end_turn: "done", cancelled: "stopped", max_tokens: "out of tokens", max_turn_requests: "too many steps", refusal: "refused", error: "failed", "": "ended without an answer" });

/** How a turn ended, in words. @param {string} reason */
export const stopWords = (reason) => look(STOPS, reason) ?? String(reason);
