// How a page gets its token, and how it gives it back: the link's fragment has a code that is good once. The token stays in this tab, and
// goes to another tab of this browser that asks for it. It stays in this browser if that is to be told of questions while no page is open.

const TOKEN = "stdio-bus.token";
const SCOPE = "stdio-bus.scope";
/** This tab has signed out, and takes no token of another one. */
const OUT = "stdio-bus.out";
/** Where tabs speak with each other. No page of another origin hears it. */
const TABS = "stdio-bus.tabs";
/** A tab that is in answers at once, unless the browser has put it to sleep. */
const ANSWER_MS = 500;

/** The scopes, each with all that those before it may. */
const SCOPES = ["observe", "approve", "control", "admin"];

/** @param {string} scope @param {string} wanted */
export const may = (scope, wanted) => SCOPES.indexOf(scope) >= SCOPES.indexOf(wanted);

/**
 * The token of this tab, or why there is none.
 * @returns {Promise<{token?: string, scope: string, why?: "none" | "refused" | "unreachable"}>}
 */
export async function login() {
  const code = /^#c=([^&]+)/.exec(location.hash)?.[1];
  const found = await (code === undefined ? ownOrOther() : exchanged(code));
  answerTabs();
  return found;
}

/** @returns {ReturnType<typeof login>} */
async function ownOrOther() {
  const own = kept();
  if (own.token) return own;
  const other = sessionStorage.getItem(OUT) ? null : await fromOtherTab();
  if (!other) return { scope: "", why: "none" };
  enter(other);
  return other;
}

/** @param {string} code @returns {ReturnType<typeof login>} */
async function exchanged(code) {
  // Neither history nor a look over the shoulder needs to have it.
  history.replaceState(null, "", location.pathname);
  try {
    const headers = { "Content-Type": "application/json" };
    const answer = await fetch("/login", { method: "POST", headers, body: JSON.stringify({ code: decodeURIComponent(code) }) });
    if (!answer.ok) return refused();
    const { token, scope } = await answer.json();
    enter({ token, scope });
    return { token, scope };
  } catch {
    return { scope: "", why: "unreachable" };
  }
}

/** @param {{token: string, scope: string}} found */
function enter({ token, scope }) {
  sessionStorage.setItem(TOKEN, token);
  sessionStorage.setItem(SCOPE, scope);
  sessionStorage.removeItem(OUT);
}

/** The token of a tab of this browser that is in. @returns {Promise<{token: string, scope: string} | null>} */
function fromOtherTab() {
  return new Promise((done) => {
    const tabs = new BroadcastChannel(TABS);
    const end = (found) => {
      clearTimeout(timer);
      tabs.close();
      done(found);
    };
    const timer = setTimeout(() => end(null), ANSWER_MS);
    tabs.onmessage = ({ data }) => data?.token && end({ token: data.token, scope: data.scope });
    tabs.postMessage({ asks: true });
  });
}

/** Gives new tabs the token of this one, for as long as it has one. */
function answerTabs() {
  const tabs = new BroadcastChannel(TABS);
  tabs.onmessage = ({ data }) => {
    const { token, scope } = kept();
    if (data?.asks && token) tabs.postMessage({ token, scope });
    if (data?.out && data.out === token) logout();
  };
}

/** A tab that is in already stays in when it is given a link that is used up. */
function refused() {
  return { ...kept(), why: /** @type {const} */ ("refused") };
}

/** The token of this tab, else the one that this browser keeps. */
function kept() {
  const place = sessionStorage.getItem(TOKEN) ? sessionStorage : localStorage;
  return { token: place.getItem(TOKEN) ?? undefined, scope: place.getItem(SCOPE) ?? "" };
}

/** Keeps a token for all pages of this browser, or none any more. @param {string | null} token @param {string} [scope] */
export function keepToken(token, scope = "") {
  localStorage.removeItem(TOKEN);
  localStorage.removeItem(SCOPE);
  if (!token) return;
  localStorage.setItem(TOKEN, token);
  localStorage.setItem(SCOPE, scope);
}

export function logout() {
  sessionStorage.removeItem(TOKEN);
  sessionStorage.removeItem(SCOPE);
  keepToken(null);
}

/** Ends a token for good, here and in every other tab that has it. @param {string} token */
export async function signOut(token) {
  const answer = await fetch("/login", { method: "DELETE", headers: { Authorization: `Bearer ${token}` }, signal: AbortSignal.timeout(10_000) });
  if (!answer.ok && answer.status !== 401) throw new Error((await answer.text()).trim() || `the door answers ${answer.status}`);
  const tabs = new BroadcastChannel(TABS);
  tabs.postMessage({ out: token });
  tabs.close();
  logout();
  // Nor is anything left of what was written in this tab.
  sessionStorage.clear();
  sessionStorage.setItem(OUT, "yes");
  location.reload();
}

/** Whether the door still takes the token: a WebSocket that is refused does not say why. @param {string} token */
export async function isRefused(token) {
  try {
    const answer = await fetch("/metrics", { headers: { Authorization: `Bearer ${token}` }, signal: AbortSignal.timeout(5000) });
    return answer.status === 401;
  } catch {
    return false;
  }
}
