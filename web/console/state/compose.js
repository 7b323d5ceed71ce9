// What a person writes: commands and files that it may mean, what was written before, and the blocks of a prompt. Pure.

import { look, table } from "../lib/table.js";
import { objects, text } from "./transcript.js";

/** @typedef {import("./transcript.js").Session} Session */
/** Something that goes along with a prompt. @typedef {{name: string, size: number, block: any}} Attached */

const SHOWN = 8;
const FILES = 500;
/** All that goes along with one prompt, in bytes before it is written as text. */
export const ATTACHED_MAX = 8e6;

/** Commands that begin with what is typed. @param {any[]} commands @param {string} typed */
export function commandsFor(commands, typed) {
  if (!/^\/\S*$/.test(typed)) return [];
  // One that is typed in full is meant, although others may begin with it too.
  if (commands.some((command) => `/${command.name}` === typed)) return [];
  return commands.filter((command) => `/${command.name}`.startsWith(typed)).slice(0, SHOWN);
}

/** What a command wants to be told, as its agent puts it. @param {any} command */
export const hintOf = (command) => text(command?.input?.hint);

/** The hint for what is typed: a command that nothing follows yet. @param {any[]} commands @param {string} typed */
export function hintFor(commands, typed) {
  const name = /^\/(\S+)\s*$/.exec(typed)?.[1];
  return hintOf(commands.find((command) => command.name === name));
}

/** The files that the session is about, as far as they were named in it: the last one first. @param {Session} session @returns {string[]} */
export function filesOf(session) {
  const found = new Set();
  const add = (path) => typeof path === "string" && path && found.size < FILES && found.add(path);
  for (let at = session.items.length - 1; at >= 0 && found.size < FILES; at--) {
    const item = session.items[at];
    for (const call of item.calls ?? []) {
      for (const place of call.locations) add(place.path);
      for (const part of call.content) add(part.type === "diff" ? part.path : undefined);
    }
    for (const part of [item.content, ...(item.parts ?? [])]) if (part?.type === "resource_link" && text(part.uri).startsWith("file://")) add(pathOf(part.uri));
  }
  return [...found];
}

/** @param {string} uri */
function pathOf(uri) {
  try {
    return decodeURIComponent(uri.slice(7));
  } catch {
    return uri.slice(7);
  }
}

/** A path as a person would write it in the session's folder. @param {string} path @param {string | undefined} cwd */
export const shortPath = (path, cwd) => (cwd && cwd !== "/" && path.startsWith(`${cwd}/`) ? path.slice(cwd.length + 1) : path);

/** What is typed after an `@`, up to the cursor; null where none is. @param {string} typed @param {number} caret */
export const fileQuery = (typed, caret) => /(?:^|\s)@([^\s@]*)$/.exec(typed.slice(0, caret))?.[1] ?? null;

/** Files that have what is typed in their name. @param {string[]} files @param {string} query */
export function filesFor(files, query) {
  const wanted = query.toLowerCase();
  const rank = (path) => {
    const at = path.toLowerCase().lastIndexOf(wanted);
    return at < 0 ? -1 : path.toLowerCase().slice(path.lastIndexOf("/") + 1).startsWith(wanted) ? 0 : 1;
  };
  const matching = files.filter((path) => rank(path) >= 0);
  return [...matching.filter((path) => rank(path) === 0), ...matching.filter((path) => rank(path) === 1)].slice(0, SHOWN);
}

/** What is kept of attachments while they wait to be sent, in characters. */
export const KEPT_MAX = 1e6;

/** Those that outlive a reload, written down: all that fit together. Empty if there are none. @param {Attached[]} attached */
export function writtenDown(attached) {
  let room = KEPT_MAX - 2;
  const kept = [];
  for (const one of attached.map((each) => JSON.stringify(each))) {
    if (one.length + 1 > room) continue;
    kept.push(one);
    room -= one.length + 1;
  }
  return kept.length ? `[${kept.join(",")}]` : "";
}

/** What was written down, as far as it has its shape. @param {string | null} written @returns {Attached[]} */
export function readBack(written) {
  try {
    return objects(JSON.parse(written ?? "[]")).filter((one) => typeof one.name === "string" && Number.isFinite(one.size) && objects([one.block]).length === 1 && typeof one.block.type === "string");
  } catch {
    return [];
  }
}

/** The blocks that go along with a text: files that it names, and what was attached. @param {string} typed @param {string[]} files by the names that a person writes @param {string | undefined} cwd @param {Attached[]} attached */
export function partsOf(typed, files, cwd, attached) {
  const named = new Set([...typed.matchAll(/(?:^|\s)@(\S+)/g)].map(([, name]) => name.replace(/[.,;:!?)]+$/, "")));
  const links = files.filter((path) => named.has(shortPath(path, cwd))).map((path) => {
    const full = path.startsWith("/") ? path : `${cwd ?? ""}/${path}`;
    return { type: "resource_link", uri: `file://${full.split("/").map(encodeURIComponent).join("/")}`, name: shortPath(path, cwd) };
  });
  return [...links, ...attached.map((one) => one.block)];
}

const TAKES = table(/** @type {Record<string, [string, string]>} */ ({ image: ["image", "pictures"], audio: ["audio", "sounds"], resource: ["embeddedContext", "files"] }));

/** Why an agent does not take this; empty if it does. @param {any} block @param {any} capabilities what the agent says it takes in prompts @param {number} size of all */
export function whyNot(block, capabilities, size) {
  if (size > ATTACHED_MAX) return `is too much: ${ATTACHED_MAX / 1e6} MB go along with one prompt`;
  const [name, words] = look(TAKES, block.type) ?? ["", "such things"];
  const offered = capabilities?.[name];
  return offered === true || (offered !== null && typeof offered === "object") ? "" : `was not taken: this agent takes no ${words}`;
}

/** What was written in the session before, the last one last, each once. @param {Session} session */
export function historyOf(session) {
  const said = session.items.filter((item) => item.kind === "user" && (item.text ?? "").trim()).map((item) => item.text ?? "");
  return [...new Set(said.reverse())].slice(0, 100).reverse();
}
