// <sb-list>: a long list of which only what is in sight is in the page.
//
// `data` is {items, row, keyOf, estimate, fixed, follow, label, selected}. With `fixed` every row has that height; else
// rows are measured, and what the reader looks at stays where it is while heights above it change. With `follow` the
// list stays at its end as long as the reader has it there. `estimate` is about how high a row is, or makes that of an item: rows that
// are far higher than was thought are drawn although nobody sees them.

import { h, render } from "./dom.js";

const BLOCK = 64;
const MARGIN = 400;

export class List extends HTMLElement {
  constructor() {
    super();
    /** @type {any} */ this.shown = null;
    /** @type {number[]} */ this.heights = [];
    /** @type {number[]} */ this.sums = [];
    /** @type {Map<any, number>} */ this.known = new Map();
    this.atEnd = true;
    this.seen = 0;
    this.width = 0;
    this.anchor = /** @type {{key: any, offset: number} | null} */ (null);
    this.observer = new ResizeObserver((entries) => this.measure(entries));
    this.frame = 0;
    /** Where it was scrolled to when it was drawn last, and whether it was in sight then. */
    this.drawnAt = 0;
    this.wasSeen = false;
  }

  connectedCallback() {
    if (!this.inner) {
      this.view = document.createElement("div");
      this.view.className = "list-view";
      this.inner = document.createElement("div");
      this.inner.className = "list-inner";
      this.view.append(this.inner);
      this.jump = document.createElement("button");
      this.jump.className = "jump";
      this.jump.hidden = true;
      this.jump.onclick = () => this.toEnd();
      this.append(this.view, this.jump);
      this.view.addEventListener("scroll", () => this.onScroll(), { passive: true });
    }
    this.observer.observe(/** @type {Element} */ (this.view));
    this.wasSeen = false;
    this.update();
  }

  disconnectedCallback() {
    this.observer.disconnect();
  }

  /** @param {any} data */
  set data(data) {
    const before = this.shown;
    this.shown = data;
    if (!before || before.items !== data.items || before.fixed !== data.fixed) this.index(before?.items ?? []);
    if (this.isConnected) this.update();
  }

  get data() {
    return this.shown;
  }

  /** Takes over the heights that are known. @param {any[]} before */
  index(before) {
    const { items, keyOf, estimate, fixed } = this.shown;
    if (fixed) return;
    const isLonger = before.length > 0 && items.length >= before.length && keyOf(items[0]) === keyOf(before[0]);
    if (!isLonger || keyOf(items[before.length - 1]) !== keyOf(before[before.length - 1])) {
      this.heights = [];
      this.sums = [];
      if (this.known.size > 4 * items.length + 1000) this.known.clear();
    }
    const guess = typeof estimate === "function" ? estimate : () => estimate;
    for (let at = this.heights.length; at < items.length; at++) {
      this.heights[at] = this.known.get(keyOf(items[at])) ?? guess(items[at]);
      this.sums[Math.floor(at / BLOCK)] = (this.sums[Math.floor(at / BLOCK)] ?? 0) + this.heights[at];
    }
    this.heights.length = items.length;
  }

  /** Where a row begins. @param {number} at */
  top(at) {
    if (this.shown.fixed) return at * this.shown.fixed;
    let top = 0;
    const block = Math.floor(at / BLOCK);
    for (let one = 0; one < block; one++) top += this.sums[one] ?? 0;
    for (let one = block * BLOCK; one < at; one++) top += this.heights[one] ?? 0;
    return top;
  }

  /** The row at this height. @param {number} y */
  rowAt(y) {
    const { items, fixed } = this.shown;
    if (fixed) return Math.max(0, Math.min(items.length - 1, Math.floor(y / fixed)));
    let [block, top] = [0, 0];
    while (block < this.sums.length - 1 && top + this.sums[block] <= y) top += this.sums[block++];
    let at = block * BLOCK;
    while (at < items.length - 1 && top + this.heights[at] <= y) top += this.heights[at++];
    return Math.min(at, Math.max(0, items.length - 1));
  }

  /** @param {ResizeObserverEntry[]} entries */
  measure(entries) {
    let isChanged = false;
    for (const entry of entries) {
      if (entry.target === this.view) {
        if (entry.contentRect.width !== this.width) this.width = entry.contentRect.width;
        isChanged = true;
        continue;
      }
      const row = /** @type {any} */ (entry.target);
      if (!row.isConnected) {
        this.observer.unobserve(row);
        continue;
      }
      const { at, key } = row.place;
      const height = row.getBoundingClientRect().height;
      this.known.set(key, height);
      if (this.heights[at] === undefined || Math.abs(this.heights[at] - height) < 0.5) continue;
      this.sums[Math.floor(at / BLOCK)] += height - this.heights[at];
      this.heights[at] = height;
      isChanged = true;
    }
    if (isChanged) this.update();
  }

  onScroll() {
    this.noteScroll();
    if (!this.frame) this.frame = requestAnimationFrame(() => ((this.frame = 0), this.update()));
  }

  /** Remembers what the reader looks at. */
  noteScroll() {
    const view = /** @type {HTMLElement} */ (this.view);
    this.drawnAt = view.scrollTop;
    this.atEnd = view.scrollTop + view.clientHeight >= view.scrollHeight - 24;
    const at = this.rowAt(view.scrollTop);
    const item = this.shown.items[at];
    this.anchor = item === undefined ? null : { key: this.shown.keyOf(item), offset: view.scrollTop - this.top(at) };
    this.anchorAt = at;
  }

  /** Renders what is in sight. */
  update() {
    const { view, inner, shown } = this;
    if (!view || !inner || !shown) return;
    const { items, row, keyOf, fixed, follow } = shown;
    const height = view.clientHeight;
    // It may have been scrolled since, and the event only comes later: with news in each frame it would never be heeded.
    if (this.wasSeen && height > 0 && view.scrollTop !== this.drawnAt) this.noteScroll();
    this.wasSeen = height > 0;
    const total = this.top(items.length);
    let y = view.scrollTop;
    if (follow && this.atEnd) y = Math.max(0, total - height);
    else if (this.anchor && !fixed) {
      const at = this.find(this.anchor.key);
      if (at >= 0) y = this.top(at) + this.anchor.offset;
    }
    const first = items.length ? this.rowAt(Math.max(0, y - MARGIN)) : 0;
    const last = items.length ? this.rowAt(y + height + MARGIN) : -1;
    const rows = [];
    for (let at = first; at <= last; at++) rows.push(this.rowNode(items[at], at, keyOf, row, fixed));
    inner.style.setProperty("padding-top", `${this.top(first)}px`);
    inner.style.setProperty("padding-bottom", `${Math.max(0, total - this.top(last + 1))}px`);
    inner.setAttribute("role", shown.role ?? "list");
    inner.setAttribute("aria-label", shown.label ?? "");
    render(inner, rows);
    if (Math.abs(view.scrollTop - y) >= 1) view.scrollTop = y;
    this.drawnAt = view.scrollTop;
    this.showJump(items.length);
  }

  /** @param {any} key */
  find(key) {
    const { items, keyOf } = this.shown;
    const near = this.anchorAt ?? 0;
    if (items[near] !== undefined && keyOf(items[near]) === key) return near;
    for (let away = 1; away < 2000; away++) {
      if (near - away >= 0 && items[near - away] !== undefined && keyOf(items[near - away]) === key) return near - away;
    }
    return -1;
  }

  /** @param {any} item @param {number} at @param {any} keyOf @param {any} row @param {any} fixed */
  rowNode(item, at, keyOf, row, fixed) {
    const key = keyOf(item);
    const ref = fixed ? undefined : (el) => this.observer.observe(el);
    const role = this.shown.role === "listbox" ? "presentation" : "listitem";
    return h("div", { key, class: "list-row", role, place: { at, key }, ref }, row(item, at));
  }

  /** @param {number} length */
  showJump(length) {
    const jump = /** @type {HTMLButtonElement} */ (this.jump);
    if (!this.shown.follow || this.atEnd) {
      this.seen = length;
      jump.hidden = true;
      return;
    }
    const fresh = length - this.seen;
    jump.textContent = fresh > 0 ? `${fresh} new ↓` : "to the end ↓";
    jump.hidden = false;
  }

  toEnd() {
    this.atEnd = true;
    this.drawnAt = this.view?.scrollTop ?? 0;
    this.update();
    this.view?.scrollTo({ top: this.view.scrollHeight });
  }

  /** Brings a row into sight. @param {number} at */
  reveal(at) {
    const view = this.view;
    if (!view || at < 0) return;
    this.atEnd = false;
    this.anchorAt = at;
    this.anchor = { key: this.shown.keyOf(this.shown.items[at]), offset: -8 };
    this.drawnAt = view.scrollTop;
    this.update();
  }
}

customElements.define("sb-list", List);
