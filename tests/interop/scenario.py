"""The play: four clients (or two) and one agent behind the bus, all at once on one worker, through every step that must be seen to work.

Each step is done by every client at the same time, and passes or fails for each of them on its own. What a client was told must be
about its own session and hold its own words only.
"""

import concurrent.futures
import subprocess
import sys
import time

import install
from stage import HERE, TEE, Bus, Client, Failed, Recording, asked, environment, within

STEPS = ["initialize", "new", "prompt", "tool", "permission", "two sessions", "cancel", "reload", "upgrade", "crash", "leave"]
CLIENTS = ["python-tcp", "python-connect", "typescript-tcp", "typescript-connect"]
WORKER_LOST, UNKNOWN_SESSION = -32050, -32051


class Play:
    def __init__(self, binary, run, agent, place, folder):
        self.agent, self.folder = agent, folder
        self.cells = {name: {} for name in ([CLIENTS[0], CLIENTS[-1]] if agent.few else CLIENTS)}
        """By client and step: ("ok" | "told" | "fail" | "-", detail)."""
        self.bus = Bus(binary, run, agent, place, folder)
        self.run, self.binary = run, binary
        self.clients, self.tees = [], []

    def perform(self, afterwards):
        """All steps of the clients, and what comes after they left; then the bus is stopped."""
        try:
            for name in list(self.cells):
                self.clients.append(self.enter(name))
            self.each("initialize", self.initialize)
            self.each("new", self.new)
            self.each("prompt", self.prompt)
            if any(cells["prompt"][0] == "ok" for cells in self.cells.values()):
                self.act()
            self.each("leave", self.leave)
            afterwards(self)
        finally:
            for client in self.clients:
                client.stop()
            for tee in self.tees:
                tee.stdin.close()
                tee.wait()
            self.exit_code = self.bus.stop()

    def act(self):
        """What needs an agent that answers."""
        self.each("tool", self.tool)
        self.each("permission", self.permission)
        self.two_sessions()
        self.each("cancel", self.cancel)
        self.reload()
        self.upgrade()
        self.crash()

    def enter(self, name):
        """Starts a client, with a tee between it and the bus."""
        folder = self.folder / name
        (folder / "work").mkdir(parents=True)
        (folder / "wire").mkdir()
        wire = str(folder / "wire" / "line")
        sdk, way = name.split("-")
        if way == "tcp":
            pipe = subprocess.PIPE
            command = [*TEE, wire, "--to", self.bus.address]
            tee = subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment(self.run))
            self.tees.append(tee)
            how = ["--tcp", f"127.0.0.1:{int(tee.stdout.readline())}"]
        else:
            door = [self.binary, "connect", "--tcp", self.bus.address, "--pool", self.agent.name]
            how = ["--", *TEE, wire, "--", *door]
        if sdk == "python":
            program = [sys.executable, str(HERE / "client_python.py")]
        else:
            entry = install.npm("typescript-sdk") / "@agentclientprotocol/sdk/dist/v1/stable/acp.js"
            program = ["node", str(HERE / "client_typescript.mjs"), str(entry)]
        client = Client(name, [*program, *how], self.run, folder)
        client.cwd = folder / "work"
        client.tag = tag_of(self.agent, sdk + way)
        return client

    def each(self, step, does):
        """One step of every client, all at once."""
        with concurrent.futures.ThreadPoolExecutor(len(self.clients)) as pool:
            for client, future in [(client, pool.submit(self.one, step, does, client)) for client in self.clients]:
                self.cells[client.kind][step] = future.result()

    def one(self, step, does, client):
        if step in self.agent.cannot:
            return ("-", self.agent.cannot[step])
        try:
            done = does(client)
            return done if isinstance(done, tuple) else ("ok", "")
        except Failed as fault:
            return ("fail", str(fault))

    def initialize(self, client):
        answer = client.does("initialize", seconds=240)
        expect(answer["version"] == 1, f"protocol version {answer['version']}")

    def new(self, client):
        client.session = client.does("new", cwd=str(client.cwd), seconds=60)["session"]
        tag, dot, own = client.session.partition(".")
        expect(len(tag) == 13 and dot and own, f"session id {client.session}")

    def prompt(self, client):
        self.whole_turn(client, self.agent.plain)

    def tool(self, client):
        if self.agent.tool is None:
            told = client.events  # Every turn of this agent calls tools.
        else:
            told = self.whole_turn(client, self.agent.tool, says_tag=False)
        calls = [event for event in told if event.get("kind") in ("tool_call", "tool_call_update")]
        expect(calls, "no tool call was told")
        expect(any(event["status"] == "completed" for event in calls), f"no tool call was completed: {calls}")
        if self.agent.proof:
            expect((client.cwd / "proof.txt").exists(), "the tool left no proof.txt in the session's folder")

    def permission(self, client):
        if self.agent.permission:
            self.whole_turn(client, self.agent.permission, says_tag=False)
        asked = [event for event in client.events if event["event"] == "permission"]
        expect(asked, "no permission was asked for")
        expect(all(event["session"] == client.session for event in asked), "asked about somebody else's session")

    def two_sessions(self):
        """Long turns of all clients at once; they must have shared one process and been told in turns."""
        begun = time.time()
        self.each("two sessions", lambda client: self.whole_turn(client, self.agent.long))
        used = [one for one in self.bus.workers() if any(is_prompt(message) for message in one.messages("in", begun))]
        own = [m["params"]["sessionId"] for one in used for m in one.messages("out", begun) if m.get("method") == "session/update"]
        turns = sum(1 for left, right in zip(own, own[1:]) if left != right)
        for name, cell in self.cells.items():
            if len(used) != 1:
                cell["two sessions"] = ("fail", f"{len(used)} workers served the sessions")
            elif "cancel" not in self.agent.cannot and not self.agent.whole and not self.agent.few and turns < len(CLIENTS):
                cell["two sessions"] = ("fail", f"one after the other: {turns} changes of speaker")
            elif cell.get("two sessions", [""])[0] == "ok":
                cell["two sessions"] = ("ok", f"{len(set(own))} sessions, {turns} changes of speaker")

    def cancel(self, client):
        since, asks = len(client.events), asked(self.run, client.tag)
        number = client.order("prompt", session=self.session_of(client), text=self.say(client, self.agent.endless))
        self.has_begun(client, since, asks)
        client.order("cancel", session=client.session)
        answer = client.answer(number, 30)
        expect(answer.get("ok", {}).get("stop") == "cancelled", f"the prompt was answered {answer}")

    def reload(self):
        """SIGHUP in the middle of everybody's turn: the turns end well, the sessions go on, the new pool is there."""
        turns = self.begin_turns(self.agent.long)
        try:
            self.bus.reload_with_pool("late")
            fault = None
        except Failed as seen:
            fault = seen

        def goes_on(client):
            if fault:
                raise fault
            number, since = turn_of(client, turns)
            self.check_turn(client, client.answer(number, 120), since, says_tag=True)
            self.whole_turn(client, self.agent.plain)

        self.each("reload", goes_on)

    def upgrade(self):
        """SIGUSR2 in the middle of everybody's turn: the bus becomes its own program anew, and no client or agent notices."""
        turns = self.begin_turns(self.agent.long)
        try:
            living = self.bus.upgrade()
            running = [client for client in self.clients if client.kind in turns and turns[client.kind][0] not in client.answers]
            fault = None
        except Failed as seen:
            fault = seen

        def goes_on(client):
            if fault:
                raise fault
            expect(running or "cancel" in self.agent.cannot, "every turn was over before the upgrade was")
            number, since = turn_of(client, turns)
            self.check_turn(client, client.answer(number, 120), since, says_tag=True)
            self.whole_turn(client, self.agent.plain)
            expect(self.bus.living() == living, f"the agents were {living} and are {self.bus.living()}")
            return ("ok", f"{len(running)} turns went on")

        self.each("upgrade", goes_on)

    def crash(self):
        """kill -9 in the middle of everybody's turn: each is told once; the next prompt goes on where the agent can."""
        instant = "cancel" in self.agent.cannot
        turns = {} if instant else self.begin_turns(self.agent.endless)
        killed = self.bus.kill_workers()

        def goes_on(client):
            expect(killed == 1, f"{killed} workers to kill")
            if not instant:
                error = client.answer(turn_of(client, turns)[0], 30).get("error") or {}
                expect(error.get("code") == WORKER_LOST, f"the prompt in flight was answered {error}")
            since = len(client.events)
            text = self.say(client, self.agent.recall or self.agent.plain, "TAG-after")
            answer = client.answer(client.order("prompt", session=self.session_of(client), text=text), 120)
            if "error" in answer and self.agent.resumes is not True:
                error = answer["error"]
                lost = error["code"] == UNKNOWN_SESSION and (error["data"] or {}).get("lost") is True
                expect(lost, f"the next prompt was answered {error}")
                return ("told", "the agent could not resume; its client is told that the session is lost")
            expect(self.agent.resumes, f"the agent cannot resume, but the next prompt was answered {answer}")
            told = self.check_turn(client, answer, since, True, "TAG-after")
            if self.agent.recall:
                expect(client.tag in speech(told), f"does not remember what was said before: {speech(told)[:300]}")
            return ("ok", "and remembers" if self.agent.recall else "")

        self.each("crash", goes_on)

    def leave(self, client):
        code = client.stop()
        expect(code == 0, f"the client ended with {code}")
        ends = [event["code"] for event in client.events if event["event"] == "exit"]
        expect(not ends or ends == [0], f"stdio-bus connect ended with {ends}")

    def begin_turns(self, text):
        """A prompt of every client, under way: by client, (number of the order, events before it)."""
        turns, asks = {}, {}
        for client in self.clients:
            since, asks[client.kind] = len(client.events), asked(self.run, client.tag)
            try:
                session = self.session_of(client)
            except Failed:
                continue
            turns[client.kind] = (client.order("prompt", session=session, text=self.say(client, text)), since)
        for client in self.clients:
            try:
                if client.kind in turns:
                    self.has_begun(client, turns[client.kind][1], asks[client.kind])
            except Failed:
                pass  # Its turn's answer will say what went wrong.
        return turns

    def has_begun(self, client, since, asks, seconds=120):
        """Waits until a turn is under way: something was said, or at least asked of the model server."""
        if self.agent.whole:
            within(seconds, lambda: asked(self.run, client.tag) > asks, "the model server to be asked")
        else:
            client.sees(is_speech, since, seconds)

    def whole_turn(self, client, text, says_tag=True, tag=None, seconds=120):
        """A prompt that must end well; what the client was told meanwhile."""
        since = len(client.events)
        number = client.order("prompt", session=self.session_of(client), text=self.say(client, text, tag))
        return self.check_turn(client, client.answer(number, seconds), since, says_tag, tag)

    def check_turn(self, client, answer, since, says_tag, tag=None):
        expect("ok" in answer, f"the prompt was answered {answer.get('error')}")
        expect(answer["ok"]["stop"] == "end_turn", f"the turn ended with {answer['ok']['stop']}")
        told = client.events[since:]
        strangers = [event for event in told if event.get("session", client.session) != client.session]
        expect(not strangers, f"was told about another session: {strangers[:2]}")
        heard = speech(told)
        expect(any(map(is_speech, told)), "nothing was streamed")
        for other in self.clients:
            expect(other is client or other.tag not in heard, f"heard what {other.kind} asked")
        if says_tag and self.agent.tags:
            expect((tag or client.tag) in heard, f"the answer is not to this question: {heard[:300]}")
        return told

    def session_of(self, client):
        expect(client.session, "there is no session")
        return client.session

    def say(self, client, text, tag=None):
        return text.format(tag=tag or client.tag, cwd=client.cwd)

    def wires(self):
        """The recordings of each client's side, by client."""
        return {
            name: [Recording(path) for path in self.folder.glob(f"{name}*/wire/*") if path.is_file()] for name in self.cells
        }


def expect(is_so, otherwise):
    if not is_so:
        raise Failed(otherwise)


def tag_of(agent, name):
    """A word that no other question of the run has in it."""
    return "TAG-" + "".join(letter for letter in agent.name + name if letter.isalnum())


def turn_of(client, turns):
    expect(client.kind in turns, "there is no session")
    return turns[client.kind]


def is_prompt(message):
    return message.get("method") == "session/prompt"


def is_speech(event):
    return event.get("kind") == "agent_message_chunk"


def speech(events):
    return "".join(event.get("text") or "" for event in events if is_speech(event))
