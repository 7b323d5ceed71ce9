// What an agent wants to do, read out of its question. Pure. Every field of the input is in what is returned, so that nothing can be
// allowed that was not shown.

import { cut } from "../lib/text.js";
import { diff } from "../lib/diff.js";
import { look, table } from "../lib/table.js";

/** @typedef {import("./transcript.js").ToolCall} ToolCall */
/** @typedef {{kind: "command" | "title" | "where" | "field" | "diff" | "text" | "places", text: string, name?: string, part?: any, isLong: boolean, isRisky?: boolean}} Block */

/** A question with more characters than this is not shown as a whole, and so cannot be allowed here. */
export const SHOWN_MAX = 1 << 20;
/** A diff with more lines than this is folded. */
const DIFF_LINES = 60;
const PLACES = 8;

const COMMANDS = ["command", "cmd", "script"];
const FOLDERS = ["cwd", "workdir"];
const RISKY = /danger|disable|bypass|unsafe|force|skip|sudo|escalat|unsandboxed/i;

/** @param {unknown} value */
const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

/** A value as text: what is text stays as it is. @param {unknown} value */
const written = (value) => (typeof value === "string" ? value : (JSON.stringify(value, null, 2) ?? String(value)));

/** A word of a command line, as a shell would take it. @param {unknown} word */
function quoted(word) {
  const text = written(word);
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

/** The line that an input would run, and the names of the fields that are in it. @param {any} input @returns {{line: string, names: string[]}} */
function lineOf(input) {
  const none = { line: "", names: [] };
  if (!isObject(input)) return none;
  const name = COMMANDS.find((one) => (typeof input[one] === "string" ? input[one] : Array.isArray(input[one]) && input[one].length));
  if (!name) return none;
  const line = Array.isArray(input[name]) ? input[name].map(quoted).join(" ") : input[name];
  if (Array.isArray(input.args)) return { line: [line, ...input.args.map(quoted)].join(" "), names: [name, "args"] };
  return typeof input.args === "string" ? { line: `${line} ${input.args}`, names: [name, "args"] } : { line, names: [name] };
}

/** The command of a call with its arguments, as far as it tells them. @param {ToolCall} call */
export const commandOf = (call) => lineOf(call.input).line;

/** @type {WeakMap<any, ReturnType<typeof diff>>} */
const diffs = new WeakMap();

/** The lines of a diff that an agent sent; worked out once. @param {any} part */
export function diffOf(part) {
  const known = diffs.get(part);
  if (known) return known;
  const found = diff(part.oldText, part.newText);
  diffs.set(part, found);
  return found;
}

/** @param {Block["kind"]} kind @param {string} text @param {Partial<Block>} [more] @returns {Block} */
const block = (kind, text, more) => ({ kind, text, isLong: cut(text) !== null, ...more });

/** All that is asked for, in the order in which it is shown. @param {ToolCall} call @param {string} [folder] where the session is @returns {Block[]} */
export function blocksOf(call, folder) {
  const { input } = call;
  const { line, names } = lineOf(input);
  const at = isObject(input) ? FOLDERS.find((one) => typeof input[one] === "string") : undefined;
  const where = at ? input[at] : (folder ?? "");
  // Some agents put the command into the content too, for clients that show nothing else.
  const parts = call.content.flatMap((part) => contentBlock(part)).filter((one) => one.kind !== "text" || !line || one.text.trim() !== line.trim());
  const places = call.locations.map((place) => `${place.path}${place.line ? `:${place.line}` : ""}`);
  const out = [];
  if (line) out.push(block("command", line));
  // Some agents put the command into the title too, as Markdown writes code.
  if (call.title && call.title.replace(/^`+|`+$/g, "") !== line) out.push(block("title", call.title));
  if (where) out.push(block("where", where));
  const isShown = shownElsewhere(call, parts);
  for (const [name, value] of fieldsOf(input)) {
    if (names.includes(name) || name === at || isShown(value)) continue;
    out.push(block("field", fieldText(name, value), { name, isRisky: RISKY.test(name) && !!value }));
  }
  const others = places.filter((place) => !parts.some((one) => one.part?.path === place));
  if (others.length) out.push({ kind: "places", text: others.join("\n"), isLong: others.length > PLACES });
  return [...out, ...parts];
}

/** @param {any} input @returns {[string, any][]} */
function fieldsOf(input) {
  if (input === undefined || input === null) return [];
  return isObject(input) ? Object.entries(input) : [["input", input]];
}

/** @param {string} name @param {any} value */
function fieldText(name, value) {
  if (name === "env" && isObject(value)) return Object.entries(value).map(([key, one]) => `${key}=${quoted(one)}`).join("\n");
  return written(value);
}

/** Whether a value is among what is shown anyway: agents tell a change both as input and as a diff. @param {ToolCall} call @param {Block[]} parts */
function shownElsewhere(call, parts) {
  const shown = new Set([call.title]);
  for (const { part } of parts) for (const value of [part?.path, part?.oldText, part?.newText]) shown.add(value);
  for (const place of call.locations) shown.add(place.path);
  return (value) => typeof value === "string" && value !== "" && shown.has(value);
}

/** @param {any} part @returns {Block[]} */
function contentBlock(part) {
  if (part.type === "diff" && typeof part.newText === "string") {
    return [{ kind: "diff", text: `${part.oldText ?? ""}${part.newText}`, part, isLong: diffOf(part).lines.length > DIFF_LINES }];
  }
  if (part.type === "terminal") return [block("text", "in a terminal of its client")];
  const content = part.content ?? part;
  const text = content.type === "text" && typeof content.text === "string" ? content.text : written(content);
  return text ? [block("text", text)] : [];
}

/** @param {Block[]} blocks */
export const sizeOf = (blocks) => blocks.reduce((sum, one) => sum + one.text.length, 0);

const VERBS = table({ execute: "run a command", edit: "change a file", delete: "delete a file", move: "move a file", fetch: "fetch from the network", switch_mode: "switch its mode" });

/**
 * What the agent wants to do, in words. A command or a change in the question counts more than what the agent calls it, and a kind
 * that sounds harmless is only quoted.
 * @param {ToolCall} call
 * @param {Block[]} blocks
 */
export function verbOf(call, blocks) {
  const files = blocks.filter((one) => one.kind === "diff").length;
  if (blocks.some((one) => one.kind === "command")) return files ? "run a command and change files" : "run a command";
  if (files) return files === 1 ? "change a file" : `change ${files} files`;
  return look(VERBS, call.kind) ?? (call.kind && call.kind !== "other" ? `do this, which it calls “${call.kind}”` : "do this");
}

const REFUSALS = new Set(["reject_once", "reject_always"]);

/** Whether an answer refuses. Whatever does not say so may allow. @param {any} option */
export const refuses = (option) => REFUSALS.has(option?.kind);

/** An answer whose name says the opposite of what it does. @param {any} option */
export function misleads(option) {
  const name = String(option.name ?? "").replace(/\b(?:do not|don.t|never|not|without)\s+(?:ask|prompt|confirm)\w*/gi, "");
  const isNo = /\b(deny|reject|refuse|no|not|never|cancel|don.t)\b/i.test(name);
  return refuses(option) ? !isNo : String(option.kind).startsWith("allow") && isNo;
}

/** What an answer came to. @param {any} option @returns {"allowed" | "denied" | "answered"} */
export const verdictOf = (option) => (refuses(option) ? "denied" : String(option?.kind).startsWith("allow") ? "allowed" : "answered");
