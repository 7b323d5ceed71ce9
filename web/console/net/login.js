// How a page gets its token: the link's fragment has a code that is good once. The token stays in this tab.

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
    const token = sessionStorage.getItem(TOKEN) ?? undefined;
    return { token, scope: sessionStorage.getItem(SCOPE) ?? "", why: token ? undefined : "none" };
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
  const token = sessionStorage.getItem(TOKEN) ?? undefined;
  return { token, scope: sessionStorage.getItem(SCOPE) ?? "", why: /** @type {const} */ ("refused") };
}

export function logout() {
  sessionStorage.removeItem(TOKEN);
  sessionStorage.removeItem(SCOPE);
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
