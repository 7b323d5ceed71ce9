// A reporter for the gate: the tests that have failed, as the arguments of `tests/browser/run --again`, a line for each.

import path from "node:path";

/** @param {AsyncIterable<{ type: string, data: any }>} events */
export default async function* failed(events) {
  for await (const { type, data } of events) {
    const isOnlyOf = data?.details?.error?.failureType === "subtestsFailed";
    if (type === "test:fail" && !isOnlyOf && data.file) yield `${path.basename(data.file)}: ${data.name}\n`;
  }
}
