// The one place where the state of the page changes. Pure: (state, action) gives the next state.

import { mapped, put, table, without } from "../lib/table.js";
import { moved, restored, stranded } from "./outbox.js";
import { ask, change, decide, decidedBy, rootOf, unask, unfold, withdraw } from "./questions.js";
import { lastFolders, offered, readOffers } from "./offers.js";
import { changedReview, newReview, restoredReviews } from "./review.js";
import { marked, readMarks } from "./triage.js";
import { addEvents, newWire } from "./wire.js";
import { newNotices } from "./notices.js";
import { changedPast, newPast } from "./past.js";
import { addItem, beginTurn, changedWithin, changeItem, endTurn, newSession } from "./transcript.js";
import { addUpdates } from "./updates.js";

/** @typedef {import("./transcript.js").Session} Session */
/** @typedef {import("./questions.js").Question} Question */

const HISTORY = 60;
const TOASTS = 4;

export const initial = () => ({
  link: { status: "connecting", lastWord: 0, since: 0, scope: "", me: "", why: "", version: "", pools: /** @type {string[]} */ ([]) },
  route: { place: "waiting", id: /** @type {string | null} */ (null), part: "" },
  status: /** @type {any} */ (null),
  trends: /** @type {Record<string, {p50: number, p99: number, rate: number}[]>} */ (table()),
  list: /** @type {any[]} */ ([]),
  listed: false,
  listState: "all",
  isGrouped: false,
  marks: /** @type {import("./triage.js").Marks} */ (table()),
  offers: /** @type {Record<string, import("./offers.js").Offer>} */ (table()),
  folders: /** @type {string[]} */ ([]),
  newPool: "",
  filters: /** @type {Record<string, string>} */ ({ sessions: "", wire: "", pools: "" }),
  sessions: /** @type {Record<string, Session>} */ (table()),
  questions: /** @type {Question[]} */ ([]),
  answered: /** @type {Question[]} */ ([]),
  verdicts: /** @type {Record<string, import("./questions.js").Verdict>} */ (table()),
  outbox: /** @type {import("./outbox.js").Entry[]} */ ([]),
  reviews: /** @type {Record<string, import("./review.js").Review>} */ (table()),
  armedAt: 0,
  unshared: /** @type {Record<string, string>} */ (table()),
  account: /** @type {Record<string, {told: any, at: number}>} */ (table()),
  wire: newWire(),
  wireOn: false,
  wireRow: /** @type {number | null} */ (null),
  toasts: /** @type {{key: number, error?: any, text?: string, at: number}[]} */ ([]),
  nextToast: 0,
  dialog: /** @type {any} */ (null),
  dialogs: 0,
  said: "",
  isBeginning: false,
  past: newPast(),
  notices: newNotices(),
  primer: /** @type {{pool: string, cwd: string, text: string} | null} What the form of a new session is filled in with. */ (null),
  openPools: /** @type {Record<string, boolean>} */ (table()),
});

/** @typedef {ReturnType<typeof initial>} State */

/** @param {State} state @param {any} action @returns {State} */
export function reduce(state, action) {
  const handler = HANDLERS[action.type];
  return handler ? handler(state, action) : state;
}

/** @type {Record<string, (state: State, action: any) => State>} */
const HANDLERS = table({
  link: (state, { type: _, ...link }) => ({ ...state, link: { ...state.link, ...link } }),
  route: (state, { route, at }) => ({ ...state, route, dialog: null, armedAt: at ?? state.armedAt }),
  filter: (state, { place, text }) => ({ ...state, filters: { ...state.filters, [place]: text } }),
  // Each dialog that opens has a number of its own, so that one that closes late does not take the next along.
  dialog: (state, { dialog }) => ({ ...state, dialog: dialog && { serial: state.dialogs, ...dialog }, dialogs: state.dialogs + 1 }),
  dialogClosed: (state, { serial }) => (state.dialog?.serial === serial ? { ...state, dialog: null } : state),
  past: (state, { type: _, ...action }) => ({ ...state, past: changedPast(state.past, action) }),
  notices: (state, { notices }) => ({ ...state, notices: { ...state.notices, ...notices } }),
  primer: (state, { primer }) => ({ ...state, primer }),
  beginning: (state, { on }) => ({ ...state, isBeginning: on }),
  say: (state, { text }) => ({ ...state, said: text }),
  pool: (state, { id }) => ({ ...state, openPools: put(state.openPools, id, !state.openPools[id]) }),
  toast: (state, { error, text, at }) => ({
    ...state,
    toasts: [...state.toasts, { key: state.nextToast, error, text, at }].slice(-TOASTS),
    nextToast: state.nextToast + 1,
  }),
  untoast: (state, { key }) => ({ ...state, toasts: state.toasts.filter((toast) => toast.key !== key) }),
  status: (state, { status }) => ({ ...state, status, trends: trends(state.trends, status) }),
  list: (state, { list }) => ({ ...withPeople(listed(state, list)), listed: true }),
  unshared: (state, { label, why }) => ({ ...state, unshared: put(state.unshared, label, why) }),
  wire: (state, { events }) => ({ ...state, wire: addEvents(state.wire, events) }),
  wireDropped: (state, { count }) => ({ ...state, wire: { ...state.wire, dropped: state.wire.dropped + count } }),
  wireOn: (state, { on, base }) => ({ ...state, wireOn: on, wire: on ? { ...newWire(), base } : state.wire }),
  wireClear: (state) => ({ ...state, wire: { ...newWire(), base: state.wire.base }, wireRow: null }),
  wireRow: (state, { key }) => ({ ...state, wireRow: state.wireRow === key ? null : key }),

  attached: (state, { session, result, mine }) =>
    change(state, session, (known) => ({
      ...known, label: result.label ?? known.label, role: mine ? "owner" : result.role, owner: result.owner ?? null,
      truncated: !!result.truncated, turn: result.turn ?? known.turn, loading: false, title: result.title ?? known.title,
      pool: result.pool ?? known.pool, cwd: result.folder ?? known.cwd, modes: result.modes ?? known.modes, models: result.models ?? known.models, options: result.configOptions ?? known.options,
    })),
  opened: (state, { session, ...more }) => ({ ...state, sessions: put(state.sessions, session, newSession(session, more)) }),
  // What the agent of a pool offers: told with the handshake, and with each session.
  offer: (state, { type: _, pool, ...more }) => ({ ...state, offers: offered(state.offers, pool, more) }),
  folder: (state, { cwd }) => ({ ...state, folders: lastFolders(state.folders, cwd) }),
  newPool: (state, { pool }) => ({ ...state, newPool: pool }),
  mark: (state, { key, mark }) => ({ ...state, marks: marked(state.marks, key, mark) }),
  listState: (state, { state: chosen }) => ({ ...state, listState: chosen }),
  grouped: (state, { on }) => ({ ...state, isGrouped: on }),
  // What this browser keeps for all its tabs.
  keptHere: (state, { marks, offers, folders, isGrouped }) => ({ ...state, marks: readMarks(marks), offers: readOffers(offers), folders: lastFolders(folders), isGrouped: isGrouped === true }),
  session: (state, { session, type: _, ...more }) => change(state, session, (known) => ({ ...known, ...more })),
  dropped: (state, { session }) => ({ ...state, sessions: without(state.sessions, session), questions: state.questions.filter((question) => rootOf(state, question.session)?.id !== session) }),
  unasked: (state, { session }) => unask(state, session),
  // What an agent tells of its account, and of no session: the last word of each kind.
  account: (state, { kind, told, at }) => ({ ...state, account: put(Object.keys(state.account).length < 20 || kind in state.account ? state.account : table(), kind, { told, at }) }),
  updates: (state, { session, updates }) => change(state, session, (known) => addUpdates(known, updates)),
  item: (state, { session, item }) => change(state, session, (known) => addItem(known, item)),
  toggle: (state, { session, key, open }) => {
    const read = state.past.open;
    const by = (known) => changeItem(known, key, { open });
    const next = read && changedWithin(read.session, session, by);
    return next ? { ...state, past: { ...state.past, open: { ...read, session: next } } } : change(state, session, by);
  },
  turn: (state, { session, at, turn, by, reason, usage }) =>
    change(state, session, (known) => (turn === "running" ? beginTurn(known, at, by ?? null) : endTurn(known, at, reason, usage))),
  out: (state, { entry }) => ({ ...state, outbox: [...state.outbox, entry] }),
  outChanged: (state, { key, type: _, ...more }) =>
    state.outbox.some((one) => one.key === key) ? { ...state, outbox: state.outbox.map((one) => (one.key === key ? { ...one, ...more } : one)) } : state,
  outHeld: (state, { session, isHeld }) => ({ ...state, outbox: state.outbox.map((one) => (one.session === session && one.state === "queued" ? { ...one, isHeld } : one)) }),
  outMoved: (state, { key, step }) => ({ ...state, outbox: moved(state.outbox, key, step) }),
  outGone: (state, { key }) => ({ ...state, outbox: state.outbox.filter((one) => one.key !== key) }),
  // What this tab kept before it was loaded anew.
  kept: (state, { verdicts, outbox, reviews }) => ({ ...state, verdicts: table(verdicts), outbox: restored(outbox), reviews: restoredReviews(reviews) }),
  review: (state, { type: _, session, ...action }) => ({ ...state, reviews: put(state.reviews, session, changedReview(state.reviews[session] ?? newReview(), action)) }),
  event: (state, { session, event, at }) => change(state, session, (known) => heard(known, event, at, state.link.me)),

  asked: (state, { question, at }) => listed(ask(state, question, at ?? question.at), state.list),
  decided: (state, { key, ...how }) => listed(decide(state, (question) => question.key === key, how), state.list),
  withdrawn: (state, { rpc, at }) => listed(withdraw(state, rpc, at), state.list),
  decidedBy: (state, { session, event }) => decidedBy(state, session, event),
  unfold: (state, { key, at }) => unfold(state, key, at),
  lost: (state) => ({ ...unask(state, null), outbox: state.outbox.map(stranded) }),
});

/** How many questions this page is asked, by session. @param {State} state @returns {Map<string, number>} */
function askedHere(state) {
  const counts = new Map();
  for (const { session } of state.questions) {
    const label = rootOf(state, session)?.label;
    counts.set(label, (counts.get(label) ?? 0) + 1);
  }
  return counts;
}

/** A row of `_bus/sessions`, with what this page knows beyond it. @param {any} view @param {Map<string, number>} asked */
function row(view, asked) {
  const counted = "counted" in view ? view.counted : view.questions;
  const questions = Math.max(counted ?? 0, asked.get(view.session) ?? 0);
  const state = questions > 0 ? "waiting" : ["live", "moved"].includes(view.state) ? (view.calls > 0 ? "running" : "idle") : view.state;
  // Both are worked out once for each row, not with each comparison: there may be ten thousand rows.
  const [rank, number] = [MOODS.indexOf(state), Number(String(view.session).replace(/\D+/g, "")) || 0];
  return { ...view, counted, questions, mood: state, rank, number, folder: view.folder ?? view.cwd ?? "", guests: view.guests ?? [], title: view.title ?? "" };
}

const MOODS = ["waiting", "lost", "running", "idle", "kept"];

/** Those that wait for a person first, then the newest: rows move only when something has happened. @param {any} one @param {any} other */
const byAttention = (one, other) => one.rank - other.rank || other.number - one.number;

/** The list as `_bus/sessions` tells it, with what this page is asked. @param {State} state @param {any[]} views @returns {State} */
function listed(state, views) {
  const asked = askedHere(state);
  return { ...state, list: views.map((view) => row(view, asked)).sort(byAttention) };
}

/** Who is in the sessions that this page has joined. @param {State} state @returns {State} */
function withPeople(state) {
  const byLabel = new Map(state.list.map((view) => [view.session, view]));
  const sessions = mapped(state.sessions, (known) => {
    const view = byLabel.get(known.label);
    return view ? { ...known, owner: view.client ?? null, guests: view.guests } : known;
  });
  return { ...state, sessions };
}

/** @param {State["trends"]} before @param {any} status */
function trends(before, status) {
  const next = /** @type {State["trends"]} */ (table());
  for (const pool of status?.pools ?? []) {
    const { p50 = 0, p99 = 0 } = pool.latency_us ?? {};
    next[pool.id] = [...(before[pool.id] ?? []), { p50, p99, rate: pool.rates?.requests ?? 0 }].slice(-HISTORY);
  }
  return next;
}

/** What `_bus/session` tells. @param {Session} session @param {any} event @param {number} at @param {string} me @returns {Session} */
function heard(session, event, at, me) {
  const others = session.guests.filter((guest) => guest.client !== event.client);
  switch (event.event) {
    case "attached":
      return event.client === session.owner ? session : { ...session, guests: [...others, { client: event.client, role: event.role }] };
    case "detached":
      return { ...session, guests: others, owner: event.client === session.owner ? null : session.owner };
    case "owner": {
      const old = session.owner && session.owner !== event.owner ? [{ client: session.owner, role: "control" }] : [];
      const guests = session.guests.filter((guest) => guest.client !== event.owner);
      return addItem({ ...session, owner: event.owner, guests: [...guests, ...old] }, { kind: "note", at, text: event.owner === me ? "You have taken over." : event.owner ? `${event.owner} has taken over.` : "The owner has left." });
    }
    // Who only looks on is not asked, but hears that somebody is.
    case "asked":
      return session.role === "observe" && event.title ? addItem(session, { kind: "note", at, text: `The agent asks: ${event.title}` }) : session;
    case "decided":
      return session.role === "observe" ? addItem(session, { kind: "note", at, text: `${event.by ?? "Somebody"} has answered.` }) : session;
    case "behind":
      return addItem(session, { kind: "note", at, text: "This page did not keep up and was let go; it joins again." });
    case "ended":
      return addItem({ ...session, turn: "idle" }, { kind: "note", at, text: "The session has ended." });
    default:
      return session;
  }
}
