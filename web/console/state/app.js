// The store and the connection of this page, for those who show them and act on them.

import { Bus } from "../net/bus.js";
import { Store } from "./store.js";

export const store = new Store();
export const bus = new Bus(store);

/** @param {any} action */
export const dispatch = (action) => store.dispatch(action);

/** Does something that may fail, and shows why if it does. @param {() => any} what */
export async function attempt(what) {
  try {
    return await what();
  } catch (fault) {
    bus.failed(fault);
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

/** The place that the address names. */
export function routeOf(hash = location.hash) {
  const [, place = "", id = ""] = hash.split("/");
  return { place: PLACES.includes(place) ? place : "waiting", id: id ? decodeURIComponent(id) : null };
}

/** @param {string} place @param {string | null} [id] */
export function go(place, id) {
  location.hash = id ? `#/${place}/${encodeURIComponent(id)}` : `#/${place}`;
}
