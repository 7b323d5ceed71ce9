"""The official SDKs as remote clients: TypeScript, Python and Rust, by WebSocket and by HTTP, through the web door to the echo agent, and
to a real one where everything is played."""

import concurrent.futures
import json
import signal
import subprocess
import urllib.request

import install
from agents import AGENTS, Place
from scenario import expect, tag_of
from stage import HERE, Client, Failed, environment, pool_of, within

KINDS = [f"{sdk}-{way}" for sdk in ("typescript", "python", "rust") for way in ("ws", "http")]
# Of the first tier, one that other people have written, and which asks, cancels and loads.
REAL = "qwen"


def run_all(binary, run, model, outcome, with_real):
    # Everything is installed before the first play.
    for sdk in ("typescript", "python", "rust"):
        program(sdk)
    behind(Echo(), binary, run, outcome)
    if with_real:
        agent = next(agent for agent in AGENTS if agent.name == REAL)
        behind(Real(agent, run, model), binary, run, outcome)


def behind(agent, binary, run, outcome):
    """All kinds of clients with this agent behind the door."""
    folder = run / f"web-door-{agent.name}"
    folder.mkdir()
    door = Door(binary, run, folder, agent)
    try:
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            for kind, play in [(kind, pool.submit(play_one, kind, door, outcome)) for kind in KINDS]:
                try:
                    play.result()
                except (Failed, OSError, ValueError, KeyError) as fault:
                    outcome.add(row(kind, agent), "the play ends", False, repr(fault))
    finally:
        code = door.stop()
    outcome.add(f"the web door of {agent.name}", "the bus stops with exit code 0", code == 0, str(code))


def tag(kind, name):
    """A word that no other question has in it, as the scripted model wants it."""
    return "TAG-" + "".join(letter for letter in kind + name if letter.isalnum())


def row(kind, agent):
    return f"{kind} through the web door to {agent.name}"


class Echo:
    """What to say to the echo agent."""

    name, asks, endless = "echo", "/ask", "/slow 600"

    def pool(self, binary, folder):
        return {"id": "echo", "command": "stdio-bus", "args": ["agent", "echo", "--state", str(folder / "sessions")]}

    def text(self, word):
        return word


class Real:
    """What to say to an agent of the suite."""

    def __init__(self, agent, run, model):
        self.agent, self.run, self.name = agent, run, agent.name
        self.place = Place(run / "home-web-door", model.port)
        self.place.home.mkdir()
        self.asks = (agent.permission or agent.tool).format(tag=tag_of(agent, "asks"), cwd=".")
        self.endless = agent.endless.format(tag=tag_of(agent, "endless"), cwd=".")

    def pool(self, binary, folder):
        return pool_of(self.agent, self.place, binary, self.run)

    def text(self, word):
        return self.agent.plain.format(tag=word, cwd=".")


class Door:
    """A bus with an agent behind a door at a free port."""

    def __init__(self, binary, run, folder, agent):
        self.binary, self.run, self.folder, self.agent = binary, run, folder, agent
        self.config = folder / "bus.json"
        config = {
            "listen": ["tcp://127.0.0.1:0"],
            "web": {"listen": "http://127.0.0.1:0"},
            "pools": [agent.pool(binary, folder)],
            "limits": {"init_timeout_sec": 240, "drain_timeout_sec": 5},
        }
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
        expect(client.does("initialize", seconds=240)["version"] == 1, "protocol version")
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
    client, agent = door.client(kind, 1), door.agent

    def step(what, does):
        try:
            does()
            outcome.add(row(kind, agent), what, True)
        except Failed as fault:
            outcome.add(row(kind, agent), what, False, str(fault))

    try:
        client.session = client.does("new", cwd=str(client.cwd), seconds=120)["session"]
        step("prompt", lambda: says(client, agent, client.session, tag(kind, "first")))
        step("permission", lambda: is_asked(client, agent))
        step("cancel", lambda: is_cancelled(client, agent))
        step("two sessions", lambda: has_two(client, agent, kind))
        session = client.session
        expect(client.stop() == 0, "the client does not end by itself")
        client = door.client(kind, 2)
        step("load on a new connection", lambda: comes_back(client, agent, session, kind))
    finally:
        client.stop()


def says(client, agent, session, word):
    """A turn whose answer has this word, told to this session alone."""
    since = len(client.events)
    answer = client.does("prompt", session=session, text=agent.text(word), seconds=120)
    expect(answer["stop"] == "end_turn", f"stop reason {answer}")

    def said():
        told = [event for event in client.events[since:] if event.get("kind") == "agent_message_chunk"]
        return {event["session"] for event in told} == {session} and word in "".join(event["text"] for event in told)

    within(10, said, f"{word!r} to be said, not {client.events[since:][-3:]}")


def is_asked(client, agent):
    since = len(client.events)
    answer = client.does("prompt", session=client.session, text=agent.asks, seconds=120)
    expect(answer["stop"] == "end_turn", f"stop reason {answer}")
    expect(any(event["event"] == "permission" for event in client.events[since:]), "no permission was asked for")


def is_cancelled(client, agent):
    since = len(client.events)
    number = client.order("prompt", session=client.session, text=agent.endless)
    client.sees(lambda event: event.get("kind") == "agent_message_chunk", since)
    client.does("cancel", session=client.session)
    answer = client.answer(number)
    expect(answer.get("ok", {}).get("stop") == "cancelled", f"the cancelled turn was answered {answer}")


def has_two(client, agent, kind):
    other = client.does("new", cwd=str(client.cwd), seconds=120)["session"]
    says(client, agent, other, tag(kind, "other"))
    says(client, agent, client.session, tag(kind, "again"))


def comes_back(client, agent, session, kind):
    client.does("load", session=session, cwd=str(client.cwd), seconds=120)
    says(client, agent, session, tag(kind, "back"))
