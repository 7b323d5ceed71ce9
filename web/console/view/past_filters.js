// Where and when something was said: what narrows the list of past sessions.

import { h } from "../lib/dom.js";
import { visible } from "../lib/text.js";

const TIMES = [["", "any time"], ["1", "last day"], ["7", "last 7 days"], ["30", "last 30 days"]];

/** Where and when it was said. @param {{past: import("../state/past.js").Past, pools: string[], narrow: (change: any) => void}} props */
export const Filters = ({ past: { filter }, pools, narrow }) =>
  h(
    "div",
    { class: "past-filters" },
    h("select", { "aria-label": "pool", onchange: (event) => narrow({ pool: event.target.value }) }, [["", "all pools"], ...pools.map((pool) => [pool, visible(pool)])].map(([value, name]) => h("option", { key: value, value, selected: value === filter.pool }, name))),
    h("input", { type: "search", placeholder: "Folder", "aria-label": "folder", value: filter.folder, oninput: (event) => narrow({ folder: event.target.value }) }),
    h("select", { "aria-label": "time", onchange: (event) => narrow({ days: event.target.value }) }, TIMES.map(([value, name]) => h("option", { key: value, value, selected: value === filter.days }, name))),
  );
