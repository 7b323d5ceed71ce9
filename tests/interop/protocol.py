"""Every method and every update of ACP, said by a scripted client and a scripted agent, with and without the bus in between.

What each of them hears must be the same, byte for byte, once the names that the bus gives to sessions and requests are taken back.
methods.py says what the bus does with each of them, and which differences it makes on purpose: these must occur. From the same table
docs/PROTOCOL.md is written.
"""

import concurrent.futures

import install
import protocol_page
import protocol_replay
import protocol_sharing
import protocol_stories
from designs import ABSENT
from protocol_cases import UPDATE, Protocol
from schema_values import CHILD, OTHER, REQUEST, SESSION, filled, marks_in
from stage import Failed
from worlds import OWN, Direct, Talk, Through

ABOUT = "protocol"
MCP_SERVER = {"mcpServers": [{"type": "acp", "name": "tools", "serverId": "mcp-server"}]}
PROMPT = [{"type": "text", "text": "hello"}]
WIRES = (1, 2)
# What names a new session in its answer.
NAMES_ONE = {"session/new", "session/fork", "nes/start"}
SHOWN = 4


def run_all(binary, run, outcome, is_writing):
    """All of it; `is_writing` also writes the page, which else must be as the table says."""
    protocol = Protocol(install.npm("typescript-sdk") / "@agentclientprotocol/sdk")
    outcome.add(ABOUT, "the table has every method and update of the schemas, and no others", not protocol.faults, "\n".join(protocol.faults))
    protocol_page.check(protocol, outcome, is_writing)
    seen = set()
    for wire in WIRES:
        folder = run / ABOUT / f"version-{wire}"
        try:
            compare_all(binary, run, folder, wire, protocol, outcome, seen)
            compare_hellos(binary, run, folder, wire, protocol, outcome)
            protocol_sharing.run_all(binary, run, folder, wire, protocol, outcome)
            protocol_replay.run_all(binary, run, folder, wire, protocol, begin, outcome)
            protocol_stories.run_all(binary, run, folder, wire, protocol, outcome)
        except (Failed, OSError, KeyError, ValueError) as fault:
            outcome.add(ABOUT, f"the conversations of version {wire} end", False, repr(fault))
    wanted = {(case, design) for wire in WIRES for case in protocol.cases(wire) for design in designs_of(protocol, case, wire)}
    unseen = sorted({f"{case.name}: {design.what}" for case, design in wanted} - seen)
    detail = "it does not occur any more; take it out of methods.py or extensions.py: " + "; ".join(unseen)
    outcome.add(ABOUT, "every difference that the table names occurs", not unseen, detail)


def compare_all(binary, run, folder, wire, protocol, outcome, seen):
    """Plays every case in both worlds, and holds what was heard against the table."""
    with concurrent.futures.ThreadPoolExecutor() as pool:
        alone, through = pool.map(lambda kind: plays(kind(binary, run, folder / kind.__name__.lower()), wire, protocol), (Direct, Through))
    faults = []
    for (case, one), (_, other) in zip(alone, through):
        listener = 1 if case.said.speaker == "client" else 0
        if not one[listener]:
            faults.append(f"{case}: nobody hears it without a bus either, so that nothing was tried")
        found = [design for design in designs_of(protocol, case, wire) if design.holds(one, other)] if one != other else []
        seen |= {f"{case.name}: {design.what}" for design in found}
        if one != other and not found:
            faults.append(f"{case}\n" + differences(one, other))
    (folder / "differences").write_text("\n".join(faults))
    what = f"{len(alone)} exchanges of version {wire} are the same with and without the bus, but for what the table says"
    outcome.add(ABOUT, what, not faults and len(alone) == len(through), f"{len(faults)} differ:\n" + "\n".join(faults[:SHOWN]))


def designs_of(protocol, case, wire):
    return protocol.row(case.said).designs(case.situation, wire, case.said.is_request)


def differences(alone, through):
    lines = []
    for name, one, other in zip(("the client", "the agent"), alone, through):
        if one != other:
            lines += [f"    {name} hears without the bus  {one}", f"    {name} hears through the bus   {other}"]
    return "\n".join(lines)


def plays(world, wire, protocol):
    """What each end heard in every case of one version, in one world: a list of pairs of a case and what was heard."""
    heard, case = [], "initialize"
    try:
        talk = begin(world, wire, protocol)
        for case in protocol.cases(wire):
            heard.append((case, Exchange(talk, case).play()))
    except Failed as fault:
        raise Failed(f"{case}: {fault}, see {world.folder}") from fault
    finally:
        code = world.stop()
    if code and world.is_through:
        raise Failed(f"the bus stopped with exit code {code}, see {world.folder}")
    return heard


def begin(world, wire, protocol, number=1):
    """The client and the agent say hello; where nothing else is asked for, with everything that they can do."""
    hello = protocol.said["client", "initialize", None]
    params, results = hello.params[wire], hello.results[wire]
    client = world.client_comes()
    agent = None if world.is_through else world.agent_comes()
    client.say({"jsonrpc": "2.0", "id": "hello", "method": "initialize", "params": params[number % len(params)]})
    agent = agent or world.agent_comes()
    asked = agent.waits(lambda it: it.get("method") == "initialize")
    agent.say({"jsonrpc": "2.0", "id": asked["id"], "result": results[number % len(results)]})
    client.waits(lambda it: it.get("id") == "hello")
    talk = Talk(world, client, agent)
    talk.session = talk.open(MCP_SERVER)
    return talk


def compare_hellos(binary, run, folder, wire, protocol, outcome):
    """`initialize` with every kind of params and results, each with a process of its own, and once more by a second client."""
    hello, faults = protocol.said["client", "initialize", None], []
    count = max(len(hello.params[wire]), len(hello.results[wire]))
    for number in range(count):
        heard, again = [], None
        for kind in (Direct, Through):
            world = kind(binary, run, folder / f"hello-{number}-{kind.__name__.lower()}")
            try:
                talk = begin(world, wire, protocol, number)
                heard.append([talk.canonical(end, end.heard)[0] for end in (talk.client, talk.agent)])
                if world.is_through:
                    second = world.client_comes()
                    second.say({"jsonrpc": "2.0", "id": "hello", "method": "initialize", "params": hello.params[wire][number % len(hello.params[wire])]})
                    second.waits(lambda it: it.get("id") == "hello")
                    again = second.heard[0]
                    talk.fence()
                    is_heard_once = sum(it.get("method") == "initialize" for it in talk.agent.messages) == 1
            finally:
                world.stop()
        if heard[0] != heard[1] or again != heard[1][0] or not is_heard_once:
            faults.append(f"initialize no. {number}, heard again {again}\n" + differences(*heard))
    outcome.add(ABOUT, f"{count} kinds of initialize of version {wire} are the same, and a second client gets the same answer", not faults, "\n".join(faults))


class Exchange:
    """One case in one world."""

    def __init__(self, talk, case):
        self.talk, self.case, self.said = talk, case, case.said
        self.client, self.agent = talk.client, talk.agent
        self.speaker = talk.client if case.said.speaker == "client" else talk.agent

    def play(self):
        """What the client and the agent heard."""
        own, known = self.session()
        child, fresh = (f"{OWN}-{self.talk.number('session')}" for _ in range(2))
        of_agent, of_client = {SESSION: own, OTHER: self.talk.session[0], CHILD: child}, {SESSION: known, OTHER: self.talk.session[1]}
        self.announce(child)
        pending = self.begin_request()
        if pending:
            of_client[REQUEST], of_agent[REQUEST] = pending
        self.begin_elicitation()
        self.talk.fence()
        before = len(self.client.heard), len(self.agent.heard)
        names, others = (of_client, of_agent) if self.speaker is self.client else (of_agent, of_client)
        if self.said.method in NAMES_ONE:
            others = {**others, SESSION: fresh}
        self.say(filled(self.case.params, names), filled(self.case.answer, others))
        self.talk.fence()
        heard = [self.talk.canonical(end, end.heard[since:]) for end, since in zip((self.client, self.agent), before)]
        if pending:
            self.end_request(pending)
        return heard

    def say(self, params, answer):
        # Every second line is spelled otherwise: a bus that reads and writes JSON anew would not keep that.
        is_wide = self.case.number % 2 == 1
        method = self.said.method.removesuffix(" (notification)")
        if self.said.is_request:
            self.talk.asks(self.speaker, method, params, answer, is_wide)
        else:
            self.speaker.say({"jsonrpc": "2.0", "method": method, "params": params}, is_wide)

    def session(self):
        """The session that the case is about, by the agent's name and the client's."""
        if self.case.situation == ABSENT:
            name = f"elsewhere-{self.talk.number('elsewhere')}"
            return name, name
        return self.talk.open() if self.case.is_ending else self.talk.session

    def announce(self, child):
        """The agent tells of a session that this one has begun, so that it may speak of it."""
        if self.said.update == "subagent_update" or CHILD not in marks_in([self.case.params, self.case.answer]):
            return
        update = {"sessionUpdate": "subagent_update", "sessionId": child}
        self.agent.say({"jsonrpc": "2.0", "method": UPDATE, "params": {"sessionId": self.talk.session[0], "update": update}})

    def begin_request(self):
        """A request that waits, if the case is about one: what client and agent call it."""
        if REQUEST not in marks_in(self.case.params):
            return None
        own, known = self.talk.session
        # What is cancelled is a request of who cancels it; an elicitation is about one of the client.
        if self.speaker is self.client or self.said.method != "$/cancel_request":
            return self.talk.asks(self.client, "session/prompt", {"sessionId": known, "prompt": PROMPT}, is_left_open=True)
        return self.talk.asks(self.agent, "fs/read_text_file", {"sessionId": own, "path": "/a/file"}, is_left_open=True)[::-1]

    def end_request(self, pending):
        is_own = str(pending[0]).startswith("client-request")
        asker, asked = (self.client, self.agent) if is_own else (self.agent, self.client)
        asker_id, asked_id = pending if is_own else pending[::-1]
        since = len(asker.heard)
        asked.say({"jsonrpc": "2.0", "id": asked_id, "result": {"stopReason": "end_turn"} if is_own else {"content": ""}})
        asker.waits(lambda it: it.get("id") == asker_id and "method" not in it, since)

    def begin_elicitation(self):
        """What is complete must have been asked."""
        if self.said.method == "elicitation/complete":
            params = {"sessionId": self.talk.session[0], "message": "?", "mode": "url", "url": "https://example.com", "elicitationId": "elicitation"}
            self.talk.asks(self.agent, "elicitation/create", params, {"result": {"action": "accept"}})
