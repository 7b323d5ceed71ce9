// How a page gets its token: the link's fragment has a code that is good once. The token stays in this tab, unless this browser is to be
// told of questions while no page is open: then it stays in this browser.

const TOKEN = "stdio-bus.token";
const SCOPE = "stdio-bus.scope";

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
  if (code === undefined) {
    const { token, scope } = kept();
    return { token, scope, why: token ? undefined : "none" };
  }
  // Neither history nor a look over the shoulder needs to have it.
  history.replaceState(null, "", location.pathname);
  try {
    const headers = { "Content-Type": "application/json" };
    const answer = await fetch("/login", { method: "POST", headers, body: JSON.stringify({ code: decodeURIComponent(code) }) });
    if (!answer.ok) return refused();
    const { token, scope } = await answer.json();
    sessionStorage.setItem(TOKEN, token);
    sessionStorage.setItem(SCOPE, scope);
    return { token, scope };
  } catch {
    return { scope: "", why: "unreachable" };
  }
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

/** Whether the door still takes the token: a WebSocket that is refused does not say why. @param {string} token */
export async function isRefused(token) {
  try {
    const answer = await fetch("/metrics", { headers: { Authorization: `Bearer ${token}` }, signal: AbortSignal.timeout(5000) });
    return answer.status === 401;
  } catch {
    return false;
  }
}
