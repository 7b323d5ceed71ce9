// Holds the state, and tells those who show it, at most once a frame.

import { initial, reduce } from "./reduce.js";

/** @typedef {import("./reduce.js").State} State */

export class Store {
  /** @param {(then: () => void) => void} [schedule] */
  constructor(schedule = nextFrame) {
    /** @type {State} */ this.state = initial();
    /** @type {Set<(state: State) => void>} */ this.listeners = new Set();
    this.schedule = schedule;
    this.isDue = false;
  }

  /** @param {any} action */
  dispatch(action) {
    const next = reduce(this.state, action);
    if (next === this.state) return;
    this.state = next;
    this.touch();
  }

  /** The listeners are told with the next frame. */
  touch() {
    if (this.isDue) return;
    this.isDue = true;
    this.schedule(() => {
      this.isDue = false;
      for (const listener of this.listeners) listener(this.state);
    });
  }

  /** @param {(state: State) => void} listener */
  subscribe(listener) {
    this.listeners.add(listener);
    listener(this.state);
  }
}

/** With the next frame; a page that nobody sees has none, so there is a time as well. @param {() => void} then */
export function nextFrame(then) {
  let isDone = false;
  const once = () => {
    if (isDone) return;
    isDone = true;
    clearTimeout(timer);
    cancelAnimationFrame(frame);
    then();
  };
  const timer = setTimeout(once, 250);
  const frame = requestAnimationFrame(once);
}
