#!/usr/bin/env node
// Starts the program of the package for this platform, with the same arguments, streams, signals and exit code.
"use strict";

const { spawn } = require("node:child_process");
const os = require("node:os");

const name = `@stdio-bus/${process.platform}-${process.arch}`;
let program;
try {
  program = require.resolve(`${name}/stdio-bus`);
} catch {
  console.error(`stdio-bus: there is no package ${name}. Either the platform is not supported, or it was installed with --omit=optional; ` +
    "build it from source with: cargo install --path . --locked");
  process.exit(1);
}
const child = spawn(program, process.argv.slice(2), { stdio: "inherit" });
for (const signal of ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"]) {
  // A terminal sends Ctrl-C to both; what comes to this process alone is passed on.
  process.on(signal, () => signal === "SIGINT" && process.stdin.isTTY ? undefined : child.kill(signal));
}
child.on("error", (error) => {
  console.error(`stdio-bus: ${program}: ${error.message}`);
  process.exit(1);
});
child.on("exit", (code, signal) => process.exit(signal ? 128 + os.constants.signals[signal] : code));
