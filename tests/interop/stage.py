"""What a run stands on: the model server, one bus for each agent with its worker behind a tee, and clients to give orders to.

Everything started here carries the run's mark in its environment, so that at the end it can be told whether anything is left.
"""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time

import install

HERE = install.HERE
MARK = "INTEROP_RUN"
TEE = [sys.executable, str(HERE / "tee.py")]
# Leads nowhere, at once: an agent that calls home is refused instead of answered.
NOWHERE = "http://127.0.0.1:9"


class Failed(Exception):
    """A step that did not go as it must; the message says what was seen."""


def environment(run):
    """The environment of what the suite starts: the mark, and no way out but loopback."""
    keep = {name: os.environ[name] for name in ("PATH", "LANG", "NODE_EXTRA_CA_CERTS") if name in os.environ}
    away = {name: NOWHERE for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")}
    here = {name: "127.0.0.1,localhost" for name in ("NO_PROXY", "no_proxy")}
    return {**keep, **away, **here, MARK: run.name, "HOME": str(run), "TERM": "dumb", "CI": "1"}


def left_behind(run):
    """The processes with the run's mark that still live, as (pid, command line)."""
    mark, found = f"{MARK}={run.name}".encode(), []
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if int(folder.name) != os.getpid() and mark in (folder / "environ").read_bytes().split(b"\0"):
                found.append((int(folder.name), (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()))
        except OSError:
            continue  # It ended meanwhile, or is not ours to read.
    return found


def free_port():
    """A port of this machine that nobody has at the moment, for a program that cannot choose one itself."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def asked(run, tag):
    """How often the model server was asked the question of this tag."""
    return (run / "model.log").read_text().splitlines().count(tag)


class Model:
    """The fake model server, with the tag of each question in its log."""

    def __init__(self, run):
        command = [sys.executable, str(HERE / "fake_model.py")]
        self.log = open(run / "model.log", "w")
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=self.log, env=environment(run))
        self.port = int(self.process.stdout.readline())

    def stop(self):
        self.process.stdin.close()
        self.process.wait()


def pool_of(agent, place, binary, run):
    """The pool of this agent, with its settings in the folder that is its home."""
    command = [binary if word == "@bus" else word for word in agent.command(place)]
    for path, text in agent.files(place).items():
        (place.home / path).parent.mkdir(parents=True, exist_ok=True)
        (place.home / path).write_text(text)
    env = {**environment(run), "HOME": str(place.home), **agent.env(place)}
    if agent.first:
        subprocess.run(agent.first(), env=env, cwd=place.home, stdin=subprocess.DEVNULL, capture_output=True, timeout=120)
    return {"id": agent.name, "command": command[0], "args": command[1:], "cwd": str(place.home), "env": env, "inherit_env": False}


class Bus:
    """A bus with one pool, whose worker is behind a tee."""

    def __init__(self, binary, run, agent, place, folder, limits=(), more=()):
        self.binary, self.run, self.folder = binary, run, folder
        self.config_file = folder / "bus.json"
        (folder / "worker").mkdir()
        pool = pool_of(agent, place, binary, run)
        pool["args"] = [*TEE[1:], str(folder / "worker" / "line"), "--", pool["command"], *pool["args"]]
        pool["command"] = TEE[0]
        self.config = {
            "listen": ["tcp://127.0.0.1:0"],
            "default_pool": agent.name,
            "pools": [pool],
            "limits": {"init_timeout_sec": 240, "drain_timeout_sec": 5, "session_keep_sec": 1, **dict(limits)},
            **dict(more),
        }
        self.write_config()
        self.log = open(folder / "bus.log", "w")
        self.process = subprocess.Popen(
            [binary, "serve", "--config", str(self.config_file)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self.log,
            env={**environment(run), "RUST_LOG": "debug"},
        )
        line = self.process.stdout.readline()
        if not line:
            raise Failed(f"the bus did not start, see {folder}/bus.log")
        self.address = json.loads(line)["listening"].removeprefix("tcp://")

    def write_config(self):
        self.config_file.write_text(json.dumps(self.config, indent=2))

    def reload_with_pool(self, name):
        """Adds a pool to the configuration, has it read again, and waits until the bus knows it."""
        self.config["pools"].append({"id": name, "command": "stdio-bus", "args": ["agent", "echo"]})
        self.write_config()
        self.process.send_signal(signal.SIGHUP)
        within(10, lambda: name in [pool["id"] for pool in self.status()["pools"]], f"pool {name} after the reload")

    def upgrade(self):
        """Has the bus become its own program anew, and waits until that serves; the agents that have lived through it."""
        before, living = self.upgrades(), self.living()
        self.process.send_signal(signal.SIGUSR2)
        within(20, lambda: self.upgrades() > before, "the upgrade")
        if self.living() != living:
            raise Failed(f"the agents were {living} and are {self.living()}")
        return living

    def upgrades(self):
        return (self.status().get("upgraded") or {}).get("count", 0)

    def living(self):
        """The processes of the agent that the pool runs now."""
        return [one.pid for one in self.workers() if one.ended is None]

    def status(self):
        with Raw(self.address) as raw:
            return raw.ask("_bus/status")["result"]

    def workers(self):
        """What each worker process was told and said so far, oldest first."""
        return sorted((Recording(path) for path in (self.folder / "worker").iterdir()), key=lambda one: one.begun)

    def kill_workers(self):
        """kill -9 of every agent that the pool runs now; returns how many, once the bus has started as many anew."""
        before = self.workers()
        living = self.living()
        for pid in living:
            os.kill(pid, signal.SIGKILL)
        within(20, lambda: len(self.workers()) == len(before) + len(living), "a new worker after the kill")
        return len(living)

    def stop(self):
        """A graceful stop; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return "no exit within 30 s"


class Recording:
    """One file of tee.py, parsed."""

    def __init__(self, path):
        self.path, self.pid, self.ended, self.lines = path, None, None, []
        self.begun = float("inf")
        for text in path.read_text().splitlines():
            try:
                entry = json.loads(text)
            except ValueError:
                continue  # The last line of a tee that was killed while it wrote.
            self.begun = min(self.begun, entry["at"])
            if entry["dir"] == "start":
                self.pid = int(entry["line"])
            elif entry["dir"] == "end":
                self.ended = entry["line"]
            else:
                self.lines.append(entry)

    def messages(self, direction, since=0):
        """The JSON objects that went in this direction."""
        for entry in self.lines:
            if entry["dir"] == direction and entry["at"] >= since:
                try:
                    yield json.loads(entry["line"])
                except ValueError:
                    continue  # A stray print of an agent.


class Raw:
    """A plain socket that speaks lines of JSON."""

    def __init__(self, address):
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), 10)
        self.reader = self.socket.makefile("rb")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        # The reader holds the socket open as long as it lives.
        self.reader.close()
        self.socket.close()

    def send(self, message):
        self.socket.sendall(json.dumps(message).encode() + b"\n")

    def read(self):
        line = self.reader.readline()
        if not line:
            raise Failed("the bus closed the connection")
        return json.loads(line)

    def ask(self, method, params=None, **top):
        """One request; its answer. What arrives before is dropped."""
        self.send({"jsonrpc": "2.0", "id": method, "method": method, "params": params or {}, **top})
        while True:
            message = self.read()
            if message.get("id") == method and "method" not in message:
                return message


class Client:
    """A client program that takes orders, and all it was told."""

    def __init__(self, kind, command, run, folder):
        self.kind, self.recording_folder = kind, folder
        self.log = open(folder / "client.log", "w")
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=self.log, env=environment(run), text=True)
        self.session, self.cwd = None, None
        self.events, self.answers, self.count = [], {}, 0
        self.changed = threading.Condition()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        for line in self.process.stdout:
            message = json.loads(line)
            with self.changed:
                if "event" in message:
                    self.events.append(message)
                else:
                    self.answers[message["n"]] = message
                self.changed.notify_all()
        with self.changed:
            self.answers["over"] = True
            self.changed.notify_all()

    def order(self, do, **fields):
        """Gives an order; the number under which it will be answered."""
        self.count += 1
        self.process.stdin.write(json.dumps({"n": self.count, "do": do, **fields}) + "\n")
        self.process.stdin.flush()
        return self.count

    def answer(self, number, seconds=60):
        """Waits for the answer of an order."""
        with self.changed:
            self.changed.wait_for(lambda: number in self.answers or "over" in self.answers, seconds)
            if number not in self.answers:
                raise Failed("the client ended" if "over" in self.answers else f"no answer within {seconds} s")
            return self.answers[number]

    def does(self, do, seconds=60, **fields):
        """An order that must succeed; what it was answered with."""
        answer = self.answer(self.order(do, **fields), seconds)
        if "error" in answer:
            raise Failed(f"{do} was answered {answer['error']}")
        return answer["ok"]

    def sees(self, wanted, since, seconds=60):
        """Waits for an event after the first `since` ones."""
        with self.changed:
            if not self.changed.wait_for(lambda: any(wanted(event) for event in self.events[since:]), seconds):
                raise Failed(f"did not see what it waited for within {seconds} s, but {self.events[since:][-3:]}")

    def stop(self):
        """The client's own end: it closes its connection and exits. Returns the exit code."""
        if not self.process.stdin.closed:
            self.process.stdin.close()
        try:
            return self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return "no exit within 15 s"


def within(seconds, is_so, what):
    """Waits until something is so."""
    end = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > end:
            raise Failed(f"waited {seconds} s for {what}")
        time.sleep(0.05)
