// The wire: events of `_bus/trace` as rows, requests and answers paired, runs of updates as one row. Pure.

/** @typedef {{key: number, at: number, direction: string, kind: string, method: string, id: any, call: any, client: any, session: any, pool: any, worker: any, bytes: number, latency: number | null, code: any, reason: any, count: number, last: number, answer: any, payload: any}} Row */
/** @typedef {{rows: Row[], next: number, calls: Map<any, number>, runs: Map<any, Record<string, number>>, dropped: number, events: number, base: number}} Wire */

export const MAX_ROWS = 20_000;

/** @returns {Wire} */
export const newWire = () => ({ rows: [], next: 0, calls: new Map(), runs: new Map(), dropped: 0, events: 0, base: 0 });

/**
 * @param {Wire} wire
 * @param {any[]} events params of `_bus/event`
 * @returns {Wire}
 */
export function addEvents(wire, events) {
  const draft = { ...wire, rows: wire.rows.slice(), calls: new Map(wire.calls), runs: new Map(wire.runs.size < 1000 ? wire.runs : []), events: wire.events + events.length };
  for (const event of events) addEvent(draft, event);
  if (draft.rows.length > MAX_ROWS) {
    draft.rows = draft.rows.slice(draft.rows.length - MAX_ROWS + 1000);
    const first = draft.rows[0].key;
    draft.calls = new Map([...draft.calls].filter(([, key]) => key >= first));
  }
  return draft;
}

/** @param {Wire} draft @param {any} event */
function addEvent(draft, event) {
  const isAnswer = event.kind === "result" || event.kind === "error";
  if (isAnswer && event.call !== undefined && draft.calls.has(event.call)) {
    const at = (draft.calls.get(event.call) ?? 0) - (draft.rows[0]?.key ?? 0);
    draft.calls.delete(event.call);
    const row = draft.rows[at];
    if (row) {
      draft.rows[at] = { ...row, answer: event, latency: event.latency_us ?? event.at_us - row.at, last: event.at_us };
      return;
    }
  }
  if (event.kind !== "notification") draft.runs.delete(event.session);
  else if (addToRun(draft, event)) return;
  const key = draft.next++;
  if (event.kind === "request" && event.call !== undefined) draft.calls.set(event.call, key);
  draft.rows.push({
    key, at: event.at_us, last: event.at_us, direction: event.direction, kind: event.kind, method: event.method ?? "", id: event.id, call: event.call,
    client: event.client, session: event.session, pool: event.pool, worker: event.worker, bytes: event.bytes ?? 0, latency: event.latency_us ?? null,
    code: event.code, reason: event.reason, count: 1, answer: null, payload: event.payload,
  });
}

/** Updates of a session that follow each other are one row, whatever others say meanwhile. @param {Wire} draft @param {any} event */
function addToRun(draft, event) {
  const name = `${event.direction} ${event.method} ${event.client}`;
  const runs = draft.runs.get(event.session) ?? {};
  const at = (runs[name] ?? -1) - (draft.rows[0]?.key ?? 0);
  const row = draft.rows[at];
  if (row) {
    draft.rows[at] = { ...row, count: row.count + 1, bytes: row.bytes + (event.bytes ?? 0), last: event.at_us, payload: event.payload };
    return true;
  }
  draft.runs.set(event.session, { ...runs, [name]: draft.next });
  return false;
}

/**
 * Rows that match what was typed: words in any order; `error`, `slow` and `open` have a meaning of their own.
 * @param {Row[]} rows
 * @param {string} text
 */
export function filterRows(rows, text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  if (words.length === 0) return rows;
  return rows.filter((row) => words.every((word) => matches(row, word)));
}

/** @param {Row} row @param {string} word */
function matches(row, word) {
  if (word === "error") return isError(row);
  if (word === "slow") return (row.latency ?? 0) > 1e6;
  if (word === "open") return row.kind === "request" && !row.answer;
  const hay = `${row.method} ${row.client ?? ""} ${row.session ?? ""} ${row.pool ?? ""}/${row.worker ?? ""} ${row.direction} ${row.reason ?? row.answer?.reason ?? ""}`;
  return hay.toLowerCase().includes(word);
}

/** @param {Row} row */
export const isError = (row) => row.kind === "error" || row.answer?.kind === "error";

/**
 * The bars of the turn that a `session/prompt` began: what the client, the bus and the agent did, in microseconds.
 * @param {Row[]} rows
 * @param {Row} prompt
 */
export function turnBars(rows, prompt) {
  const end = prompt.answer?.at_us ?? rows.at(-1)?.last ?? prompt.at;
  const within = rows.filter((row) => row.session === prompt.session && row.key !== prompt.key && row.last >= prompt.at && row.at <= end);
  const bars = [{ lane: "agent", label: "turn", start: prompt.at, end, kind: "turn" }];
  const first = within.find((row) => row.direction.startsWith("worker") && row.kind === "notification");
  if (first) bars.push({ lane: "agent", label: "until the first word", start: prompt.at, end: first.at, kind: "wait" });
  for (const row of within) {
    const isQuestion = row.kind === "request" && row.direction.startsWith("worker");
    if (isQuestion) bars.push({ lane: "client", label: row.method, start: row.at, end: row.answer?.at_us ?? end, kind: "ask" });
    else if (row.direction.includes("bus")) bars.push({ lane: "bus", label: row.method || String(row.reason ?? row.kind), start: row.at, end: row.last, kind: isError(row) ? "error" : "bus" });
    else if (row.kind === "notification") bars.push({ lane: "agent", label: `${row.count} × ${row.method}`, start: row.at, end: row.last, kind: "stream" });
    else bars.push({ lane: "client", label: row.method || row.kind, start: row.at, end: row.last, kind: "say" });
  }
  return { start: prompt.at, end, bars };
}
