// What a form of an agent asks for, read out of its JSON Schema, and what is wrong with what was written into it. Pure.

import { look, table } from "../lib/table.js";
import { objects, text } from "./transcript.js";

/** @typedef {{value: any, title: string}} Choice */
/**
 * `many`: some of the choices, `one`: one of them, `yes`: a box that is ticked or not.
 * @typedef {{name: string, kind: "many" | "one" | "yes" | "number" | "text", label: string, about: string, isRequired: boolean, choices: Choice[], initial: any, type: string, attributes: Record<string, string>, schema: any}} Field
 */

/** So many choices are offered; an agent may name as many as it likes. */
const CHOICES_MAX = 500;
/** A text that is longer than this is not held against a pattern. */
const MATCHED_MAX = 128;
/** How the browser calls a format that it knows; all others are text. */
const TYPES = table({ email: "email", uri: "url", date: "date", "date-time": "datetime-local" });

/** @param {any} requested @returns {Field[]} */
export function fieldsOf(requested) {
  const required = new Set(Array.isArray(requested?.required) ? requested.required : []);
  return Object.entries(requested?.properties ?? {}).filter(([, schema]) => objects([schema]).length).map(([name, schema]) => fieldOf(name, schema, required.has(name)));
}

/** @param {string} name @param {any} schema @param {boolean} isRequired @returns {Field} */
function fieldOf(name, schema, isRequired) {
  const isMany = schema.type === "array";
  const choices = choicesOf(isMany ? (objects([schema.items])[0] ?? {}) : schema);
  const kind = isMany ? "many" : choices.length ? "one" : schema.type === "boolean" ? "yes" : schema.type === "number" || schema.type === "integer" ? "number" : "text";
  const type = kind === "number" ? "number" : (look(TYPES, schema.format) ?? "text");
  const label = text(schema.title) || name;
  return { name, kind, label, about: text(schema.description), isRequired, choices, initial: initialOf(kind, type, schema, choices), type, attributes: attributesOf(kind, schema), schema };
}

/** @param {any} schema @returns {Choice[]} */
function choicesOf(schema) {
  const named = objects(schema.oneOf ?? schema.anyOf).filter((one) => one.const !== undefined).map((one) => ({ value: one.const, title: text(one.title) || String(one.const) }));
  if (named.length) return named.slice(0, CHOICES_MAX);
  const names = Array.isArray(schema.enumNames) ? schema.enumNames : [];
  return (Array.isArray(schema.enum) ? schema.enum : []).slice(0, CHOICES_MAX).map((value, at) => ({ value, title: text(names[at]) || String(value) }));
}

/** What a field has at first: of choices their places, of a time the one of this place. @param {Field["kind"]} kind @param {string} type @param {any} schema @param {Choice[]} choices */
function initialOf(kind, type, schema, choices) {
  const given = schema.default;
  if (kind === "many") return new Set(choices.flatMap(({ value }, at) => (Array.isArray(given) && given.includes(value) ? [at] : [])));
  if (kind === "one") return choices.findIndex(({ value }) => value === given);
  if (kind === "yes") return given === true;
  if (given === undefined || given === null || typeof given === "object") return "";
  return type === "datetime-local" ? localTime(String(given)) : String(given);
}

/** @param {string} given */
function localTime(given) {
  const at = new Date(given);
  return Number.isNaN(at.getTime()) ? "" : new Date(at.getTime() - at.getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
}

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

/** The bounds as the browser knows them. @param {Field["kind"]} kind @param {any} schema @returns {Record<string, string>} */
function attributesOf(kind, schema) {
  const given = kind === "number" ? { min: schema.minimum, max: schema.maximum, step: schema.type === "integer" ? 1 : "any" } : kind === "text" ? { minlength: schema.minLength, maxlength: schema.maxLength } : {};
  const known = Object.entries(given).filter(([, value]) => value === "any" || (isNumber(value) && (kind === "number" || value >= 0)));
  // The browser tries it at every key, so it is given to it where a text stays short.
  const pattern = kind === "text" && schema.maxLength <= MATCHED_MAX ? patternOf(schema.pattern) : null;
  // The browser's has to fit all of the text, the agent's any part of it; and browsers read some classes in another way.
  const isNative = pattern && compiled(pattern.source, "v");
  return Object.fromEntries([...known.map(([name, value]) => [name, String(value)]), ...(isNative ? [["pattern", `[\\s\\S]*(?:${pattern.source})[\\s\\S]*`]] : [])]);
}

/**
 * A pattern of an agent that cannot take the page's time: few parts of it repeat, and none inside each other. Another one is the agent's
 * to check.
 * @param {unknown} given
 */
export function patternOf(given) {
  if (typeof given !== "string" || given.length > 200) return null;
  const bare = given.replace(/\\./g, "x").replace(/\[[^\]]*\]/g, "x");
  const repeats = bare.match(/[*+]|(?<!\()\?|\{\d+,\d*\}|\{\d{3,}\}/g) ?? [];
  if (repeats.length > 3 || /\)[*+{]/.test(bare)) return null;
  return compiled(given, "u") ?? compiled(given, "");
}

/** @param {string} source @param {string} flags */
function compiled(source, flags) {
  try {
    return new RegExp(source, flags);
  } catch {
    return null;
  }
}

/** What was written, as it is sent; `undefined`: nothing. @param {Field} field @param {any} written the places of the choices, a tick, or a text */
export function valueOf({ kind, choices, schema, isRequired, type }, written) {
  if (kind === "many") return written.length === 0 && !isRequired && schema.minItems > 0 ? undefined : written.map((at) => choices[at].value);
  if (kind === "one") return choices[written]?.value;
  if (kind === "yes") return written;
  if (written === "") return undefined;
  if (kind === "number") return Number(written);
  return type === "datetime-local" && !Number.isNaN(Date.parse(written)) ? new Date(written).toISOString() : written;
}

/** What is wrong with a value, in words for a person; empty if nothing is. @param {Field} field @param {any} value as it would be sent */
export function faultOf(field, value) {
  const { kind, schema, isRequired } = field;
  if (value === undefined) return !isRequired ? "" : kind === "one" ? "Choose one of these." : "This is needed.";
  if (kind === "many") return countFault(value.length, schema);
  if (kind === "number") return numberFault(value, schema);
  return kind === "text" ? textFault(field, value) : "";
}

/** @param {number} count @param {any} schema */
function countFault(count, { minItems, maxItems }) {
  if (isNumber(minItems) && count < minItems) return `Choose at least ${minItems}.`;
  return isNumber(maxItems) && count > maxItems ? `Choose at most ${maxItems}.` : "";
}

/** @param {number} value @param {any} schema */
function numberFault(value, { type, minimum, maximum, exclusiveMinimum, exclusiveMaximum }) {
  if (!isNumber(value)) return "This is not a number.";
  if (type === "integer" && !Number.isInteger(value)) return "Only whole numbers are taken.";
  if (isNumber(minimum) && value < minimum) return `It must be at least ${minimum}.`;
  if (isNumber(maximum) && value > maximum) return `It must be at most ${maximum}.`;
  if (isNumber(exclusiveMinimum) && value <= exclusiveMinimum) return `It must be more than ${exclusiveMinimum}.`;
  return isNumber(exclusiveMaximum) && value >= exclusiveMaximum ? `It must be less than ${exclusiveMaximum}.` : "";
}

const FORMATS = table(/** @type {Record<string, [(value: string) => boolean, string]>} */ ({
  email: [(value) => /^[^\s@]+@[^\s@]+$/.test(value), "This is not an e-mail address."],
  uri: [(value) => URL.canParse(value), "This is not an address, with what it begins with."],
  date: [(value) => /^\d{4}-\d\d-\d\d$/.test(value) && !Number.isNaN(Date.parse(value)), "This is not a date such as 2030-12-31."],
  "date-time": [(value) => !Number.isNaN(Date.parse(value)), "This is not a date with a time."],
}));

/** @param {Field} field @param {string} value */
function textFault({ schema }, value) {
  const { minLength, maxLength } = schema;
  const length = [...value].length;
  if (isNumber(minLength) && length < minLength) return `It must have at least ${minLength} characters.`;
  if (isNumber(maxLength) && length > maxLength) return `It must have at most ${maxLength} characters.`;
  const [fits, words] = look(FORMATS, schema.format) ?? [];
  if (fits && !fits(value)) return words ?? "";
  const pattern = length <= MATCHED_MAX ? patternOf(schema.pattern) : null;
  return pattern && !pattern.test(value) ? `It must fit the pattern ${pattern.source}` : "";
}
