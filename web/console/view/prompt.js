// <sb-prompt>: the box in which a person writes to an agent. It keeps what is typed by itself, a draft for each session.

import { h, render } from "../lib/dom.js";
import { plain, visible } from "../lib/text.js";
import { attempt, bus } from "../state/app.js";

/** @type {Map<string, string>} */
const drafts = new Map();

export class Prompt extends HTMLElement {
  constructor() {
    super();
    /** @type {any} */ this.shown = null;
    this.picked = 0;
    /** Called when something was sent. @type {(() => void) | null} */ this.onsent = null;
  }

  /** @param {any} session */
  set session(session) {
    const isOther = this.shown?.id !== session.id;
    this.shown = session;
    this.show();
    if (isOther && this.area) {
      this.area.value = drafts.get(session.id) ?? "";
      this.grow();
    }
  }

  connectedCallback() {
    this.show();
  }

  /** @returns {HTMLTextAreaElement | null} */
  get area() {
    return this.querySelector("textarea");
  }

  /** Commands that begin with what is typed. */
  get matching() {
    const typed = this.area?.value ?? "";
    if (!/^\/\S*$/.test(typed)) return [];
    return this.shown.commands.filter((command) => `/${command.name}`.startsWith(typed) && `/${command.name}` !== typed).slice(0, 8);
  }

  show() {
    if (!this.shown || !this.isConnected) return;
    const { id, label, turn, queue, commands } = this.shown;
    const isRunning = turn === "running";
    const matching = this.matching;
    const hint = commands.length ? "Message, or / for a command" : "Message";
    render(
      this,
      queue.length ? h("ol", { class: "queue", "aria-label": "waiting prompts" }, queue.map((one) => h("li", { key: one.rpc }, h("span", { class: "muted" }, "waits: "), h("span", { class: "ellipsis" }, visible(one.text)), h("button", { class: "link", type: "button", onclick: () => bus.talk.unqueue(one.rpc) }, "take back")))) : null,
      matching.length ? h("ul", { class: "commands", role: "listbox", "aria-label": "commands" }, matching.map((command, at) => h("li", { key: command.name, role: "option", class: at === this.picked ? "is-picked" : "", "aria-selected": String(at === this.picked), onclick: () => this.take(command) }, h("span", { class: "mono" }, `/${plain(command.name)}`), h("span", { class: "muted ellipsis" }, visible(String(command.description ?? "")))))) : null,
      h(
        "div",
        { class: "prompt-box" },
        h("textarea", { rows: "1", placeholder: hint, "aria-label": `message to ${label}`, oninput: () => this.typed(), onkeydown: (event) => this.pressed(event) }),
        isRunning ? h("button", { class: "button stop", type: "button", title: "stop the turn", onclick: () => bus.talk.stop(id) }, "Stop") : null,
        h("button", { class: "button primary send", type: "button", title: isRunning ? "send; it waits for its turn if another's is running" : "send", onclick: () => this.send() }, "Send", h("kbd", null, "⏎")),
      ),
    );
  }

  typed() {
    drafts.set(this.shown.id, this.area?.value ?? "");
    this.picked = 0;
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
    if (matching.length && (event.key === "ArrowDown" || event.key === "ArrowUp")) {
      event.preventDefault();
      this.picked = (this.picked + (event.key === "ArrowDown" ? 1 : matching.length - 1)) % matching.length;
      this.show();
    } else if (matching.length && event.key === "Tab") {
      event.preventDefault();
      this.take(matching[this.picked]);
    } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      this.send();
    }
  }

  send() {
    const text = this.area?.value.trim();
    if (!text || !this.area) return;
    this.area.value = "";
    this.typed();
    attempt(() => bus.talk.prompt(this.shown.id, text));
    this.onsent?.();
  }
}

customElements.define("sb-prompt", Prompt);
