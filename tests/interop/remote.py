"""The official SDKs as remote clients: TypeScript, Python and Rust, by WebSocket and by HTTP, through the web door to the echo agent."""

import concurrent.futures
import json
import signal
import subprocess
import urllib.request

import install
from scenario import expect
from stage import HERE, Client, Failed, environment, within

KINDS = [f"{sdk}-{way}" for sdk in ("typescript", "python", "rust") for way in ("ws", "http")]


def run_all(binary, run, outcome):
    # Everything is installed before the first play.
    for sdk in ("typescript", "python", "rust"):
        program(sdk)
    folder = run / "web-door"
    folder.mkdir()
    door = Door(binary, run, folder)
    try:
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            for kind, play in [(kind, pool.submit(play_one, kind, door, outcome)) for kind in KINDS]:
                try:
                    play.result()
                except (Failed, OSError, ValueError, KeyError) as fault:
                    outcome.add(f"{kind} through the web door", "the play ends", False, repr(fault))
    finally:
        code = door.stop()
    outcome.add("the web door", "the bus stops with exit code 0", code == 0, str(code))


class Door:
    """A bus with the echo agent behind a door at a free port."""

    def __init__(self, binary, run, folder):
        self.binary, self.run, self.folder = binary, run, folder
        self.config = folder / "bus.json"
        pool = {"id": "echo", "command": "stdio-bus", "args": ["agent", "echo", "--state", str(folder / "sessions")]}
        config = {"listen": ["tcp://127.0.0.1:0"], "web": {"listen": "http://127.0.0.1:0"}, "pools": [pool]}
        self.config.write_text(json.dumps(config, indent=2))
        self.process = subprocess.Popen(
            [binary, "serve", "--config", str(self.config)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=open(folder / "bus.log", "w"),
            env={**environment(run), "RUST_LOG": "debug"},
        )
        lines = [self.process.stdout.readline() for _ in range(2)]
        if not all(lines):
            raise Failed(f"the door did not open, see {folder}/bus.log")
        self.url = json.loads(lines[1])["listening"]

    def token(self):
        """A token by a link, as a person gets one."""
        link = subprocess.run(
            [self.binary, "web", "url", "--scope", "control", "--config", str(self.config)],
            env=environment(self.run),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout.strip()
        login = json.dumps({"code": link.split("#c=")[1]}).encode()
        request = urllib.request.Request(f"{self.url}/login", login, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)["token"]

    def client(self, kind, number):
        """A client of this kind, which has initialized."""
        sdk, way = kind.split("-")
        folder = self.folder / f"{kind}-{number}"
        folder.mkdir()
        url = self.url.replace("http", way, 1) + "/acp"
        client = Client(kind, [*program(sdk), "--web", url, self.token()], self.run, folder)
        client.cwd = folder
        expect(client.does("initialize")["version"] == 1, "protocol version")
        return client

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)


def program(sdk):
    if sdk == "rust":
        return [str(install.built("client_rust"))]
    if sdk == "python":
        return [str(install.pip("remote") / "python"), str(HERE / "client_python.py")]
    entry = install.npm("typescript-sdk") / "@agentclientprotocol/sdk/dist/v1/stable/acp.js"
    return [str(install.node_folder() / "node"), str(HERE / "client_typescript.mjs"), str(entry)]


def play_one(kind, door, outcome):
    """All steps of one kind of client, each of which passes or fails on its own."""
    client = door.client(kind, 1)

    def step(what, does):
        try:
            does()
            outcome.add(f"{kind} through the web door", what, True)
        except Failed as fault:
            outcome.add(f"{kind} through the web door", what, False, str(fault))

    try:
        client.session = client.does("new", cwd=str(client.cwd))["session"]
        step("prompt", lambda: says(client, client.session, "Hello, door."))
        step("permission", lambda: is_asked(client))
        step("cancel", lambda: is_cancelled(client))
        step("two sessions", lambda: has_two(client))
        session = client.session
        expect(client.stop() == 0, "the client does not end by itself")
        client = door.client(kind, 2)
        step("load on a new connection", lambda: comes_back(client, session))
    finally:
        client.stop()


def says(client, session, text):
    """A turn that says this back, to this session alone."""
    since = len(client.events)
    answer = client.does("prompt", session=session, text=text)
    expect(answer["stop"] == "end_turn", f"stop reason {answer}")

    def said():
        told = [event for event in client.events[since:] if event.get("kind") == "agent_message_chunk"]
        return {event["session"] for event in told} == {session} and "".join(event["text"] for event in told) == text

    within(10, said, f"{text!r} to be said back, not {client.events[since:][-3:]}")


def is_asked(client):
    since = len(client.events)
    expect(client.does("prompt", session=client.session, text="/ask")["stop"] == "end_turn", "the turn ends")
    expect(any(event["event"] == "permission" for event in client.events[since:]), "no permission was asked for")


def is_cancelled(client):
    since = len(client.events)
    number = client.order("prompt", session=client.session, text="/slow 600")
    client.sees(lambda event: event.get("kind") == "agent_message_chunk", since)
    client.does("cancel", session=client.session)
    answer = client.answer(number)
    expect(answer.get("ok", {}).get("stop") == "cancelled", f"the cancelled turn was answered {answer}")


def has_two(client):
    other = client.does("new", cwd=str(client.cwd))["session"]
    says(client, other, "In the other one.")
    says(client, client.session, "And in the first.")


def comes_back(client, session):
    client.does("load", session=session, cwd=str(client.cwd))
    says(client, session, "Still here.")
