"""Who hears what, where several clients share a process and a pool has several processes: as the class of each method says."""

import threading

from methods import (
    ALL_CLIENTS,
    ALL_OF_LIST,
    ALL_IN_SESSION,
    ANSWERERS,
    ANY_SESSION,
    BY_SERVER,
    BY_SESSION,
    EACH_IN_TURN,
    ENDS,
    EVERY_PROCESS,
    ONE_PROCESS,
    ONLY_CLIENT,
    OPENS,
    OWNER,
)
from schema_values import CHILD, OTHER, REQUEST, SESSION, filled, marks_in
from stage import Failed
from worlds import FENCE, OWN, Through

ABOUT = "protocol"
MCP_SERVER = {"mcpServers": [{"type": "acp", "name": "tools", "serverId": "mcp-server"}]}
# Ann has the session, Cat is a guest in it, and Ben has another one in the same process.
HEARS = {
    OWNER: {"ann"},
    BY_SERVER: {"ann"},
    ANSWERERS: {"ann", "cat"},
    ALL_IN_SESSION: {"ann", "cat"},
    ALL_CLIENTS: {"ann", "ben", "cat"},
    ALL_OF_LIST: {"ann", "ben", "cat"},
    ONLY_CLIENT: set(),
}
# Ann's session is in the first process and Ben's in the second, and the process of Ann's speaks. Both have asked both processes
# something before, so that each is a client of both.
HEARS_OF_TWO = {ALL_CLIENTS: {"ann", "ben"}, ALL_OF_LIST: {"ann", "ben"}}
REACHES = {
    EVERY_PROCESS: {2},
    ONE_PROCESS: {1},
    EACH_IN_TURN: {2},
    OPENS: {1},
    BY_SESSION: {1},
    ANY_SESSION: {1},
    ENDS: {1},
    BY_SERVER: {1},
}


def run_all(binary, run, folder, wire, protocol, outcome):
    for name, check in (("clients", three_clients), ("processes", two_processes)):
        world = Through(binary, run, folder / name, instances=2 if name == "processes" else 1)
        agents = Agents(world, wire, protocol)
        try:
            count, faults = check(world, agents, wire, protocol)
        finally:
            world.stop()
        what = {"clients": "three clients of one process", "processes": "two processes of a pool"}[name]
        detail = f"{len(faults)} of {count}:\n" + "\n".join(faults[:6])
        outcome.add(ABOUT, f"{count} methods and updates of version {wire} reach whom the table says, among {what}", not faults and count > 0, detail)


class Agents:
    """Scripted agents that answer whatever they are asked, each as its method wants it."""

    def __init__(self, world, wire, protocol):
        self.world, self.count = world, 0
        # Methods that they leave unanswered.
        self.silent = set()
        self.results = {said.method: said.results[wire] for said in protocol.said.values() if said.speaker == "client" and said.results.get(wire)}
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                agent = self.world.agent_comes()
            except TimeoutError:
                continue  # No process was started for a while.
            except OSError:
                return  # The world is over.
            threading.Thread(target=self._answer, args=(agent,), daemon=True).start()

    def _answer(self, agent):
        done = 0
        while True:
            with self.world.changed:
                self.world.changed.wait_for(lambda: agent.is_over or len(agent.messages) > done)
                if agent.is_over:
                    return
                messages = agent.messages[done:]
            done += len(messages)
            for message in messages:
                if "method" in message and "id" in message and message["method"] not in self.silent:
                    self._say(agent, message)

    def _say(self, agent, message):
        method, params = message["method"], message.get("params") or {}
        with self.world.changed:
            self.count += 1
            fresh = f"{OWN}-{self.count}"
        named = {SESSION: fresh, OTHER: params.get("sessionId", fresh), CHILD: fresh}
        results = self.results.get(method, [{}])
        # With everything that an agent can do.
        result = filled(results[1 if method == "initialize" else 0], named)
        try:
            agent.say({"jsonrpc": "2.0", "id": message["id"], "result": result})
        except (OSError, ValueError):
            pass  # It was stopped meanwhile.


class Person:
    """A client by its name, and its session."""

    def __init__(self, world, protocol, wire, name):
        self.name, self.world, self.count = name, world, 0
        self.end = world.client_comes()
        hello = protocol.said["client", "initialize", None]
        self.asks("initialize", hello.params[wire][1])
        self.session = None

    def asks(self, method, params):
        self.count += 1
        name, since = f"{self.name}-{self.count}", len(self.end.heard)
        self.end.say({"jsonrpc": "2.0", "id": name, "method": method, "params": params})
        return self.end.waits(lambda it: it.get("id") == name and "method" not in it, since)

    def opens(self, **more):
        answer = self.asks("session/new", {"cwd": "/a/folder", "mcpServers": [], **more})
        self.session = answer["result"]["sessionId"]
        return self.session

    def fence(self, session=None):
        answer = self.asks(FENCE, {"sessionId": session} if session else {})
        if "result" not in answer:
            raise Failed(f"the fence of {self.name} was answered {answer}")


def params_of(said, wire):
    """The fullest of its params that is about no request."""
    fitting = [params for params in said.params.get(wire, []) if REQUEST not in marks_in(params)]
    return fitting[1 if len(fitting) > 1 else 0] if fitting else None


def three_clients(world, agents, wire, protocol):
    ann, ben, cat = people = [Person(world, protocol, wire, name) for name in ("ann", "ben", "cat")]
    ann.opens(**MCP_SERVER)
    ben.opens()
    cat.asks("session/resume", {"sessionId": ann.session, "cwd": "/a/folder", "mcpServers": []})
    (agent,) = world.agents
    own = ann.session.split(".", 1)[1]
    count, faults = 0, []
    for said in protocol.known():
        row, params = protocol.row(said), params_of(said, wire)
        if said.speaker != "agent" or row.kind not in HEARS or params is None:
            continue
        count += 1
        agents.count += 1
        fault = one_is_heard(said, filled(params, {SESSION: own, OTHER: own, CHILD: f"{OWN}-{agents.count}"}), HEARS[row.kind], people, agent, agents)
        faults += [f"{said.name}, {row.kind}: {fault}"] if fault else []
    return count, faults


def one_is_heard(said, params, expected, people, agent, agents):
    """The agent says it; why the wrong clients heard it, if they did."""
    before = {person.name: len(person.end.heard) for person in people}
    since, name = len(agent.heard), f"agent-{agents.count}"
    named = {"id": name} if said.is_request else {}
    agent.say({"jsonrpc": "2.0", **named, "method": said.method, "params": params})
    for person in people:
        person.fence(person.session)
    asked = {}
    for person in people:
        message = person.end.find(lambda it: it.get("method") == said.method, before[person.name])
        if message:
            asked[person.name] = message
    if set(asked) != expected:
        return f"heard by {sorted(asked)} and not by {sorted(expected)}"
    if not said.is_request:
        return None
    # Who refuses leaves it to the others, so that all answer.
    result = filled((said.results.get(1) or said.results.get(2) or [{}])[0], {SESSION: "s", OTHER: "s", CHILD: "s"})
    for person in people:
        if person.name in asked:
            person.end.say({"jsonrpc": "2.0", "id": asked[person.name]["id"], "result": result})
    answer = agent.waits(lambda it: it.get("id") == name and "method" not in it, since)
    for person in people:
        person.fence()
    if sum(it.get("id") == name and "method" not in it for it in agent.messages[since:]) != 1:
        return "the agent was answered more than once"
    is_refused = (answer.get("error") or {}).get("code") == -32601
    return None if is_refused != bool(expected) else f"the agent was answered {answer}"


def two_processes(world, agents, wire, protocol):
    ann, ben = (Person(world, protocol, wire, name) for name in ("ann", "ben"))
    ann.opens(**MCP_SERVER)
    for _ in range(8):
        # Which process a session is opened in is the bus's affair; the next one is in the other.
        ben.opens()
        if process_of(world, ann) != process_of(world, ben):
            break
    else:
        raise Failed("all sessions were opened in one process")
    count, faults = 0, []
    for said in protocol.known():
        row, params = protocol.row(said), params_of(said, wire)
        if params is None or row.kind not in (REACHES if said.speaker == "client" else HEARS_OF_TWO):
            continue
        count += 1
        if said.speaker == "client":
            fault = one_reaches(said, row, params, world, ann, ben)
        else:
            agent, own = world.agents[process_of(world, ann)], ann.session.split(".", 1)[1]
            fault = one_is_heard(said, filled(params, {SESSION: own, OTHER: own, CHILD: own}), HEARS_OF_TWO[row.kind], [ann, ben], agent, agents)
        faults += [f"{said.name}, {row.kind}: {fault}"] if fault else []
    return count, faults


def process_of(world, person):
    """The process that has the session of a client."""
    since = [len(agent.heard) for agent in world.agents]
    person.fence(person.session)
    heard = hearers(world, FENCE, since)
    if len(heard) != 1:
        raise Failed(f"the processes {heard} heard what one should hear")
    return heard[0]


def hearers(world, method, since):
    """The processes that heard a method after so many lines, of a new one after the first."""
    counts = since + [0] * (len(world.agents) - len(since))
    return [number for number, agent in enumerate(world.agents) if agent.find(lambda it: it.get("method") == method, counts[number])]


def one_reaches(said, row, params, world, ann, ben):
    """Ann says it; why the wrong processes heard it, if they did."""
    session = ann.session
    if row.kind == ENDS:
        kept, session = ann.session, ann.opens()
        ann.session = kept
    since = [len(agent.heard) for agent in world.agents]
    params = filled(params, {SESSION: session, OTHER: session, CHILD: session})
    method = said.method.removesuffix(" (notification)")
    if said.is_request:
        answer = ann.asks(method, params)
        if "result" not in answer:
            return f"answered {answer}"
    else:
        ann.end.say({"jsonrpc": "2.0", "method": method, "params": params})
    places = process_of(world, ann), process_of(world, ben)
    heard = set(hearers(world, method, since))
    if {len(heard)} != REACHES[row.kind] and not (method == "session/resume" and not heard):
        return f"heard by {len(heard)} processes"
    if row.kind in (BY_SESSION, ANY_SESSION, BY_SERVER) and heard != {places[0]}:
        return "heard by another process than that of the session"
    return None
