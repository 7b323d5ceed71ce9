// Pools and workers at one glance.

import { classes, h } from "../lib/dom.js";
import { ago, bytes, count, duration, plural, visible } from "../lib/text.js";
import { attempt, bus, dispatch } from "../state/app.js";
import { Empty, glyph, Spark } from "./parts.js";

/** @param {{state: import("../state/reduce.js").State}} props */
export function Pools({ state }) {
  const { status, trends, openPools } = state;
  if (!status) return h("section", { class: "page" }, h("h1", null, "Pools"), h("p", { class: "muted" }, "looking …"));
  const spent = spentBy(state);
  return h(
    "section",
    { class: "pools page wide", "aria-label": "pools" },
    h("h1", null, "Pools"),
    h(Summary, { status }),
    status.pools.length === 0 ? h(Empty, { title: "No agents yet", text: "This adds those of this machine:", command: "stdio-bus detect --write" }) : null,
    h(
      "div",
      { class: "scroll", tabindex: "0", role: "region", "aria-label": "pools" },
      h(
        "table",
        { class: "pool-table" },
        h("thead", null, h("tr", null, ["Pool", "Processes", "Sessions", "Calls", "p50", "p99", "Last minute", "Memory", "Restarts", "Used", "Last error"].map((name) => h("th", { key: name, scope: "col" }, name)))),
        h("tbody", null, status.pools.flatMap((pool) => rows(pool, trends[pool.id] ?? [], !!openPools[pool.id], spent.get(pool.id)))),
      ),
    ),
    refusals(status),
  );
}

/** @param {{status: any}} props */
function Summary({ status }) {
  const facts = [
    ["up", ago(status.uptime_sec)], ["clients", status.clients], ["sessions", status.sessions], ["calls", status.calls],
    ["requests/s", count(status.rates?.requests ?? 0)], ["in/s", bytes(Math.round(status.rates?.bytes_in ?? 0))], ["out/s", bytes(Math.round(status.rates?.bytes_out ?? 0))], ["held", bytes(status.held_bytes ?? 0)],
  ];
  return h("dl", { class: "facts" }, facts.map(([name, value]) => h("div", { key: name }, h("dt", null, name), h("dd", { class: "num" }, value))));
}

/** What this page has seen sessions use, by pool. @param {any} state @returns {Map<string, {tokens: number, cost: number, currency: string}>} */
function spentBy(state) {
  const sums = new Map();
  for (const session of Object.values(/** @type {Record<string, any>} */ (state.sessions))) {
    const pool = state.list.find((view) => view.session === session.label)?.pool;
    const used = session.usage;
    if (!pool || !used) continue;
    const sum = sums.get(pool) ?? { tokens: 0, cost: 0, currency: "" };
    sums.set(pool, { tokens: sum.tokens + (used.totalTokens ?? used.used ?? 0), cost: sum.cost + (used.cost?.amount ?? 0), currency: used.cost?.currency ?? sum.currency });
  }
  return sums;
}

/** @param {any} pool @param {any[]} trend @param {boolean} isOpen @param {any} used */
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
      h("td", { class: "num" }, used ? `${count(used.tokens)}${used.cost ? ` · ${used.cost.toFixed(2)} ${used.currency}` : ""}` : "–"),
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
