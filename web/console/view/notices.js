// The line in Waiting that says whether this browser tells of questions while nobody looks, and turns it on and off.

import { h } from "../lib/dom.js";
import { line } from "../state/notices.js";
import { attempt, bus } from "../state/app.js";

const isApple = /iPhone|iPad/.test(navigator.userAgent);

/** @param {{notices: import("../state/notices.js").Told}} props */
export function Notices({ notices }) {
  const { state } = notices;
  const button = (text, act, isDisabled = false) => h("button", { class: "button small", type: "button", disabled: isDisabled, onclick: () => attempt(act) }, text);
  if (state === "missing") return h("p", { class: "notices muted" }, isApple ? "To be told while you are away, add this page to the Home Screen and open it there." : "This browser cannot tell you while you are away.");
  if (state === "denied") return h("p", { class: "notices muted" }, "Notifications are blocked by the browser. Its settings for this page can allow them.");
  if (state === "on") return h("p", { class: "notices muted" }, h("span", null, onText(notices)), button("Turn off", () => bus.notices.turnOff()));
  return h("p", { class: "notices muted" }, button("Tell me while I am away", () => bus.notices.turnOn(), state === "asking"), h("span", null, state === "asking" ? "The browser asks you." : "Notifications are off."));
}

/** @param {import("../state/notices.js").Told} notices */
function onText({ push, why }) {
  if (push) return "Notifications are on, also while no page is open. This browser stays signed in for them.";
  return why ? `Notifications are on while this page is open. Web Push is not: ${line(why)}` : "Notifications are on while this page is open.";
}
