"""Every agent with and without the bus, message by message.

One client plays the same scenario three times: with the agent itself, through `stdio-bus connect`, and over a socket to the bus. What
it hears must be the same, line by line (transcript.py says what no two runs can have in common). A difference that the bus makes on
purpose stands in by_design.py with its reason; every other one is a failure, unless the agent also differs from itself.
"""

import concurrent.futures
import dataclasses
import difflib
import json

from agents import Place
from by_design import (
    BY_DESIGN,
    ENDED,
    IDS,
    LATE,
    NO_ANSWERS,
    NO_MESSAGES,
    NOT_PLAYED,
    ODD_IDS,
    ODD_MESSAGES,
    ODD_REQUESTS,
    READABLE,
    STEPS_BY_DESIGN,
    Design,
    is_loose,
)
from scenario import tag_of
from stage import Bus, Failed, environment
from transcript import ANSWERED_SEC, PATIENCE_SEC, UNANSWERED_SEC, Names, Peer, kind_of

CAPABILITIES = {"fs": {"readTextFile": True, "writeTextFile": True}, "terminal": False}
HELLO = {"protocolVersion": 1, "clientCapabilities": CAPABILITIES, "clientInfo": {"name": "interop-compare", "version": "1"}}
WAYS = ["connect", "tcp"]


class Direct:
    """The way without a bus: the agent itself is the client's child."""

    def __init__(self, binary, run, agent, model, folder, name):
        self.name, self.folder = name, folder
        self.home = folder / "home"
        self.home.mkdir(parents=True)
        place = Place(self.home, model.port)
        self.command = [binary if word == "@bus" else word for word in agent.command(place)]
        for path, text in agent.files(place).items():
            (self.home / path).parent.mkdir(parents=True, exist_ok=True)
            (self.home / path).write_text(text)
        self.env = {**environment(run), "HOME": str(self.home), **agent.env(place)}
        self.log = open(folder / "agent.log", "w")

    def connect(self):
        return Peer(self.command, self.env, self.home, self.log)

    def crash(self, peer, reopen):
        """The agent dies; the client itself must start it anew and open its session again."""
        peer.vanish()
        count, peer = peer.count, self.connect()
        reopen(peer)
        peer.count = count
        return peer

    def stop(self):
        return 0


class Through:
    """A way through the bus."""

    def __init__(self, binary, run, agent, model, folder, name):
        self.name, self.folder, self.binary, self.run, self.agent = name, folder, binary, run, agent
        self.home = folder / "home"
        self.home.mkdir(parents=True)
        self.bus = Bus(binary, run, agent, Place(self.home, model.port), folder, {"session_keep_sec": 300, "init_timeout_sec": PATIENCE_SEC})
        self.log = open(folder / "connect.log", "w")

    def connect(self):
        if self.name == "tcp":
            return Peer(address=self.bus.address)
        command = [self.binary, "connect", "--tcp", self.bus.address, "--pool", self.agent.name]
        return Peer(command, environment(self.run), self.folder, self.log)

    def crash(self, peer, _reopen):
        """The agent dies; the bus starts it anew, and nobody need know."""
        self.bus.kill_workers()
        return peer

    def stop(self):
        return self.bus.stop()


class Scenario:
    """One client on one way; `steps` are (name, what was heard)."""

    def __init__(self, way, agent):
        self.way, self.agent, self.steps, self.loose = way, agent, [], set()
        self.work = way.folder / "work"
        self.work.mkdir()
        # A session's folder lies beside the agent's home, and both may be spelled with what a link leads to.
        self.names = Names([(str(self.work), "<work>"), (str(way.home), "<home>"), (str(way.folder), "<folder>")])
        self.tag = tag_of(agent, "compare")
        self.peer, self.offers, self.sessions = None, {}, []

    def play(self):
        try:
            self.enter()
            self.first_words()
            self.turns()
            self.settings()
            self.again()
            self.strangers()
            self.return_of_a_client()
            self.crash()
            self.peer.leave()
            self.refusal()
            self.peer.leave()
            self.odd_lines()
        finally:
            if self.peer:
                self.peer.leave(5)

    def count(self):
        return sum(len(lines) for _, lines in self.steps)

    # What the client does in one step, and how it is kept.

    def step(self, name, does, rename=None):
        since = len(self.peer.heard)
        self.names.forget()
        self.peer.hushed()
        answer = does()
        self.peer.quiet()
        if rename and answer and isinstance(answer.get("result"), dict) and "sessionId" in answer["result"]:
            self.names.session(answer["result"]["sessionId"])
        heard = self.peer.heard[since:]
        own = [message for message in heard if not is_loose(message) and not self.is_cut_short(message)]
        self.loose |= set(self.names.lines([message for message in heard if is_loose(message) and kind_of(message) != LATE]))
        lines = self.names.lines(own)
        if self.peer.over:
            lines.append(json.dumps(ENDED))
        self.steps.append((name, lines))
        return answer

    def is_cut_short(self, message):
        """Whether it tells the prompt of the turn that was cancelled, which some agents keep only if they had come far enough in it."""
        content = message["params"]["update"].get("content") if kind_of(message) == "user_message_chunk" else None
        return isinstance(content, dict) and content.get("text") == self.prompt_text(self.agent.endless)

    def ask(self, name, method, params, **how):
        return self.step(name, lambda: self.peer.ask(method, params), **how)

    def prompt(self, name, text, session=None, **how):
        return self.ask(name, "session/prompt", self.prompt_params(text, session), **how)

    def prompt_params(self, text, session=None):
        session = session or self.sessions[0]
        return {"sessionId": session, "prompt": [{"type": "text", "text": self.prompt_text(text)}]}

    def prompt_text(self, text):
        return text.format(tag=self.tag, cwd=self.work)

    def session_params(self, session):
        return {"sessionId": session, "cwd": str(self.work), "mcpServers": []}

    def can(self, name):
        if name == "load":
            return bool(self.offers.get("loadSession"))
        return (self.offers.get("sessionCapabilities") or {}).get(name) is not None

    # The scenario.

    def enter(self):
        self.peer = self.way.connect()
        answer = self.ask("initialize", "initialize", HELLO)
        self.offers = ((answer or {}).get("result") or {}).get("agentCapabilities") or {}

    def first_words(self):
        self.ask("an unknown method", "nonsense/method", {"some": "thing"})
        self.ask("an extension that nobody has", "_nobody.example/thing", {"some": "thing"})
        self.new("session/new")

    def new(self, name):
        answer = self.ask(name, "session/new", {"cwd": str(self.work), "mcpServers": []}, rename=True)
        result = (answer or {}).get("result") or {}
        if "sessionId" not in result:
            raise Failed(f"session/new was answered {answer}")
        self.sessions.append(result["sessionId"])
        self.opened = result

    def turns(self):
        self.prompt("a prompt", self.agent.plain)
        tool = self.agent.permission or self.agent.tool
        if tool and "tool" not in self.agent.cannot:
            self.prompt("a tool, allowed", tool)
            if "permission" not in self.agent.cannot:
                self.peer.choice = "reject"
                self.prompt("a tool, refused", tool)
                self.peer.choice = "allow"
        if "cancel" not in self.agent.cannot and not self.agent.whole:
            self.step("a cancelled turn", self.cancelled)
            self.prompt("a prompt after it", self.agent.plain)

    def cancelled(self):
        since = len(self.peer.heard)
        number = self.peer.request("session/prompt", self.prompt_params(self.agent.endless))
        self.peer.hears_update("agent_message_chunk", since)
        self.peer.say({"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": self.sessions[0]}})
        return self.peer.answer(number)

    def settings(self):
        modes = [mode["id"] for mode in ((self.opened.get("modes") or {}).get("availableModes") or [])]
        now = (self.opened.get("modes") or {}).get("currentModeId")
        session = self.sessions[0]
        other = [mode for mode in modes if mode != now][:1]
        for mode in other:
            self.ask("a mode is set", "session/set_mode", {"sessionId": session, "modeId": mode})
        if modes:
            self.ask("a mode that is none", "session/set_mode", {"sessionId": session, "modeId": "no-such-mode"})
        # Another model than the fake one would not answer.
        options = [one for one in self.opened.get("configOptions") or [] if not {one["id"], one.get("category")} & {"model", "provider"}]
        for option in options[:2]:
            values = [one["value"] for one in option.get("options") or [] if "value" in one and one["value"] != option.get("currentValue")]
            for value in values[:1]:
                params = {"sessionId": session, "configId": option["id"], "value": value}
                self.ask(f"the option {option['id']} is set", "session/set_config_option", params)

    def again(self):
        """Sessions that are open here are listed, opened again and closed."""
        self.new("a second session")
        self.prompt("a prompt in the second session", self.agent.plain, self.sessions[1])
        if self.can("list"):
            self.ask("session/list", "session/list", {})
        for way in ("load", "resume"):
            if self.can(way):
                self.ask(f"session/{way} of an open session", f"session/{way}", self.session_params(self.sessions[0]))
        self.prompt("a prompt after that", self.agent.plain)
        if self.can("fork"):
            self.ask("session/fork", "session/fork", self.session_params(self.sessions[0]), rename=True)
        if self.can("close"):
            self.ask("session/close", "session/close", {"sessionId": self.sessions[1]})
            self.prompt("a prompt in a closed session", self.agent.plain, self.sessions[1])

    def strangers(self):
        """Sessions that are not there."""
        self.prompt("a prompt in no session", self.agent.plain, "no-such-session")
        self.ask("a mode in no session", "session/set_mode", {"sessionId": "no-such-session", "modeId": "x"})
        if self.can("load"):
            self.ask("session/load of no session", "session/load", self.session_params("no-such-session"))

    def return_of_a_client(self):
        """The client is gone without a word, and comes back with the id that it knows."""
        self.peer.vanish()
        self.peer = self.way.connect()
        self.ask("initialize again", "initialize", HELLO)
        for way in ("load", "resume"):
            if self.can(way):
                self.ask(f"session/{way} after a return", f"session/{way}", self.session_params(self.sessions[0]))
        if self.can("load") or self.can("resume"):
            self.prompt("a prompt after a return", self.agent.plain)

    def crash(self):
        if self.agent.resumes is not True or not (self.can("load") or self.can("resume")):
            return
        self.peer = self.way.crash(self.peer, self.reopen)
        self.prompt("a prompt after the agent was killed", self.agent.plain)

    def reopen(self, peer):
        peer.ask("initialize", HELLO)
        peer.ask("session/load" if self.can("load") else "session/resume", self.session_params(self.sessions[0]))
        peer.quiet()

    def refusal(self):
        """A first word that an agent may not like, and a right one after it."""
        self.peer = self.way.connect()
        self.ask("initialize of no version", "initialize", {"protocolVersion": "none", "clientCapabilities": {}})
        if not self.peer.over:
            self.ask("initialize after it", "initialize", HELLO)

    def odd_lines(self):
        """Lines that are no messages, or whose ids are odd. An agent that ends of one is started anew for the next."""
        def with_id(text):
            return (f"the id {text}", f'{{"jsonrpc":"2.0","id":{text},"method":"nonsense/method","params":{{}}}}')

        # Those that an agent may not survive come last.
        odd = [*map(with_id, IDS), *((f"the line {text}", text) for text in ODD_MESSAGES + NO_ANSWERS)]
        odd += [*map(with_id, ODD_IDS), *((f"the line {text}", text) for text in NO_MESSAGES)]
        self.peer = None
        for name, line in odd:
            if self.peer is None or self.peer.over:
                self.peer = self.way.connect()
                self.peer.ask("initialize", HELLO)
                self.peer.quiet()
            seconds = ANSWERED_SEC if name in READABLE or name in ODD_REQUESTS else UNANSWERED_SEC
            self.step(name, lambda line=line, seconds=seconds: self.peer.exchange(line, seconds))


def run_all(agent, binary, run, model, outcome):
    about = f"{agent.name}, with and without the bus"
    folder = run / f"{agent.name}-compare"

    def play(name):
        way = Direct if name.startswith("direct") else Through
        return transcript(way(binary, run, agent, model, folder / name, name), agent)

    try:
        with concurrent.futures.ThreadPoolExecutor() as pool:
            alone, *others = pool.map(play, ["direct", *WAYS])
        found = {way: compare(alone, through, agent) for way, through in zip(WAYS, others)}
        if any(not one.design for differences in found.values() for one in differences):
            # An agent that differs from itself is not the bus's affair.
            again = play("direct-again")
            found = {way: [one for one in differences if one.design or not one.is_own(again, agent)] for way, differences in found.items()}
        for way, differences in found.items():
            faults = [one for one in differences if not one.design]
            (folder / way / "differences").write_text("".join(f"{one}\n" for one in differences))
            outcome.add(about, f"{alone.count()} messages by {way} are the same", not faults, f"{len(faults)} differ: {faults[:2]}")
            outcome.designed(agent.name, [one.design for one in differences if one.design])
    except (Failed, OSError, KeyError, ValueError) as fault:
        outcome.add(about, "the comparison ends", False, repr(fault))


def transcript(way, agent):
    scenario = Scenario(way, agent)
    try:
        scenario.play()
    except Failed as fault:
        raise Failed(f"by {way.name}, after the step {scenario.steps[-1:]}: {fault}") from fault
    finally:
        way.stop()
        with open(way.folder / "transcript", "w") as file:
            for name, lines in [*scenario.steps, ("at any time", sorted(scenario.loose))]:
                file.write(f"== {name}\n" + "".join(line + "\n" for line in lines))
    return scenario


@dataclasses.dataclass
class Difference:
    step: str
    alone: str | None
    through: str | None
    design: Design | None = None

    def __str__(self):
        why = f" by design: {self.design.why}" if self.design else ""
        return f"{self.step}:{why}\n    direct  {self.alone}\n    bus     {self.through}"

    __repr__ = __str__

    def is_own(self, other, agent):
        """Whether the agent alone says this in one run and not in another."""
        second = dict(other.steps).get(self.step, other.loose)
        is_stutter = self.step in agent.stutters and without_words(self.alone) == without_words(self.through)
        return is_stutter or (self.alone is not None and self.alone not in second) or self.through in second


def without_words(line):
    """A line without the words of an answer, which stand in it as one or as several pieces; the tag stays, as often as it was told."""
    return line and "".join(line.replace("<words>", "").split())


def compare(alone, through, agent):
    found = []
    others = dict(through.steps)
    for step, lines in alone.steps:
        found += differ(step, lines, others.pop(step, ['"not played"']))
    for step in others:
        found += differ(step, [], [json.dumps(NOT_PLAYED)])
    found += differ("at any time", sorted(alone.loose), sorted(through.loose))
    heard = [{step: [json.loads(line) for line in lines] for step, lines in one.steps} for one in (alone, through)]
    for one in found:
        if not one.design and all(one.step in steps for steps in heard):
            one.design = next((design for design in STEPS_BY_DESIGN if design.holds(one.step, *heard)), None)
        if one.step in agent.differs:
            one.design = Design(f"{agent.name}, {one.step}: another answer", agent.differs[one.step], None)
    return found


def differ(step, alone, through):
    found = []
    for tag, a, b, c, d in difflib.SequenceMatcher(None, alone, through, autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        for place in range(max(b - a, d - c)):
            left = alone[a + place] if a + place < b else None
            right = through[c + place] if c + place < d else None
            one = Difference(step, left, right)
            heard = [json.loads(line) if line else None for line in (left, right)]
            one.design = next((design for design in BY_DESIGN if design.holds(step, *heard)), None)
            found.append(one)
    return found
