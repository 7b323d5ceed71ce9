// How often the page asks the bus what is going on: soon after something has happened, and seldom while nothing does.

import { rootOf } from "../state/questions.js";

/** What the page asks by itself, and changes nothing. */
export const OWN = new Set(["_bus/hello", "_bus/status", "_bus/sessions"]);
/** Not more often than this, whatever happens. */
export const LEAST_MS = 1000;
/** While nothing happens anywhere. */
export const IDLE_MS = 10_000;
/** While something goes on in sessions that this page is not in, and so is not told of; and so much more for each session in the list. */
const [BUSY_MS, EACH_MS] = [2000, 10];
/** So much later than what has happened, since more may follow. */
const SOON_MS = 200;

/**
 * How long to wait for the next time.
 * @param {import("../state/reduce.js").State} state
 * @param {boolean} isHidden nobody sees the page
 */
export function waitOf(state, isHidden) {
  const { list, route, notices, sessions, questions, unshared } = state;
  // A page that tells who is away is needed while it is hidden.
  const factor = isHidden && notices.state !== "on" ? 4 : 1;
  // The figures of pools are of this moment.
  if (route.place === "pools" && !isHidden) return LEAST_MS;
  const here = new Set(Object.values(sessions).map((session) => session.label));
  const asked = new Set(questions.map((question) => rootOf(state, question.session)?.label));
  const isMissed = (view) => view.questions > 0 && !asked.has(view.session) && !unshared[view.session];
  const isBusy = list.some((view) => isMissed(view) || (view.mood === "running" && !here.has(view.session)));
  return factor * (isBusy ? Math.min(IDLE_MS, BUSY_MS + EACH_MS * list.length) : IDLE_MS);
}

export class Pace {
  /** @param {() => void} ask */
  constructor(ask) {
    this.ask = ask;
    this.timer = 0;
    /** When it asks next, and not before which time. */
    this.due = Infinity;
    this.earliest = 0;
    this.isAsking = false;
    /** Something has happened while an answer was on its way, which may not tell of it. */
    this.isLate = false;
  }

  /** Somebody is at the page, or comes back to it. */
  watch() {
    for (const kind of ["pointerdown", "keydown", "hashchange", "focus"]) addEventListener(kind, () => this.hurry(), { capture: true, passive: true });
    document.addEventListener("visibilitychange", () => this.hurry());
  }

  began() {
    this.stop();
    this.isAsking = true;
    this.isLate = false;
  }

  /** @param {number} took how long the answer took, in milliseconds; the longer, the seldomer @param {number} wait */
  ended(took, wait) {
    this.isAsking = false;
    this.earliest = Date.now() + Math.max(LEAST_MS, 10 * took);
    this.askAt(this.isLate ? this.earliest : Math.max(this.earliest, Date.now() + wait));
  }

  /** Something has happened of which the bus can tell more. */
  hurry() {
    if (this.isAsking) this.isLate = true;
    else if (this.due !== Infinity) this.askAt(Math.min(this.due, Math.max(this.earliest, Date.now() + SOON_MS)));
  }

  /** @param {number} at */
  askAt(at) {
    clearTimeout(this.timer);
    this.due = at;
    this.timer = /** @type {any} */ (setTimeout(this.ask, at - Date.now()));
  }

  stop() {
    clearTimeout(this.timer);
    this.due = Infinity;
    this.isAsking = false;
  }
}
