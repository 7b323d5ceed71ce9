// The store and the connection of this page, for those who show them and act on them.

import { Bus } from "../net/bus.js";
import { Store } from "./store.js";

export const store = new Store();
export const bus = new Bus(store);

const KEPT = "stdio-bus.kept";

/** What was answered, and what was not sent yet, outlives a reload of this tab. */
export function keep() {
  try {
    dispatch({ type: "kept", ...JSON.parse(sessionStorage.getItem(KEPT) ?? "{}") });
  } catch {
    sessionStorage.removeItem(KEPT);
  }
  let { verdicts, outbox } = store.state;
  store.subscribe((state) => {
    if (state.verdicts === verdicts && state.outbox === outbox) return;
    ({ verdicts, outbox } = state);
    try {
      sessionStorage.setItem(KEPT, JSON.stringify({ verdicts, outbox }));
    } catch {
      // What is longer than a browser keeps for a tab is there until the tab is loaded anew.
    }
  });
}

/** @param {any} action */
export const dispatch = (action) => store.dispatch(action);

/** Does something that may fail, and shows why if it does. @param {() => any} what */
export async function attempt(what) {
  try {
    return await what();
  } catch (fault) {
    if (fault?.reason === "disconnected") note("There is no connection to the bus, so nothing was done.");
    else bus.failed(fault);
    return undefined;
  }
}

/** Says something that need not be answered. @param {string} text */
export function note(text) {
  const key = store.state.nextToast;
  dispatch({ type: "toast", text, at: Date.now() });
  setTimeout(() => dispatch({ type: "untoast", key }), 4000);
}

const PLACES = ["waiting", "sessions", "pools", "wire", "new"];

/** A part of the address as it is meant; one that means nothing stays as it is written, and is not found. @param {string} part */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** The place that the address names. */
export function routeOf(hash = location.hash) {
  const [, place = "", id = ""] = hash.split("/");
  return { place: PLACES.includes(place) ? place : "waiting", id: id ? decoded(id) : null };
}

/** @param {string} place @param {string | null} [id] */
export function go(place, id) {
  location.hash = id ? `#/${place}/${encodeURIComponent(id)}` : `#/${place}`;
}
