// Small parts that many views use.

import { asJson, classWord, h } from "../lib/dom.js";
import { ago, count, visible } from "../lib/text.js";
import { explain } from "../lib/explain.js";
import { look, table } from "../lib/table.js";
import { dispatch } from "../state/app.js";

/** <sb-ago>: how long ago, kept up to date. */
export class Ago extends HTMLElement {
  static get observedAttributes() {
    return ["at"];
  }
  connectedCallback() {
    clocks.add(this);
    this.show();
  }
  disconnectedCallback() {
    clocks.delete(this);
  }
  attributeChangedCallback() {
    this.show();
  }
  show() {
    const at = Number(this.getAttribute("at"));
    this.textContent = at ? ago((Date.now() - at) / 1000) : "";
    this.title = at ? new Date(at).toLocaleString() : "";
  }
}

/** @type {Set<Ago>} */
const clocks = new Set();
customElements.define("sb-ago", Ago);
setInterval(() => clocks.forEach((one) => one.show()), 1000);

/** @param {number} at */
export const since = (at) => h("sb-ago", { class: "num muted", at: String(at) });

const GLYPHS = table(/** @type {Record<string, [string, string]>} */ ({
  waiting: ["◆", "waits for you"], running: ["●", "at work"], idle: ["○", "idle"], kept: ["◌", "kept for a client that left"], lost: ["✕", "lost with its process"],
  up: ["●", "up"], starting: ["◐", "starting"], initializing: ["◐", "being initialized"], resting: ["◌", "resting before a restart"], retiring: ["◌", "to be replaced"], stopping: ["◌", "stopping"], broken: ["✕", "broken"],
}));

/** A state as a glyph with a name. @param {string} state */
export function glyph(state) {
  const [sign, name] = look(GLYPHS, state) ?? ["○", String(state)];
  return h("span", { class: `glyph is-${classWord(state)}`, role: "img", "aria-label": name, title: name }, sign);
}

/** @param {{title: string, text: any, command?: string}} props */
export const Empty = ({ title, text, command }) =>
  h("div", { class: "empty" }, h("h2", null, title), h("p", null, text), command ? h("p", null, h("code", { class: "command" }, command)) : null);

/** An error, with what to do. @param {{error: any}} props */
export function ErrorBox({ error }) {
  const { what, bus, todo, detail, stderr, reason } = explain(error);
  return h(
    "div",
    { class: "error-box" },
    h("div", { class: "error-head" }, h("span", { class: "glyph is-broken", role: "img", "aria-label": "failed" }, "✕"), h("strong", null, what), reason ? h("span", { class: "mono muted" }, reason) : null),
    detail ? h("p", { class: "mono" }, visible(detail)) : null,
    bus ? h("p", { class: "muted" }, bus) : null,
    todo ? h("p", null, withCode(todo)) : null,
    stderr.length ? h("details", null, h("summary", null, "the last lines of its stderr"), h("pre", { class: "code", tabindex: "0" }, visible(stderr.join("\n")))) : null,
  );
}

/** @param {string} text */
export const withCode = (text) => text.split("`").map((part, at) => (at % 2 ? h("code", null, part) : part));

/** A line that opens and closes what is below it. @param {string} session @param {any} item @param {string} sign @param {any} words */
export const fold = (session, item, sign, words) =>
  h("button", { class: "fold-line", type: "button", "aria-expanded": String(!!item.open), onclick: () => dispatch({ type: "toggle", session, key: item.key, open: !item.open }) }, h("span", { "aria-hidden": "true" }, sign), words);

/** What is left of an account. Agents name its parts in many ways; all that is said is one click away. @param {{update: any}} props */
export function Quota({ update }) {
  const rows = quotaRows(update);
  return h("details", { class: "quota muted" }, h("summary", null, "quota ", rows.length ? rows.map((row, key) => h("span", { key, class: "num" }, visible(row), " ")) : null), h("pre", { class: "code", tabindex: "0" }, visible(asJson(update, 20_000))));
}

/** @param {any} update @returns {string[]} */
function quotaRows(update) {
  const lists = [update, ...Object.values(update ?? {}).filter(Array.isArray).flat()].filter((one) => one !== null && typeof one === "object");
  const rows = lists.map((one) => {
    const [used, limit] = [one.used ?? one.usedPercent, one.limit ?? one.size ?? one.total];
    if (typeof used !== "number") return "";
    const name = [one.title, one.name, one.label, one.id].find((word) => typeof word === "string") ?? "";
    const resets = [one.resetsAt, one.resetAt].find((word) => typeof word === "string");
    return `${name ? `${name}: ` : ""}${count(used)}${typeof limit === "number" ? ` of ${count(limit)}` : one.used === undefined ? " %" : ""}${resets ? `, again at ${resets}` : ""}`;
  });
  return rows.filter(Boolean).slice(0, 4);
}

/** A line of a few points, as tall as the text. @param {{points: number[], label: string}} props */
export function Spark({ points, label }) {
  const top = Math.max(1, ...points);
  const step = 60 / 59;
  const from = 60 - points.length;
  const path = points.map((value, at) => `${at ? "L" : "M"}${((from + at) * step).toFixed(1)} ${(17 - (value / top) * 15).toFixed(1)}`).join("");
  return h("svg", { class: "spark", viewBox: "0 0 60 18", preserveAspectRatio: "none", role: "img", "aria-label": label }, h("path", { d: path || "M0 17" }));
}

/** Copies and says so. @param {string} text @param {(text: string) => void} say */
export function copy(text, say) {
  navigator.clipboard?.writeText(text).then(() => say("is copied"), () => say("could not be copied"));
}

/** What a field has at first; from then on it is the person's. @param {string} name @param {any} value @returns {(el: any) => void} */
export const begins = (name, value) => (el) => {
  el[name] = value;
};
