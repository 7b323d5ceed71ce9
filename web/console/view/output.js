// <sb-output>: what a command has put out. It is at its end, as a terminal is, and stays there until a person scrolls up.

import { ansi } from "../lib/ansi.js";
import { h, render } from "../lib/dom.js";
import { count } from "../lib/text.js";
import { MAX_TERMINAL } from "../state/calls.js";

/** So many of the last lines are shown until a person wants all of them. */
const LINES = 400;
/** Closer to the end than this is at the end. */
const NEAR_PX = 24;

export class Output extends HTMLElement {
  constructor() {
    super();
    this.text = "";
    this.isWhole = false;
    this.atEnd = true;
  }

  /** @param {{text: string}} data */
  set data({ text }) {
    if (text === this.text) return;
    this.text = text;
    this.show();
  }

  connectedCallback() {
    this.show();
  }

  show() {
    if (!this.isConnected) return;
    const lines = this.text.split("\n");
    const cut = this.isWhole ? 0 : Math.max(0, lines.length - LINES);
    const isLost = this.text.length >= MAX_TERMINAL;
    render(
      this,
      cut || isLost ? h("p", { class: "muted" }, cut ? [`${count(cut)} earlier lines `, h("button", { class: "link", type: "button", onclick: () => this.showAll() }, "Show all"), " "] : null, isLost ? "What came before that is no longer kept." : null) : null,
      h("pre", { class: "code terminal", tabindex: "0", "aria-label": "output", onscroll: () => this.scrolled() }, ansi(cut ? lines.slice(cut).join("\n") : this.text)),
    );
    if (this.atEnd && this.screen) this.screen.scrollTop = this.screen.scrollHeight;
  }

  get screen() {
    return this.querySelector("pre");
  }

  scrolled() {
    const { screen } = this;
    if (screen) this.atEnd = screen.scrollHeight - screen.scrollTop - screen.clientHeight < NEAR_PX;
  }

  /** Who wants all of it reads from its start. */
  showAll() {
    this.isWhole = true;
    this.atEnd = false;
    this.show();
    if (!this.screen) return;
    this.screen.scrollTop = 0;
    this.screen.focus();
  }
}

customElements.define("sb-output", Output);
