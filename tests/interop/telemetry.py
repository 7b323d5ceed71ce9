"""`stdio-bus otel` and other people's collector: what it passes on, parsed with the published protobufs, has every turn, tool call and
question in its place.

Rotel takes the spans as a collector does, in both encodings of OTLP over HTTP, and exports them to `otlp_sink.py`.
"""

import json
import os
import signal
import socket
import subprocess
import threading
import time

import install
from agents import AGENTS, Place
from kept import Owner
from scenario import expect
from stage import HERE, Bus, Failed, environment, free_port, within

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
ENCODINGS = ["http/protobuf", "http/json"]


def run_all(binary, run, outcome):
    for encoding in ENCODINGS:
        what = f"a collector sees turns, tool calls and questions, by {encoding}"
        folder = run / f"otel-{encoding.replace('/', '-')}"
        (folder / "home").mkdir(parents=True)
        try:
            play(binary, run, folder, encoding)
            outcome.add("otel", what, True)
        except install.Unavailable as why:
            outcome.lacks("otel", what, str(why))
        except (Failed, KeyError, OSError, subprocess.TimeoutExpired) as fault:
            outcome.add("otel", what, False, f"{fault}, see {folder}")


def play(binary, run, folder, encoding):
    with Sink(run, folder) as sink, Collector(run, folder, sink.port) as collector:
        echo = next(agent for agent in AGENTS if agent.name == "echo")
        bus = Bus(binary, run, echo, Place(folder / "home", 0), folder)
        try:
            with Otel(binary, run, folder, bus.address, collector.port, encoding) as otel:
                within(60, lambda: bus.status()["tracers"] == 1, "somebody who follows the traffic")
                talk(bus.address, folder)
                # Spans of the session and of what opened it: initialize, new, two turns, two tool calls, a question.
                within(60, lambda: len([one for one in sink.spans if "invoke_agent" in one["name"]]) == 2, "two turns")
            expect(otel.code == 0, f"otel ends with {otel.code}")
            check(sink.spans)
        finally:
            bus.stop()


def talk(address, folder):
    owner = Owner(address)
    owner.ask("initialize", {"protocolVersion": 1, "clientCapabilities": {}})
    session = owner.ask("session/new", {"cwd": str(folder), "mcpServers": []})["sessionId"]
    meta = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
    params = {"sessionId": session, "prompt": [{"type": "text", "text": "/tool"}], "_meta": meta}
    owner.ask("session/prompt", params)
    owner.prompt(session, "/ask")
    owner.raw.socket.close()


def check(spans):
    turns = [one for one in spans if one["name"] == "invoke_agent echo"]
    tools = [one for one in spans if one["name"].startswith("execute_tool")]
    questions = [one for one in spans if one["name"] == "session/request_permission"]
    expect((len(turns), len(tools), len(questions)) == (2, 2, 1), f"{[one['name'] for one in spans]}")
    turns.sort(key=lambda one: one["start"])
    first, second = turns
    expect((first["trace"], first["parent"]) == (TRACE, PARENT), f"the first turn has another parent: {first}")
    expect(second["parent"] == "" and second["trace"] != TRACE, f"the second turn has a parent: {second}")
    for turn in turns:
        (tool,) = [one for one in tools if one["parent"] == turn["id"]]
        expect(tool["trace"] == turn["trace"], f"the tool call is in another trace: {tool}")
        expect(turn["start"] <= tool["start"] <= tool["end"] <= turn["end"], f"it is not within its turn: {tool}")
        expect(tool["attributes"]["gen_ai.operation.name"] == "execute_tool", f"{tool}")
        expect(turn["attributes"]["gen_ai.agent.name"] == "echo", f"{turn}")
        expect(turn["attributes"]["gen_ai.response.finish_reasons"] == ["end_turn"], f"{turn}")
        if turn is second:
            expect(questions[0]["parent"] == tool["id"], f"the question is not about the tool call: {questions[0]}")
    expect(all(one["resource"]["service.name"] == "interop" for one in spans), f"{spans[0]['resource']}")
    said = json.dumps(spans)
    expect("A tool call that does nothing" not in said and "The tool has run" not in said, "what is said was sent")


class Sink:
    """Takes what the collector exports."""

    def __init__(self, run, folder):
        python = install.pip("otel") / "python"
        pipe = subprocess.PIPE
        self.log = open(folder / "sink.log", "w")
        self.process = subprocess.Popen([str(python), str(HERE / "otlp_sink.py")], stdin=pipe, stdout=pipe, stderr=self.log, env=environment(run), text=True)
        self.port = int(self.process.stdout.readline())
        self.spans = []
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        for line in self.process.stdout:
            self.spans.append(json.loads(line))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait(30)


class Collector:
    """Rotel, which receives OTLP and exports it."""

    def __init__(self, run, folder, sink):
        (program,) = (install.pip("otel").parent / "lib").glob("python*/site-packages/rotel/rotel-agent")
        for _ in range(5):
            grpc, self.port = free_port(), free_port()
            command = [str(program), "start", "--otlp-grpc-endpoint", f"127.0.0.1:{grpc}", "--otlp-http-endpoint", f"127.0.0.1:{self.port}"]
            command += ["--exporter", "otlp", "--otlp-exporter-protocol", "http", "--otlp-exporter-endpoint", f"http://127.0.0.1:{sink}"]
            command += ["--pid-file", str(folder / "collector.pid"), "--log-file", str(folder / "collector.txt")]
            self.log = open(folder / "collector.log", "a")
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, env=environment(run), cwd=folder)
            if self._serves():
                return
        raise Failed("the collector does not start")

    def _serves(self):
        """Whether it listens; another program may have taken its port meanwhile."""
        end = time.monotonic() + 60
        while time.monotonic() < end and self.process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port), 5).close()
                return True
            except OSError:
                time.sleep(0.1)
        return False

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Otel:
    """The command itself."""

    def __init__(self, binary, run, folder, address, port, encoding):
        self.log = open(folder / "otel.log", "w")
        env = {**environment(run), "OTEL_EXPORTER_OTLP_PROTOCOL": encoding, "OTEL_SERVICE_NAME": "interop"}
        command = [binary, "otel", "--tcp", address, "--endpoint", f"http://127.0.0.1:{port}"]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=self.log, env=env, cwd=folder)
        self.code = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.kill(self.process.pid, signal.SIGINT)
        self.code = self.process.wait(60)
