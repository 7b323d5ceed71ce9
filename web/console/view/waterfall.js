// A turn as a waterfall: where did the time go.

import { h } from "../lib/dom.js";
import { duration, visible } from "../lib/text.js";
import { titleOf } from "./tool.js";

/** @typedef {{lane: string, label: string, start: number, end: number, kind: string}} Bar */

/** The bars of a turn, in milliseconds, from what was said in it. @param {any[]} items @param {any} turn */
export function turnOf(items, turn) {
  const [start, end] = [turn.at, turn.end];
  const bars = /** @type {Bar[]} */ ([]);
  const within = items.filter((item) => item.key < turn.key && item.at >= start - 1 && item.at <= end);
  const first = within.find((item) => item.kind !== "user" && item.at);
  if (first) bars.push({ lane: "agent", label: "until the first word", start, end: first.at, kind: "wait" });
  for (const item of within) {
    if (item.kind === "thought") bars.push({ lane: "agent", label: "thinking", start: item.at, end: item.end ?? end, kind: "think" });
    else if (item.kind === "agent") bars.push({ lane: "agent", label: "writing", start: item.at, end: item.end ?? end, kind: "stream" });
    else if (item.kind === "tools") for (const call of item.calls) bars.push({ lane: "tools", label: titleOf(call), start: call.at || item.at, end: call.end || end, kind: call.status === "failed" ? "error" : "tool" });
    else if (item.kind === "question") bars.push({ lane: "you", label: "waited for an answer", start: item.at, end: item.question.end ?? end, kind: "ask" });
  }
  return { start, end, bars, unit: 1 };
}

/** @param {{start: number, end: number, bars: Bar[], unit?: number}} props `unit` is how many milliseconds one is */
export function Waterfall({ start, end, bars, unit = 1 }) {
  const whole = Math.max(1e-9, end - start);
  const share = (part) => `${Math.max(0, Math.min(100, (part / whole) * 100)).toFixed(2)}%`;
  const shown = bars.slice(0, 60);
  const sums = new Map();
  for (const bar of bars) if (bar.kind !== "turn") sums.set(bar.lane, [...(sums.get(bar.lane) ?? []), bar]);
  const total = [...sums].map(([lane, list]) => `${lane} ${duration(covered(list) * unit)}`).join(" · ");
  return h(
    "figure",
    { class: "waterfall" },
    h("figcaption", { class: "num" }, `${duration(whole * unit)} in all`, total ? ` · ${total}` : ""),
    h(
      "ol",
      null,
      shown.map((bar, key) =>
        h(
          "li",
          { key, title: `${bar.label}: ${duration((bar.end - bar.start) * unit)}, after ${duration((bar.start - start) * unit)}` },
          h("span", { class: "lane muted" }, bar.lane),
          h("span", { class: "bar-label mono ellipsis" }, visible(bar.label)),
          h("span", { class: "track" }, h("span", { class: `bar k-${bar.kind}`, css: { "margin-left": share(bar.start - start), width: share(bar.end - bar.start) } })),
          h("span", { class: "num" }, duration((bar.end - bar.start) * unit)),
        ),
      ),
    ),
    bars.length > shown.length ? h("p", { class: "muted" }, `${bars.length - shown.length} more`) : null,
  );
}

/** How long at least one of the bars lasted. @param {Bar[]} bars */
export function covered(bars) {
  let [sum, until] = [0, -Infinity];
  for (const { start, end } of [...bars].sort((one, other) => one.start - other.start)) {
    sum += Math.max(0, end - Math.max(start, until));
    until = Math.max(until, end);
  }
  return sum;
}
