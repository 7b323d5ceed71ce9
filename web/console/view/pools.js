// Pools and workers at one glance.

import { asJson, classes, h } from "../lib/dom.js";
import { ago, bytes, count, duration, plural, visible } from "../lib/text.js";
import { attempt, bus, dispatch } from "../state/app.js";
import { Empty, glyph, Quota, Spark } from "./parts.js";

/** @param {{state: import("../state/reduce.js").State}} props */
export function Pools({ state }) {
  const { status, trends, openPools } = state;
  if (!status) return h("section", { class: "page" }, h("h1", null, "Pools"), h("p", { class: "muted" }, "looking …"));
  const used = new Map((status.usage?.pools ?? []).map((one) => [one.pool, spent(one)]));
  return h(
    "section",
    { class: "pools page wide", "aria-label": "pools" },
    h("h1", null, "Pools"),
    h(Summary, { status }),
    status.pools.length === 0 ? h(Empty, { title: "No agents yet", text: "This adds those of this machine:", command: "stdio-bus detect --write" }) : null,
    h(
      "div",
      { class: "scroll", tabindex: "0", role: "region", "aria-label": "table of pools" },
      h(
        "table",
        { class: "pool-table" },
        h("thead", null, h("tr", null, ["Pool", "Processes", "Sessions", "Calls", "p50", "p99", "Last minute", "Memory", "Restarts", "Used", "Last error"].map((name) => h("th", { key: name, scope: "col" }, name)))),
        h("tbody", null, status.pools.flatMap((pool) => rows(pool, trends[pool.id] ?? [], !!openPools[pool.id], used.get(pool.id) ?? ""))),
      ),
    ),
    accounts(state.account),
    h(Usage, { usage: state.past.usage }),
    refusals(status),
  );
}

/** What agents have told of their accounts: quotas and logins. @param {Record<string, {told: any, at: number}>} account */
function accounts(account) {
  const kinds = Object.keys(account).slice(0, 20);
  if (kinds.length === 0) return null;
  return h("section", { class: "accounts", "aria-label": "accounts" }, h("h2", null, "Accounts"), kinds.map((kind) => h("div", { key: kind }, kind.includes("quota") ? h(Quota, { update: account[kind].told }) : h("details", { class: "muted" }, h("summary", null, visible(kind)), h("pre", { class: "code", tabindex: "0" }, visible(asJson(account[kind].told, 20_000)))))));
}

/** @param {{status: any}} props */
function Summary({ status }) {
  const facts = [
    ["up", ago(status.uptime_sec)], ["clients", status.clients], ["sessions", status.sessions], ["calls", status.calls],
    ["requests/s", count(status.rates?.requests ?? 0)], ["in/s", bytes(Math.round(status.rates?.bytes_in ?? 0))], ["out/s", bytes(Math.round(status.rates?.bytes_out ?? 0))], ["held", bytes(status.held_bytes ?? 0)],
  ];
  return h("dl", { class: "facts" }, facts.map(([name, value]) => h("div", { key: name }, h("dt", null, name), h("dd", { class: "num" }, value))));
}

const DAYS = 14;

/** Tokens of all kinds. @param {any} one */
const tokensOf = (one) => Object.values(one?.tokens ?? {}).reduce((all, tokens) => all + (Number(tokens) || 0), 0);

/** What was used, in words. How full a context is, is not among it. @param {any} one */
function spent(one) {
  const tokens = tokensOf(one);
  const cost = Object.entries(one?.cost ?? {}).map(([currency, amount]) => `${Number(amount).toFixed(2)} ${currency}`);
  return [...(tokens ? [`${count(tokens)} tokens`] : []), ...cost].join(" · ");
}

/** What agents have reported of the last days: tokens, or cost where none of them reports tokens. @param {{usage: any}} props */
function Usage({ usage }) {
  const told = Array.isArray(usage?.days) ? usage.days : [];
  if (told.length === 0) return h("p", { hidden: true });
  const days = Array.from({ length: DAYS }, (_, at) => {
    const day = new Date(Date.now() - (DAYS - 1 - at) * 86_400_000).toISOString().slice(0, 10);
    return told.find((one) => one.day === day) ?? { day };
  });
  const costOf = (one) => Number(Object.values(one.cost ?? {})[0] ?? 0);
  const value = days.some(tokensOf) ? tokensOf : costOf;
  const most = Math.max(...days.map(value)) || 1;
  const words = (day) => `${day.day}: ${spent(day) || "nothing"}`;
  const pools = Array.isArray(usage.pools) ? usage.pools : [];
  return h(
    "section",
    { class: "usage", "aria-label": "usage" },
    h("h2", null, "Used in the last fourteen days"),
    h("p", { class: "muted" }, spent(usage.total), pools.length > 1 ? pools.map((pool) => h("span", { key: pool.pool }, ` · ${visible(pool.pool)}: ${spent(pool)}`)) : null),
    h("div", { class: "usage-plot", role: "img", "aria-label": days.map(words).join("; ") }, days.map((day) => h("span", { key: day.day, class: "usage-day", title: words(day), css: { height: value(day) ? `${Math.max(2, (value(day) / most) * 100)}%` : "0" } }))),
    h("div", { class: "usage-days num", "aria-hidden": "true" }, days.map((day) => h("span", { key: day.day }, day.day.slice(8)))),
  );
}

/** @param {any} pool @param {any[]} trend @param {boolean} isOpen @param {string} used */
function rows(pool, trend, isOpen, used) {
  const room = pool.max_sessions * Math.max(pool.max_instances, pool.workers.length, 1);
  const memory = pool.workers.reduce((sum, worker) => sum + (worker.rss_bytes ?? 0), 0);
  const broken = pool.workers.find((worker) => worker.last_words && worker.state !== "up");
  const micro = (us) => (us ? duration(us / 1000) : "–");
  const share = Math.min(100, (pool.sessions / room) * 100);
  return [
    h(
      "tr",
      { key: pool.id, class: classes("pool-row", pool.broken > 0 && "is-broken") },
      h("th", { scope: "row" }, h("button", { class: "fold-line", type: "button", "aria-expanded": String(isOpen), onclick: () => dispatch({ type: "pool", id: pool.id }) }, h("span", { "aria-hidden": "true" }, isOpen ? "▾ " : "▸ "), visible(pool.id))),
      h("td", { class: "dots" }, pool.workers.length ? pool.workers.map((worker) => h("span", { key: worker.worker }, glyph(worker.state))) : h("span", { class: "muted" }, "none yet")),
      h("td", { class: "num" }, h("span", { class: "room", title: `${pool.sessions} of ${room} that there is room for` }, h("span", { class: "room-bar", css: { width: `${share}%` } })), String(pool.sessions)),
      h("td", { class: "num" }, String(pool.calls)),
      h("td", { class: "num" }, micro(pool.latency_us?.p50)),
      h("td", { class: "num" }, micro(pool.latency_us?.p99)),
      h("td", null, h(Spark, { points: trend.map((one) => one.rate), label: `requests a second, now ${count(trend.at(-1)?.rate ?? 0)}` })),
      h("td", { class: "num" }, memory ? bytes(memory) : "–"),
      h("td", { class: "num" }, String(pool.restarts)),
      h("td", { class: "num" }, used || "–"),
      h("td", { class: "muted last" }, broken ? visible(String(broken.last_words)) : "–"),
    ),
    isOpen ? h("tr", { key: `${pool.id} workers`, class: "workers" }, h("td", { colspan: "11" }, h(Workers, { pool }))) : null,
  ];
}

/** @param {{pool: any}} props */
function Workers({ pool }) {
  return h(
    "div",
    { class: "worker-list" },
    pool.workers.length === 0 ? h("p", { class: "muted" }, "No process runs; one is started with the first use.") : null,
    pool.workers.length > 1 ? h("div", { class: "worker-line" }, h("span", { class: "muted" }, "all of them"), replaceButtons(pool.id, { pool: pool.id })) : null,
    pool.workers.map((worker) =>
      h(
        "div",
        { key: worker.worker, class: "worker" },
        h("div", { class: "worker-line" }, glyph(worker.state), h("strong", null, `${pool.id}/${worker.worker}`), h("span", null, worker.drain ? `${worker.state}, drains` : worker.state), fact("node", worker.node), fact("pid", worker.pid), fact("up", worker.up_sec === null || worker.up_sec === undefined ? null : ago(worker.up_sec)), fact("sessions", worker.sessions), fact("calls", worker.calls), fact("restarts", worker.restarts), worker.rss_bytes ? fact("memory", bytes(worker.rss_bytes)) : null, worker.cpu_percent === undefined || worker.cpu_percent === null ? null : fact("cpu", `${worker.cpu_percent} %`), fact("last exit", worker.last_exit), fact("replaced for", worker.last_recycled), worker.pid ? replaceButtons(`${pool.id}/${worker.worker}`, { pool: pool.id, worker: worker.worker }) : null),
        worker.last_words ? h("pre", { class: "code", tabindex: "0" }, visible(String(worker.last_words))) : null,
      ),
    ),
  );
}

/** Replaces processes, for those who may. @param {string} name @param {{pool: string, worker?: number}} whose */
function replaceButtons(name, whose) {
  if (!bus.may("admin")) return null;
  const ask = (method, title, text, label) =>
    dispatch({ type: "dialog", dialog: { kind: "confirm", title, text, label, act: () => attempt(() => bus.ask(method, whose)) } });
  return h(
    "span",
    { class: "worker-acts" },
    h("button", { class: "button small", type: "button", "aria-label": `restart ${name}`, onclick: () => ask("_bus/restart", `Restart ${name}?`, "Sessions go on in a new process where the agent can load them. Turns get a moment to end.", "Restart") }, "Restart"),
    h("button", { class: "button small", type: "button", "aria-label": `drain ${name}`, onclick: () => ask("_bus/drain", `Drain ${name}?`, "It gets no new sessions, and ends when it has none left.", "Drain") }, "Drain"),
  );
}

/** @param {string} name @param {any} value */
const fact = (name, value) => (value === null || value === undefined || value === "" ? null : h("span", { class: "num" }, h("span", { class: "muted" }, `${name} `), String(value)));

/** @param {any} status */
function refusals(status) {
  const list = Object.entries({ ...status.refused, ...status.skipped }).filter(([, number]) => Number(number) > 0);
  if (list.length === 0) return null;
  return h("p", { class: "muted refused" }, "Not carried since the start: ", list.map(([reason, number]) => h("span", { key: reason }, `${plural(Number(number), "×").replace("×s", "×")} ${reason} `)));
}
