"""Every kind of update where it can be late or lost: in a replay, before the answer that opens a session, and while its client is away."""

from protocol_cases import UPDATE
from protocol_sharing import ABOUT, Agents, Person
from schema_values import CHILD, OTHER, SESSION, filled
from scenario import expect
from stage import Failed, within
from worlds import OWN, PATIENCE_SEC, Direct, Through

TOLD_AGAIN = {"state_update", "available_commands_update"}
"""What the bus itself tells who takes a session up, as it is now."""

def run_all(binary, run, folder, wire, protocol, begin, outcome):
    for what, does in (("in a replay", in_replay), ("before the answer to session/new", before_the_answer)):
        heard = []
        for kind in (Direct, Through):
            world = kind(binary, run, folder / f"{does.__name__}-{kind.__name__.lower()}")
            try:
                heard.append(does(begin(world, wire, protocol), protocol, wire))
            finally:
                world.stop()
        alone, through = heard
        lost = [line for line in alone if line not in through]
        more = [line for line in through if line not in alone]
        is_same = through == alone and len(set(alone)) == len(alone) > 10
        outcome.add(ABOUT, f"version {wire}: every kind of update is heard {what}, once and in order", is_same, f"lost {lost[:2]}, more {more[:2]}, or in another order")
    world = Through(binary, run, folder / "while_away")
    try:
        while_away(world, protocol, wire)
        outcome.add(ABOUT, f"version {wire}: {while_away.__doc__}", True)
    except (Failed, KeyError, OSError) as fault:
        outcome.add(ABOUT, f"version {wire}: {while_away.__doc__}", False, repr(fault))
    finally:
        world.stop()


def updates(protocol, wire, own, child):
    """Every kind of update once, with all of its members; the one that announces a session comes before those that name it."""
    kinds = [said for said in protocol.known() if said.update and SESSION in str(said.params.get(wire, ""))]
    kinds.sort(key=lambda said: said.update != "subagent_update")
    for said in kinds:
        yield {"jsonrpc": "2.0", "method": UPDATE, "params": filled(said.params[wire][1], {SESSION: own, OTHER: own, CHILD: child})}


def in_replay(talk, protocol, wire):
    """The agent tells a stored session again before it answers."""
    method = "session/load" if wire == 1 else "session/resume"
    own, child = "elsewhere-900", f"{OWN}-900"
    since, agent_since = len(talk.client.heard), len(talk.agent.heard)
    params = filled(protocol.said["client", method, None].params[wire][1], {SESSION: own})
    talk.client.say({"jsonrpc": "2.0", "id": "load", "method": method, "params": params})
    asked = talk.agent.waits(lambda it: it.get("method") == method, agent_since)
    for message in updates(protocol, wire, own, child):
        talk.agent.say(message)
    talk.agent.say({"jsonrpc": "2.0", "id": asked["id"], "result": {}})
    talk.client.waits(lambda it: it.get("id") == "load", since)
    talk.fence()
    return talk.canonical(talk.client, talk.client.heard[since:])


def before_the_answer(talk, protocol, wire):
    """The agent tells of a new session before it has named it. The answer comes first through the bus: only then the session has a name."""
    own, child = f"{OWN}-901", f"{OWN}-902"
    since, agent_since = len(talk.client.heard), len(talk.agent.heard)
    talk.client.say({"jsonrpc": "2.0", "id": "new", "method": "session/new", "params": {"cwd": "/a/folder", "mcpServers": []}})
    asked = talk.agent.waits(lambda it: it.get("method") == "session/new", agent_since)
    for message in updates(protocol, wire, own, child):
        talk.agent.say(message)
    talk.agent.say({"jsonrpc": "2.0", "id": asked["id"], "result": {"sessionId": own}})
    talk.client.waits(lambda it: it.get("id") == "new", since)
    talk.fence()
    heard = talk.canonical(talk.client, talk.client.heard[since:])
    return heard if talk.world.is_through else [heard[-1], *heard[:-1]]


def while_away(world, protocol, wire):
    """a client that was away hears every kind of update that it missed, once and in order"""
    agents = Agents(world, wire, protocol)
    ann, ben = (Person(world, protocol, wire, name) for name in ("ann", "ben"))
    ann.opens()
    agents.silent.add("session/prompt")
    ann.end.say({"jsonrpc": "2.0", "id": "p", "method": "session/prompt", "params": {"sessionId": ann.session, "prompt": []}})
    (agent,) = world.agents
    agent.waits(lambda it: it.get("method") == "session/prompt")
    ann.end.vanish()
    within(PATIENCE_SEC, lambda: ben.asks("_bus/status", {})["result"]["clients"] == 1, "Ann to be gone")
    own = ann.session.split(".", 1)[1]
    said = list(updates(protocol, wire, own, f"{OWN}-900"))
    for message in said:
        agent.say(message)
    ben.fence()
    back = Person(world, protocol, wire, "ann")
    answer = back.asks("session/resume", {"sessionId": ann.session, "cwd": "/a/folder", "mcpServers": []})
    expect("result" in answer, f"session/resume was answered {answer}")
    back.fence()
    kinds = [message["params"]["update"]["sessionUpdate"] for message in said]
    heard = [it["params"]["update"]["sessionUpdate"] for it in back.end.messages if it.get("method") == UPDATE]
    missed = [kind for kind in kinds if kind not in heard]
    expect(not missed, f"did not hear {missed}")
    expect(without(heard) == without(kinds), f"heard {heard} and not {kinds}")
    expect(all(heard.count(kind) <= 2 for kind in TOLD_AGAIN), f"heard {heard}")


def without(kinds):
    return [kind for kind in kinds if kind not in TOLD_AGAIN]
