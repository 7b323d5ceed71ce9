// The store and the connection of this page, for those who show them and act on them.

import { shallowEqual } from "../lib/dom.js";
import { Bus } from "../net/bus.js";
import { Store } from "./store.js";

export const store = new Store();
export const bus = new Bus(store);

const KEPT = "stdio-bus.kept";

/** What was answered, what was not sent yet, and comments, outlive a reload of this tab. */
export function keep() {
  keepHere();
  try {
    dispatch({ type: "kept", ...JSON.parse(sessionStorage.getItem(KEPT) ?? "{}") });
  } catch {
    sessionStorage.removeItem(KEPT);
  }
  let { verdicts, outbox, reviews } = store.state;
  store.subscribe((state) => {
    if (state.verdicts === verdicts && state.outbox === outbox && state.reviews === reviews) return;
    ({ verdicts, outbox, reviews } = state);
    try {
      sessionStorage.setItem(KEPT, JSON.stringify({ verdicts, outbox, reviews }));
    } catch {
      // What is longer than a browser keeps for a tab is there until the tab is loaded anew.
    }
  });
}

const HERE = "stdio-bus.here";

/** Pins, names and folders are of this browser, and outlive the tab. */
function keepHere() {
  try {
    dispatch({ type: "keptHere", ...JSON.parse(localStorage.getItem(HERE) ?? "{}") });
  } catch {
    localStorage.removeItem(HERE);
  }
  const parts = ({ marks, offers, folders, isGrouped }) => ({ marks, offers, folders, isGrouped });
  let before = parts(store.state);
  store.subscribe((state) => {
    const now = parts(state);
    if (shallowEqual(before, now)) return;
    before = now;
    try {
      localStorage.setItem(HERE, JSON.stringify(now));
    } catch {
      // What a browser does not keep is there until the tab is loaded anew.
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

const PLACES = ["waiting", "sessions", "past", "pools", "wire", "new"];

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
  const [, place = "", id = "", part = ""] = hash.split("/");
  return { place: PLACES.includes(place) ? place : "waiting", id: id ? decoded(id) : null, part };
}

/** @param {string} place @param {string | null} [id] @param {string} [part] */
export function go(place, id, part) {
  location.hash = `#/${[place, ...(id ? [encodeURIComponent(id)] : []), ...(part ? [part] : [])].join("/")}`;
}
