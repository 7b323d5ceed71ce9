// The official TypeScript SDK as a client, told what to do line by line on stdin.
//
//     client_typescript.mjs SDK_ENTRY --tcp HOST:PORT       over a socket
//     client_typescript.mjs SDK_ENTRY -- COMMAND ARGS..     over a command's stdio, as an IDE does it
//     client_typescript.mjs SDK_ENTRY --web URL TOKEN       through the web door, ws:// or http://
//
// Takes the same orders as client_python.py and prints the same answers and events.

import { spawn } from "node:child_process";
import { readFileSync, writeFileSync } from "node:fs";
import { connect } from "node:net";
import { createInterface } from "node:readline";
import { Readable, Writable } from "node:stream";
import { pathToFileURL } from "node:url";

const [entry, how, ...rest] = process.argv.slice(2);
const acp = await import(pathToFileURL(entry).href);
const say = (message) => process.stdout.write(JSON.stringify(message) + "\n");

let holds = false;

// An editor that allows everything and has the files it is asked for.
const editor = acp
  .client({ name: "interop-typescript" })
  .onRequest(acp.methods.client.session.requestPermission, ({ params }) => {
    say({ event: "permission", session: params.sessionId, options: params.options.map((option) => option.kind) });
    if (holds) {
      return new Promise(() => {});
    }
    const chosen = params.options.find((option) => option.kind.startsWith("allow"));
    return { outcome: { outcome: "selected", optionId: chosen.optionId } };
  })
  .onRequest(acp.methods.client.fs.readTextFile, ({ params }) => {
    say({ event: "read", session: params.sessionId, path: params.path });
    return { content: readFileSync(params.path, "utf8") };
  })
  .onRequest(acp.methods.client.fs.writeTextFile, ({ params }) => {
    say({ event: "write", session: params.sessionId, path: params.path });
    writeFileSync(params.path, params.content);
    return {};
  })
  .onNotification(acp.methods.client.session.update, ({ params }) => {
    const { sessionUpdate: kind, content, status } = params.update;
    say({ event: "update", session: params.sessionId, kind, text: content?.text ?? null, status: status ?? null });
  });

const obey = {
  async initialize(agent) {
    // The same capabilities as the Python SDK sends, so that both clients share a worker.
    const answer = await agent.request(acp.methods.agent.initialize, {
      protocolVersion: acp.PROTOCOL_VERSION,
      clientCapabilities: { fs: { readTextFile: true, writeTextFile: true }, auth: {} },
      clientInfo: { name: "interop-typescript", version: "1.0.0" },
    });
    const info = answer.agentInfo;
    return { version: answer.protocolVersion, agent: info ? `${info.name} ${info.version}` : null };
  },
  async new(agent, { cwd }) {
    return { session: (await agent.request(acp.methods.agent.session.new, { cwd, mcpServers: [] })).sessionId };
  },
  async load(agent, { session, cwd }) {
    await agent.request(acp.methods.agent.session.load, { sessionId: session, cwd, mcpServers: [] });
    return {};
  },
  async prompt(agent, { session, text }) {
    const prompt = [{ type: "text", text }];
    return { stop: (await agent.request(acp.methods.agent.session.prompt, { sessionId: session, prompt })).stopReason };
  },
  async cancel(agent, { session }) {
    await agent.notify(acp.methods.agent.session.cancel, { sessionId: session });
    return null;
  },
  async hold() {
    holds = true;
    return null;
  },
  async close(agent, { session }) {
    return agent.request(acp.methods.agent.session.close, { sessionId: session });
  },
};

// The WebSocket of Node is that of browsers: it shows its token as a subprotocol.
async function throughTheDoor(url, token) {
  const transport = (name) => import(new URL(`../../transports/${name}-stream.js`, pathToFileURL(entry)).href);
  if (url.startsWith("ws")) {
    return (await transport("ws")).createWebSocketStream(url, { protocols: ["acp.v1", `bearer.${token}`] });
  }
  return (await transport("http")).createHttpStream(url, { headers: { authorization: `Bearer ${token}` } });
}

let child = null;
let ends, stream;
if (how === "--web") {
  stream = await throughTheDoor(...rest);
} else if (how === "--tcp") {
  const [host, port] = rest[0].split(":");
  const socket = connect(Number(port), host);
  await new Promise((resolve, reject) => socket.once("connect", resolve).once("error", reject));
  ends = [socket, socket];
} else {
  child = spawn(rest[0], rest.slice(1), { stdio: ["pipe", "pipe", "inherit"] });
  ends = [child.stdin, child.stdout];
}
const connection = editor.connect(stream ?? acp.ndJsonStream(Writable.toWeb(ends[0]), Readable.toWeb(ends[1])));

for await (const line of createInterface({ input: process.stdin })) {
  const { n, do: what, ...order } = JSON.parse(line);
  obey[what](connection.agent, order).then(
    // The SDK hands out an answer before the updates that came in just ahead of it, so those get a moment.
    (ok) => setTimeout(() => say({ n, ok: ok ?? null }), 20),
    (fault) => say({ n, error: { code: fault.code ?? null, message: String(fault.message), data: fault.data ?? null } }),
  );
}
if (child) {
  const gone = new Promise((resolve) => child.once("exit", (code) => resolve(code)));
  child.stdin.end();
  say({ event: "exit", code: await gone });
}
if (stream) {
  await stream.writable.close().catch(() => {});
}
process.exit(0);
