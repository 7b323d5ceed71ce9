// The start of the page: signs in, connects, listens to the address and to keys, and shows the state whenever it changes.

import { render } from "./lib/dom.js";
import { login } from "./net/login.js";
import { bus, dispatch, keep, routeOf, store } from "./state/app.js";
import { shell, waitingCount } from "./view/shell.js";
import { onKey } from "./view/keys.js";

const root = /** @type {HTMLElement} */ (document.getElementById("app"));

function arrived() {
  const route = routeOf();
  dispatch({ type: "route", route, at: Date.now() });
  if (route.place === "sessions" && route.id && store.state.link.status === "live") bus.sessions.show(route.id);
  look(route);
  const isWire = route.place === "wire";
  if (isWire && !bus.tracer && store.state.link.status === "live") bus.trace(true);
}

/** What is read from disk is asked for when somebody looks at it. @param {{place: string, id: string | null}} route */
function look({ place, id }) {
  if (place === "past") {
    bus.past.list();
    if (id) bus.past.open(id);
  }
  if (place === "pools") bus.past.usage();
}

async function start() {
  const hash = location.hash;
  const { token, scope, why } = await login();
  // What the page shows until its program is here.
  root.replaceChildren();
  store.subscribe((state) => {
    render(root, shell(state));
    const waiting = waitingCount(state);
    const title = `${waiting ? `(${waiting}) ` : ""}stdio bus`;
    if (document.title !== title) document.title = title;
  });
  if (why === "unreachable" || !token) return dispatch({ type: "link", status: "signed-out", why });
  dispatch({ type: "route", route: routeOf(hash) });
  keep();
  bus.start(token, scope);
  addEventListener("hashchange", arrived);
  addEventListener("keydown", onKey);
  look(routeOf(hash));
  if (routeOf(hash).place === "wire") dispatch({ type: "wireOn", on: true, base: Date.now() });
}

// A link that is pasted into a tab which is in already changes only the fragment.
addEventListener("hashchange", () => {
  if (location.hash.startsWith("#c=")) location.reload();
});
start();
