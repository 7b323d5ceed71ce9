// What the agent of each pool offers, as far as a session of it was seen, and the folders that were used last. Pure.

import { look, put, table } from "../lib/table.js";
import { objects } from "./transcript.js";

/** @typedef {{modes: any, models: any, options: any[], info: any, capabilities: any}} Offer */

const FOLDERS = 8;
/** What is longer than this is not kept. */
const LONGEST = 40_000;

/** @param {Record<string, Offer>} offers @param {string} pool @param {Partial<Offer>} more */
export function offered(offers, pool, more) {
  const before = look(offers, pool) ?? { modes: null, models: null, options: [], info: null, capabilities: null };
  const next = { ...before, ...Object.fromEntries(Object.entries(more).filter(([, value]) => value !== undefined && value !== null)) };
  return JSON.stringify(next).length > LONGEST ? offers : put(offers, pool, next);
}

/** What was kept, as far as it makes sense. @param {unknown} kept @returns {Record<string, Offer>} */
export function readOffers(kept) {
  let offers = table();
  for (const [pool, offer] of Object.entries(kept !== null && typeof kept === "object" ? kept : {})) {
    if (offer !== null && typeof offer === "object") offers = offered(offers, pool, { ...offer, options: objects(offer.options) });
  }
  return offers;
}

/** The last folders, the newest first. @param {unknown} kept @param {string} [newest] @returns {string[]} */
export function lastFolders(kept, newest) {
  const before = Array.isArray(kept) ? kept.filter((one) => typeof one === "string" && one.startsWith("/")) : [];
  return [...new Set(newest ? [newest, ...before] : before)].slice(0, FOLDERS);
}

/** @param {Offer | undefined} offer @param {string} name such as `fork` or `title` */
export const can = (offer, name) => {
  const value = offer?.capabilities?.sessionCapabilities?.[name] ?? offer?.capabilities?.session?.[name];
  return value !== undefined && value !== null && value !== false;
};

/** What an agent is and does, in a few words. @param {Offer | undefined} offer */
export function offerWords(offer) {
  const { info, capabilities } = offer ?? {};
  const takes = capabilities?.promptCapabilities ?? capabilities?.session?.prompt ?? {};
  const kinds = [["image", "pictures"], ["audio", "sounds"], ["embeddedContext", "files"]].filter(([name]) => takes?.[name]).map(([, words]) => words);
  const does = [capabilities?.loadSession && "opens past sessions", can(offer, "fork") && "forks"].filter(Boolean);
  const name = [info?.title ?? info?.name, info?.version].filter((word) => typeof word === "string").join(" ");
  return [name, kinds.length ? `takes ${kinds.join(", ")}` : "", ...does].filter(Boolean).join(" · ");
}

/** What can be chosen for a new session: each with its values and the one that it has by itself. @param {Offer | undefined} offer @returns {{what: "mode" | "model" | "option", id: string, name: string, values: [any, string][], current: any}[]} */
export function choicesOf(offer) {
  const out = /** @type {ReturnType<typeof choicesOf>} */ ([]);
  const modes = objects(offer?.modes?.availableModes);
  const models = objects(offer?.models?.availableModels);
  if (modes.length) out.push({ what: "mode", id: "mode", name: "Mode", values: modes.map((one) => [one.id, String(one.name ?? one.id)]), current: offer?.modes.currentModeId });
  if (models.length) out.push({ what: "model", id: "model", name: "Model", values: models.map((one) => [one.modelId, String(one.name ?? one.modelId)]), current: offer?.models.currentModelId });
  for (const option of objects(offer?.options)) {
    const id = option.id ?? option.configId;
    if (typeof id !== "string" || (option.category === "mode" && modes.length)) continue;
    const flat = objects(option.options).flatMap((one) => (one.options ? objects(one.options) : [one]));
    const values = option.type === "boolean" ? [[true, "on"], [false, "off"]] : flat.map((one) => [one.value, String(one.name ?? one.value)]);
    if (values.length) out.push({ what: "option", id, name: String(option.name ?? id), values: /** @type {[any, string][]} */ (values), current: option.currentValue });
  }
  return out;
}
