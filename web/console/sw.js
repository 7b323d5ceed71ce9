// The service worker: shows what is pushed, and opens its session when it is clicked. It fetches nothing and keeps nothing.

const worker = /** @type {any} */ (self);

/** What was pushed, or as much as must be said if it cannot be read. @param {any} event */
function told(event) {
  try {
    const { label, pool, link, title, question } = event.data.json();
    const words = (text) => (typeof text === "string" ? text : "");
    const isLink = words(link).startsWith("/#/");
    return { label: words(label), pool: words(pool) || "An agent", link: isLink ? link : "/#/waiting", lines: [words(question), words(title) || words(label)].filter(Boolean) };
  } catch {
    return { label: "", pool: "An agent", link: "/#/waiting", lines: [] };
  }
}

/** Other browsers take the leave away from those to whom they have brought something that they did not show. */
const maySayNothing = /Chrom(?:e|ium)\/|Firefox\//.test(navigator.userAgent);

/** Whether a person looks at a page of ours, which tells of it by itself. */
async function isInFront() {
  const pages = await worker.clients.matchAll({ type: "window", includeUncontrolled: true });
  return pages.some((one) => one.focused && one.visibilityState === "visible");
}

/** @param {any} event */
async function show(event) {
  if (maySayNothing && (await isInFront())) return;
  const { label, pool, link, lines } = told(event);
  // A page that is open has told of it already; the same notice is shown again, without another sound.
  const shown = (await worker.registration.getNotifications()).find((one) => one.data?.session === label);
  const tag = shown?.tag ?? `${label} pushed`;
  const body = lines.join("\n") || shown?.body || "";
  await worker.registration.showNotification(`${pool} waits for you`, { tag, body, icon: "/icon-192.png", data: { session: label, link, isPushed: !shown } });
}

/** @param {any} event */
async function opened({ notification }) {
  notification.close();
  const link = notification.data?.link ?? "/#/waiting";
  const pages = await worker.clients.matchAll({ type: "window", includeUncontrolled: true });
  const page = pages.find((one) => one.focused) ?? pages[0];
  if (!page) return worker.clients.openWindow(link);
  page.postMessage({ open: link });
  return page.focus();
}

worker.addEventListener("install", () => worker.skipWaiting());
worker.addEventListener("activate", (event) => event.waitUntil(worker.clients.claim()));
worker.addEventListener("push", (event) => event.waitUntil(show(event)));
worker.addEventListener("notificationclick", (event) => event.waitUntil(opened(event).catch(() => undefined)));
