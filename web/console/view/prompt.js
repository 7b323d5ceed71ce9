// <sb-prompt>: the box in which a person writes to an agent. It keeps what is typed by itself, a draft for each session.

import { h, render } from "../lib/dom.js";
import { plain, visible } from "../lib/text.js";
import { bus, note } from "../state/app.js";
import { commandsFor, fileQuery, filesFor, filesOf, hintFor, hintOf, historyOf, KEPT_MAX, partsOf, readBack, shortPath, whyNot, writtenDown } from "../state/compose.js";
import { AttachedList, attachedOf } from "./attach.js";
import { Queue } from "./queue.js";
import { StopButton } from "./stop.js";

const DRAFTS = "stdio-bus.draft ";
const ALONG = "stdio-bus.along ";

/** A draft outlives a visit to another place and a reload of this tab. @param {string} id */
const draftOf = (id) => sessionStorage.getItem(DRAFTS + id) ?? "";

/** @param {string} name @param {string} text */
function keep(name, text) {
  // Longer ones than a browser keeps for a tab are not kept.
  try {
    if (text && text.length <= KEPT_MAX) sessionStorage.setItem(name, text);
    else sessionStorage.removeItem(name);
  } catch {
    sessionStorage.removeItem(name);
  }
}

/** On a screen that is touched, Enter is a new line, and the button sends. */
const isTouch = () => matchMedia("(pointer: coarse)").matches;

export class Prompt extends HTMLElement {
  constructor() {
    super();
    /** @type {{session: any, out: import("../state/outbox.js").Entry[], isLive: boolean} | null} */ this.shown = null;
    this.picked = 0;
    /** The list was sent away, until something else is typed. */
    this.isPlain = false;
    /** The prompt of the queue that is being changed. */
    this.editing = /** @type {string | null} */ (null);
    /** Where one is in what was written before, from its end; 0 is what is being written. */
    this.back = 0;
    this.draft = "";
    /** What goes along, by session. @type {Map<string, import("../state/compose.js").Attached[]>} */ this.attached = new Map();
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
    this.onpaste = (event) => event.clipboardData?.files.length && (event.preventDefault(), this.add([...event.clipboardData.files]));
    this.show();
    this.restore();
  }

  restore() {
    if (!this.area || !this.shown) return;
    this.back = 0;
    this.editing = null;
    this.area.value = draftOf(this.shown.session.id);
    this.grow();
    this.show();
  }

  /** @returns {HTMLTextAreaElement | null} */
  get area() {
    return this.querySelector(".prompt-box textarea");
  }

  /** @returns {import("../state/compose.js").Attached[]} */
  get along() {
    return this.shown ? this.alongOf(this.shown.session.id) : [];
  }

  /** @param {string} id @returns {import("../state/compose.js").Attached[]} */
  alongOf(id) {
    const known = this.attached.get(id) ?? readBack(sessionStorage.getItem(ALONG + id));
    this.attached.set(id, known);
    return known;
  }

  /** What goes along with the next prompt of a session from now on. @param {string} id @param {import("../state/compose.js").Attached[]} list */
  takeAlong(id, list) {
    this.attached.set(id, list);
    keep(ALONG + id, writtenDown(list));
  }

  /** What may be meant by what is typed: commands, or files after an `@`. @returns {{name: string, about: string, take: () => void}[]} */
  get matching() {
    const { area, shown } = this;
    if (!area || !shown || this.isPlain) return [];
    const { commands, cwd } = shown.session;
    const found = commandsFor(commands, area.value);
    if (found.length) return found.map((command) => ({ name: `/${command.name}`, about: [hintOf(command), String(command.description ?? "")].filter(Boolean).join(" · "), take: () => this.put(`/${command.name}${command.input ? " " : ""}`) }));
    const query = fileQuery(area.value, area.selectionStart);
    return query === null ? [] : filesFor(filesOf(shown.session), query).map((path) => ({ name: `@${shortPath(path, cwd)}`, about: path, take: () => this.putFile(query, shortPath(path, cwd)) }));
  }

  show() {
    if (!this.shown || !this.isConnected) return;
    const { session, out, isLive } = this.shown;
    const isRunning = session.turn === "running";
    const matching = this.matching;
    const hint = session.commands.length ? (isTouch() ? "Message, or /" : "Message, or / for a command") : "Message";
    const wants = hintFor(session.commands, this.area?.value ?? "");
    // What is on its way for a moment only is not worth a line that comes and goes.
    const waiting = out.filter((one) => one.state !== "sent" || one.isSlow || !isLive);
    const title = isLive ? (isRunning ? "it waits here until the turn is over" : "send") : "it is kept, and sent when the bus answers again";
    const focused = document.activeElement;
    const isHere = this.contains(focused);
    render(
      this,
      waiting.length ? h(Queue, { out: waiting, editing: this.editing, session: session.id, edit: this.edit, takeBack: this.takeBack }) : null,
      session.isStuck ? h("p", { class: "stuck", role: "alert" }, "The agent has been told to stop, and has not.") : null,
      matching.length ? h("ul", { class: "commands", role: "listbox", "aria-label": "suggestions" }, matching.map((one, at) => h("li", { key: at, role: "option", class: at === this.picked ? "is-picked" : "", "aria-selected": String(at === this.picked), onclick: one.take }, h("span", { class: "mono" }, plain(one.name)), h("span", { class: "muted ellipsis" }, visible(one.about))))) : null,
      wants ? h("p", { class: "hint muted" }, visible(wants)) : null,
      this.along.length ? h(AttachedList, { list: this.along, remove: this.remove_ }) : null,
      h(
        "div",
        { class: "prompt-box" },
        h("button", { class: "button attach", type: "button", title: "attach files", "aria-label": "attach files", onclick: () => /** @type {any} */ (this.querySelector('input[type="file"]')).click() }, "+"),
        h("input", { type: "file", multiple: true, hidden: true, "aria-label": "files", onchange: (event) => (this.add([...event.target.files]), (event.target.value = "")) }),
        h("textarea", { rows: "1", placeholder: hint, "aria-label": `message to ${session.label}`, enterkeyhint: isTouch() ? "enter" : "send", oninput: () => this.typed(), onkeydown: (event) => this.pressed(event) }),
        isRunning ? h(StopButton, { session: session.id, label: session.label, stopAt: session.stopAt ?? 0, isStuck: !!session.isStuck }) : null,
        h("button", { class: "button primary send", type: "button", title, onclick: () => this.send() }, isRunning && isLive ? "Queue" : "Send", isTouch() ? null : h("kbd", null, "⏎")),
      ),
    );
    // Who pressed a button that is gone, Stop above all, goes on at its neighbour.
    if (isHere && !focused?.isConnected) /** @type {HTMLElement | null} */ (this.querySelector(".send"))?.focus();
  }

  /** @param {string | null} key */
  edit = (key) => {
    this.editing = key;
    this.show();
    if (key === null) this.area?.focus();
  };

  /** @param {number} at */
  remove_ = (at) => this.keepAlong(this.along.filter((_, place) => place !== at));

  /** What is taken back can be changed and sent again. @param {import("../state/outbox.js").Entry} one */
  takeBack = (one) => {
    bus.talk.takeBack(one);
    if (!this.area || this.area.value) return;
    this.put(one.text);
  };

  /** @param {import("../state/compose.js").Attached[]} list */
  keepAlong(list) {
    if (this.shown) this.takeAlong(this.shown.session.id, list);
    this.show();
  }

  /** Attaches what the agent takes, and says of the rest why it does not. @param {File[]} files */
  async add(files) {
    const session = this.shown?.session;
    if (!session || files.length === 0) return;
    let capabilities;
    try {
      capabilities = await bus.promptCapabilities(session);
    } catch (fault) {
      return note(`What this agent takes is not known: ${fault.message}`);
    }
    for (const file of files.slice(0, 20)) {
      const one = await attachedOf(file);
      const before = this.alongOf(session.id);
      const why = whyNot(one.block, capabilities, before.reduce((sum, { size }) => sum + size, one.size));
      if (why) note(`${plain(one.name)} ${why}.`);
      else this.takeAlong(session.id, [...before, one]);
    }
    this.show();
    this.area?.focus();
  }

  /** Replaces what is typed. @param {string} text */
  put(text) {
    if (!this.area) return;
    this.area.value = text;
    this.typed();
    this.area.focus();
  }

  /** @param {string} query @param {string} path */
  putFile(query, path) {
    const { area } = this;
    if (!area) return;
    const from = area.selectionStart - query.length;
    area.setRangeText(`${path} `, from, area.selectionStart, "end");
    this.typed();
    area.focus();
  }

  typed() {
    if (this.shown) keep(DRAFTS + this.shown.session.id, this.area?.value ?? "");
    this.picked = 0;
    this.isPlain = false;
    this.back = 0;
    this.grow();
    this.show();
  }

  grow() {
    const area = this.area;
    if (!area) return;
    area.style.setProperty("height", "auto");
    area.style.setProperty("height", `${Math.min(area.scrollHeight, 200)}px`);
  }

  /** Goes through what was written before. Whether there is more of it. @param {number} step 1 is one further back */
  recall(step) {
    const { area, shown } = this;
    if (!area || !shown) return false;
    const said = historyOf(shown.session);
    const to = this.back + step;
    if (to < 0 || to > said.length) return false;
    if (this.back === 0) this.draft = area.value;
    const text = to === 0 ? this.draft : said[said.length - to];
    area.value = text;
    this.typed();
    this.back = to;
    // What was sent once is not being looked for.
    this.isPlain = true;
    area.setSelectionRange(text.length, text.length);
    this.show();
    return true;
  }

  /** @param {KeyboardEvent} event */
  pressed(event) {
    const matching = this.matching;
    const area = /** @type {HTMLTextAreaElement} */ (event.target);
    const isEnter = event.key === "Enter" && !event.shiftKey && !event.altKey && !event.isComposing;
    const sends = isEnter && (event.ctrlKey || event.metaKey || !isTouch());
    const isFirst = area.selectionStart === area.selectionEnd && (area.selectionStart === 0 || (this.back > 0 && area.selectionStart === area.value.length));
    if (matching.length && (event.key === "ArrowDown" || event.key === "ArrowUp")) {
      event.preventDefault();
      this.picked = (this.picked + (event.key === "ArrowDown" ? 1 : matching.length - 1)) % matching.length;
      this.show();
    } else if (matching.length && (event.key === "Tab" || isEnter)) {
      event.preventDefault();
      matching[Math.min(this.picked, matching.length - 1)].take();
    } else if (matching.length && event.key === "Escape") {
      event.preventDefault();
      event.stopPropagation();
      this.isPlain = true;
      this.show();
    } else if (sends) {
      event.preventDefault();
      this.send();
    } else if ((event.key === "ArrowUp" && isFirst) || (event.key === "ArrowDown" && this.back > 0)) {
      if (this.recall(event.key === "ArrowUp" ? 1 : -1)) event.preventDefault();
    }
  }

  send() {
    const { area, shown, along } = this;
    const text = area?.value.trim() ?? "";
    if (!area || !shown || (!text && along.length === 0)) return;
    const { session } = shown;
    const parts = partsOf(text, filesOf(session), session.cwd, along);
    area.value = "";
    this.takeAlong(session.id, []);
    this.typed();
    bus.talk.prompt(session.id, text, parts);
    this.onsent?.();
  }
}

customElements.define("sb-prompt", Prompt);
