// Tells a person who is away: notifications of the browser, and Web Push where the door and the browser can.

import { noticesOf } from "../state/notices.js";
import { keepToken, may } from "./login.js";

const ON = "stdio-bus.notices";
/** What has been told of is remembered, so that it is told once. */
const SEEN = 500;

export class Notices {
  /** @param {import("./bus.js").Bus} bus */
  constructor(bus) {
    this.bus = bus;
    /** @type {ServiceWorkerRegistration | null} */ this.worker = null;
    /** The questions that were told of. @type {Set<string>} */ this.seen = new Set();
    /** Sessions that asked when the connection was lost: what they ask on the next one was told before. @type {Set<string>} */ this.before = new Set();
    /** Sessions that ask. @type {Set<string>} */ this.asking = new Set();
    this.isClosing = false;
  }

  /** @param {Partial<import("../state/notices.js").Told>} notices */
  say(notices) {
    this.bus.dispatch({ type: "notices", notices });
  }

  get isOn() {
    return this.bus.state.notices.state === "on";
  }

  /** What the browser says of itself, and what this person has chosen before. Nothing is asked for here. */
  async begin() {
    this.bus.store.subscribe(() => this.look());
    if (typeof Notification === "undefined" || !navigator.serviceWorker) return this.say({ state: "missing" });
    navigator.serviceWorker.addEventListener("message", ({ data }) => {
      if (typeof data?.open === "string" && data.open.startsWith("/#/")) location.hash = data.open.slice(1);
    });
    navigator.permissions?.query({ name: "notifications" }).then((status) => (status.onchange = () => this.changed()), () => undefined);
    if (Notification.permission === "denied") return this.say({ state: "denied" });
    if (Notification.permission === "granted" && localStorage.getItem(ON)) await this.start();
  }

  /** The person has changed it in the browser. */
  changed() {
    if (Notification.permission === "denied") this.say({ state: "denied", push: false, why: "" });
    else if (this.bus.state.notices.state === "denied") this.say({ state: "off" });
  }

  /** A press of the button. */
  async turnOn() {
    this.say({ state: "asking" });
    const answer = await Notification.requestPermission();
    if (answer !== "granted") return this.say({ state: answer === "denied" ? "denied" : "off" });
    localStorage.setItem(ON, "on");
    await this.start();
  }

  async start() {
    for (const { key } of this.wanted()) this.seen.add(key);
    try {
      await navigator.serviceWorker.register(trusted("/sw.js"), { updateViaCache: "none" });
      this.worker = await navigator.serviceWorker.ready;
      this.say({ state: "on" });
      await this.subscribe(this.worker);
    } catch (fault) {
      this.say({ state: "on", push: false, why: fault?.message ?? String(fault) });
    }
  }

  /** The door pushes to this browser for as long as the token of this page is good. @param {ServiceWorkerRegistration} worker */
  async subscribe(worker) {
    if (!worker.pushManager) return this.say({ push: false, why: "this browser has no Web Push" });
    const { key, subscribed } = await this.door("GET");
    let own = await worker.pushManager.getSubscription();
    if (own && !isKey(own.options.applicationServerKey, key)) {
      await own.unsubscribe();
      own = null;
    }
    if (!own || !subscribed) {
      own ??= await worker.pushManager.subscribe({ userVisibleOnly: true, applicationServerKey: key });
      await this.door("POST", own.toJSON());
    }
    // A page that is opened by a notification is another tab.
    keepToken(this.bus.token, this.bus.state.link.scope);
    this.say({ push: true, why: "" });
  }

  async turnOff() {
    localStorage.removeItem(ON);
    keepToken(null);
    this.say({ state: "off", push: false, why: "" });
    const worker = this.worker;
    this.worker = null;
    await this.door("DELETE").catch(() => undefined);
    await (await worker?.pushManager?.getSubscription())?.unsubscribe();
    for (const one of (await worker?.getNotifications()) ?? []) one.close();
    await worker?.unregister();
  }

  /** @param {string} method @param {any} [body] */
  async door(method, body) {
    const headers = { Authorization: `Bearer ${this.bus.token}`, ...(body ? { "Content-Type": "application/json" } : {}) };
    const answer = await fetch("/push", { method, headers, body: body && JSON.stringify(body), signal: AbortSignal.timeout(10_000) });
    if (!answer.ok) throw new Error((await answer.text()).trim() || `the door answers ${answer.status}`);
    return method === "GET" ? answer.json() : undefined;
  }

  wanted() {
    return noticesOf(this.bus.state, may(this.bus.state.link.scope, "approve"));
  }

  /** Something has changed: what is new is told if nobody looks, and what is answered is told no more. */
  look() {
    const { worker } = this;
    if (!worker || !this.isOn) return;
    if (this.bus.state.link.status === "lost") return void this.asking.forEach((label) => this.before.add(label));
    const wanted = this.wanted();
    const isAway = document.hidden || !document.hasFocus();
    for (const notice of wanted) {
      if (this.seen.has(notice.key)) continue;
      this.seen.add(notice.key);
      if (!this.before.delete(notice.session) && isAway) this.show(worker, notice);
    }
    const keys = new Set(wanted.map((notice) => notice.key));
    for (const key of this.seen) if (!keys.has(key) && (this.seen.size > SEEN || key.endsWith(" elsewhere"))) this.seen.delete(key);
    this.asking = new Set(wanted.map((notice) => notice.session));
    for (const view of this.bus.state.list) view.questions > 0 ? this.asking.add(view.session) : this.before.delete(view.session);
    this.close(worker);
  }

  /** @param {ServiceWorkerRegistration} worker @param {import("../state/notices.js").Notice} notice */
  show(worker, { tag, session, title, body, link }) {
    worker.showNotification(title, { tag, body, icon: "/icon-192.png", data: { session, link } }).catch((fault) => this.say({ why: fault.message }));
  }

  /** @param {ServiceWorkerRegistration} worker */
  async close(worker) {
    if (this.isClosing || !this.bus.state.listed) return;
    this.isClosing = true;
    try {
      const all = await worker.getNotifications();
      // Something may have been asked meanwhile.
      const wanted = this.wanted();
      const tags = new Set(wanted.map((notice) => notice.tag));
      /** What is asked may not have come to this page yet; a notice that was pushed is of its session. @param {Notification} one */
      const isOver = ({ tag, data }) => !this.asking.has(data?.session) || (!data?.isPushed && !tags.has(tag) && wanted.some((notice) => notice.session === data?.session));
      for (const one of all) if (isOver(one)) one.close();
    } finally {
      this.isClosing = false;
    }
  }
}

/** Whether a subscription was made for this key of the door. @param {ArrayBuffer | null} own @param {string} key in base64url */
function isKey(own, key) {
  if (!own) return false;
  const text = btoa(String.fromCharCode(...new Uint8Array(own)));
  return text.replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "") === key;
}

/** The policy of the page takes no script whose address is a mere string. @param {string} url @returns {any} */
function trusted(url) {
  const types = /** @type {any} */ (globalThis).trustedTypes;
  policy ??= types?.createPolicy("service-worker", { createScriptURL: (text) => text });
  return policy ? policy.createScriptURL(url) : url;
}

/** @type {any} */
let policy;
