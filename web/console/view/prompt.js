// <sb-prompt>: the box in which a person writes to an agent. It keeps what is typed by itself, a draft for each session.

import { h, render } from "../lib/dom.js";
import { look, table } from "../lib/table.js";
import { plain, visible } from "../lib/text.js";
import { bus } from "../state/app.js";

const DRAFTS = "stdio-bus.draft ";

/** A draft outlives a visit to another place and a reload of this tab. @param {string} id */
const draftOf = (id) => sessionStorage.getItem(DRAFTS + id) ?? "";

/** @param {string} id @param {string} text */
function keepDraft(id, text) {
  // Longer ones than a browser keeps for a tab are not kept.
  if (text && text.length < 1e6) sessionStorage.setItem(DRAFTS + id, text);
  else sessionStorage.removeItem(DRAFTS + id);
}

/** What is said of a prompt that the agent does not have yet. */
const STATES = table({ unsent: "not sent yet: ", sent: "on its way: ", waits: "waits: ", unsure: "may not have arrived: ", refused: "was refused: " });

export class Prompt extends HTMLElement {
  constructor() {
    super();
    /** @type {{session: any, out: import("../state/outbox.js").Entry[], isLive: boolean} | null} */ this.shown = null;
    this.picked = 0;
    /** The list of commands was sent away, until something else is typed. */
    this.isPlain = false;
    /** Called when something was sent. @type {(() => void) | null} */ this.onsent = null;
  }

  /** @param {any} data */
  set data(data) {
    const isOther = this.shown?.session.id !== data.session.id;
    this.shown = data;
    this.show();
    if (isOther) this.restore();
  }

  get data() {
    return this.shown;
  }

  connectedCallback() {
    this.show();
    this.restore();
  }

  restore() {
    if (!this.area || !this.shown) return;
    this.area.value = draftOf(this.shown.session.id);
    this.grow();
  }

  /** @returns {HTMLTextAreaElement | null} */
  get area() {
    return this.querySelector("textarea");
  }

  /** Commands that begin with what is typed. */
  get matching() {
    const typed = this.area?.value ?? "";
    if (!this.shown || this.isPlain || !/^\/\S*$/.test(typed)) return [];
    const { commands } = this.shown.session;
    // One that is typed in full is meant, although others may begin with it too.
    if (commands.some((command) => `/${command.name}` === typed)) return [];
    return commands.filter((command) => `/${command.name}`.startsWith(typed)).slice(0, 8);
  }

  show() {
    if (!this.shown || !this.isConnected) return;
    const { session, out, isLive } = this.shown;
    const isRunning = session.turn === "running";
    const matching = this.matching;
    const hint = session.commands.length ? "Message, or / for a command" : "Message";
    // What is on its way for a moment only is not worth a line that comes and goes.
    const waiting = out.filter((one) => one.state !== "sent" || one.isSlow || !isLive);
    render(
      this,
      waiting.length ? h("ol", { class: "queue", "aria-label": "waiting prompts" }, waiting.map((one) => this.waitingLine(one))) : null,
      matching.length ? h("ul", { class: "commands", role: "listbox", "aria-label": "commands" }, matching.map((command, at) => h("li", { key: at, role: "option", class: at === this.picked ? "is-picked" : "", "aria-selected": String(at === this.picked), onclick: () => this.take(command) }, h("span", { class: "mono" }, `/${plain(command.name)}`), h("span", { class: "muted ellipsis" }, visible(String(command.description ?? "")))))) : null,
      h(
        "div",
        { class: "prompt-box" },
        h("textarea", { rows: "1", placeholder: hint, "aria-label": `message to ${session.label}`, oninput: () => this.typed(), onkeydown: (event) => this.pressed(event) }),
        isRunning ? h("button", { class: "button stop", type: "button", title: "stop the turn", onclick: () => bus.talk.stop(session.id) }, "Stop") : null,
        h("button", { class: "button primary send", type: "button", title: isLive ? (isRunning ? "send; it waits for its turn if another's is running" : "send") : "it is kept, and sent when the bus answers again", onclick: () => this.send() }, "Send", h("kbd", null, "⏎")),
      ),
    );
  }

  /** @param {import("../state/outbox.js").Entry} one */
  waitingLine(one) {
    const isMine = one.state === "unsure" || one.state === "refused";
    return h(
      "li",
      { key: one.key, class: `is-${one.state}` },
      h("span", { class: "what" }, look(STATES, one.state)),
      h("span", { class: "ellipsis" }, visible(one.text)),
      isMine ? h("button", { class: "link", type: "button", onclick: () => bus.talk.sendAgain(one) }, "send again") : null,
      // What is on its way is no longer here.
      one.state === "sent" ? null : h("button", { class: "link", type: "button", onclick: () => this.takeBack(one) }, "take back"),
    );
  }

  /** What is taken back can be changed and sent again. @param {import("../state/outbox.js").Entry} one */
  takeBack(one) {
    bus.talk.takeBack(one);
    if (!this.area || this.area.value) return;
    this.area.value = one.text;
    this.typed();
  }

  typed() {
    if (this.shown) keepDraft(this.shown.session.id, this.area?.value ?? "");
    this.picked = 0;
    this.isPlain = false;
    this.grow();
    this.show();
  }

  grow() {
    const area = this.area;
    if (!area) return;
    area.style.setProperty("height", "auto");
    area.style.setProperty("height", `${Math.min(area.scrollHeight, 200)}px`);
  }

  /** @param {any} command */
  take(command) {
    if (!this.area) return;
    this.area.value = `/${command.name}${command.input ? " " : ""}`;
    this.typed();
    this.area.focus();
  }

  /** @param {KeyboardEvent} event */
  pressed(event) {
    const matching = this.matching;
    const isEnter = event.key === "Enter" && !event.shiftKey && !event.isComposing;
    if (matching.length && (event.key === "ArrowDown" || event.key === "ArrowUp")) {
      event.preventDefault();
      this.picked = (this.picked + (event.key === "ArrowDown" ? 1 : matching.length - 1)) % matching.length;
      this.show();
    } else if (matching.length && (event.key === "Tab" || isEnter)) {
      event.preventDefault();
      this.take(matching[this.picked]);
    } else if (matching.length && event.key === "Escape") {
      event.preventDefault();
      event.stopPropagation();
      this.isPlain = true;
      this.show();
    } else if (isEnter) {
      event.preventDefault();
      this.send();
    }
  }

  send() {
    const text = this.area?.value.trim();
    if (!text || !this.area || !this.shown) return;
    this.area.value = "";
    this.typed();
    bus.talk.prompt(this.shown.session.id, text);
    this.onsent?.();
  }
}

customElements.define("sb-prompt", Prompt);
