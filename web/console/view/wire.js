// The wire: who says what to whom, as it happens.

import { classes, h } from "../lib/dom.js";
import { bytes, clock, count, duration, plain, visible } from "../lib/text.js";
import { bus, dispatch, go } from "../state/app.js";
import { filterRows, isError, turnBars } from "../state/wire.js";
import { ErrorBox } from "./parts.js";
import { Waterfall } from "./waterfall.js";
import "../lib/list.js";

/** @param {{state: import("../state/reduce.js").State}} props */
export function Wire({ state }) {
  const { wire, wireOn, filters } = state;
  const rows = filterRows(wire.rows, filters.wire);
  const picked = state.wireRow === null ? undefined : wire.rows[state.wireRow - (wire.rows[0]?.key ?? 0)];
  const row = (one) => h(Row, { row: one, base: wire.base, isPicked: one.key === state.wireRow });
  return h(
    "section",
    { class: "wire", "aria-label": "the wire" },
    h(
      "div",
      { class: "list-head" },
      h("h1", null, "Wire"),
      h("input", { class: "filter", type: "search", placeholder: "Filter: s17, prompt, error, slow, open", "aria-label": "filter the wire", value: filters.wire, oninput: (event) => dispatch({ type: "filter", place: "wire", text: event.target.value }) }),
      h("button", { class: classes("button", wireOn && "is-on"), type: "button", "aria-pressed": String(wireOn), onclick: () => bus.trace(!wireOn) }, wireOn ? "Pause" : "Follow"),
      h("button", { class: "button", type: "button", onclick: () => dispatch({ type: "wireClear" }) }, "Clear"),
      h("span", { class: "num muted" }, `${count(wire.events)} lines${wire.dropped ? `, ${count(wire.dropped)} left out` : ""}`),
    ),
    h("div", { class: "wire-names", "aria-hidden": "true" }, ["Time", "From → to", "Method", "Session", "Id", "Bytes", "Took"].map((name) => h("span", { key: name }, name))),
    rows.length ? h("sb-list", { class: "wire-list", data: { items: rows, row, keyOf, fixed: 28, follow: true, label: "messages" } }) : h("p", { class: "muted pad" }, wireOn ? (filters.wire ? "None matches." : "Nothing is said at the moment.") : "Nobody follows the traffic."),
    picked ? h(Detail, { row: picked, rows: wire.rows, base: wire.base }) : null,
  );
}

const keyOf = (row) => row.key;

/** Both ends of a line, by name. @param {any} row */
function ends(row) {
  const worker = row.pool ? `${row.pool}/${row.worker ?? "?"}` : "worker";
  const name = (end) => (end === "client" ? (row.client ?? "client") : end === "worker" ? worker : end);
  return String(row.direction ?? "").split("->").map(name);
}

/** @param {{row: any, base: number, isPicked: boolean}} props */
function Row({ row, base, isPicked }) {
  const [from, to] = ends(row);
  const hasFailed = isError(row);
  const isOpen = row.kind === "request" && !row.answer;
  const rate = row.count > 1 && row.last > row.at ? ` · ${count(((row.count - 1) * 1e6) / (row.last - row.at))}/s` : "";
  return h(
    "button",
    { class: classes("wire-row", hasFailed && "is-failed", isPicked && "is-here"), type: "button", "aria-expanded": String(isPicked), onclick: () => dispatch({ type: "wireRow", key: row.key }) },
    h("span", { class: "num muted" }, clock(base + row.at / 1000)),
    h("span", { class: "ellipsis" }, visible(plain(from)), " → ", visible(plain(to))),
    h("span", { class: "mono ellipsis" }, row.count > 1 ? h("span", { class: "run num" }, `${row.count} × `) : null, visible(row.method || row.kind), h("span", { class: "muted num" }, rate), hasFailed ? h("span", { class: "reason" }, ` ${row.answer?.reason ?? row.reason ?? row.answer?.code ?? row.code ?? "error"}`) : null),
    h("span", { class: "mono muted" }, visible(String(row.session ?? ""))),
    h("span", { class: "mono muted ellipsis" }, row.id === undefined ? "" : visible(String(typeof row.id === "string" ? row.id : JSON.stringify(row.id)))),
    h("span", { class: "num muted" }, bytes(row.bytes)),
    h("span", { class: classes("num", (row.latency ?? 0) > 1e6 && "is-slow") }, row.latency !== null ? duration(row.latency / 1000) : isOpen ? "open" : ""),
  );
}

/** @param {{row: any, rows: any[], base: number}} props */
function Detail({ row, rows, base }) {
  const { answer } = row;
  const isTurn = row.method === "session/prompt";
  const error = isError(row) ? { message: "", code: answer?.code ?? row.code, data: { reason: answer?.reason ?? row.reason } } : null;
  return h(
    "aside",
    { class: "wire-detail", "aria-label": "message" },
    h("div", { class: "detail-head" }, h("strong", { class: "mono" }, visible(row.method || row.kind)), h("span", { class: "num muted" }, clock(base + row.at / 1000)), h("span", { class: "spacer" }), row.session ? h("button", { class: "button small", type: "button", onclick: () => go("sessions", row.session) }, `Open ${row.session}`) : null, h("button", { class: "button small", type: "button", "aria-label": "close", onclick: () => dispatch({ type: "wireRow", key: row.key }) }, "✕")),
    error ? h(ErrorBox, { error }) : null,
    isTurn ? h(Waterfall, { ...turnBars(rows, row), unit: 0.001 }) : null,
    h("dl", { class: "facts" }, Object.entries({ direction: row.direction, kind: row.kind, id: row.id, client: row.client, session: row.session, worker: row.pool ? `${row.pool}/${row.worker}` : undefined, bytes: row.bytes, lines: row.count, answer: answer ? `${answer.kind}, ${bytes(answer.bytes ?? 0)}` : undefined }).filter(([, value]) => value !== undefined && value !== null).map(([name, value]) => h("div", { key: name }, h("dt", null, name), h("dd", { class: "mono" }, visible(String(value)))))),
    row.payload ? h("pre", { class: "code", tabindex: "0" }, visible(pretty(row.payload))) : null,
  );
}

/** @param {any} payload */
function pretty(payload) {
  try {
    return JSON.stringify(typeof payload === "string" ? JSON.parse(payload) : payload, null, 2).slice(0, 50_000);
  } catch {
    return String(payload);
  }
}
