// Checks session envelopes, one a line on stdin, with the schema that npm @slopus/happy-wire publishes.
// Prints one line for each that it refuses, and then how many it has seen.

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const { sessionEnvelopeSchema } = createRequire(process.argv[2] + "/")("@slopus/happy-wire");
const lines = readFileSync(0, "utf8").split("\n").filter((line) => line !== "");
for (const line of lines) {
  const read = sessionEnvelopeSchema.safeParse(JSON.parse(line));
  if (!read.success) console.log(`${line}: ${JSON.stringify(read.error.issues)}`);
}
console.log(lines.length);
