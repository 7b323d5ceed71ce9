"""What the table says of a method in words: what is remembered, who is told later, and what is not possible any more."""

from protocol_sharing import ABOUT, MCP_SERVER, Agents, Person
from scenario import expect
from stage import Failed
from worlds import Through

COMMANDS = [{"name": "plan", "description": "makes a plan"}]


def run_all(binary, run, folder, wire, protocol, outcome):
    for story in STORIES:
        if wire == 2 and story in FIRST_VERSION:
            continue
        world = Through(binary, run, folder / story.__name__)
        stage = Stage(world, protocol, wire)
        try:
            story(stage)
            outcome.add(ABOUT, f"version {wire}: {story.__doc__}", True)
        except (Failed, KeyError, OSError) as fault:
            outcome.add(ABOUT, f"version {wire}: {story.__doc__}", False, repr(fault))
        finally:
            world.stop()


class Stage:
    """One process, and Ann with a session in it."""

    def __init__(self, world, protocol, wire):
        self.world, self.protocol, self.wire = world, protocol, wire
        self.agents = Agents(world, wire, protocol)
        self.ann = self.person("ann")
        self.ann.opens()
        (self.agent,) = world.agents
        self.own = self.ann.session.split(".", 1)[1]
        self.count = 0

    def person(self, name):
        return Person(self.world, self.protocol, self.wire, name)

    def guest(self, name):
        """A client that has joined Ann's session."""
        person = self.person(name)
        person.answer = person.asks("session/resume", {"sessionId": self.ann.session, "cwd": "/a/folder", "mcpServers": []})
        return person

    def tells(self, method, params):
        self.agent.say({"jsonrpc": "2.0", "method": method, "params": params})
        self.ann.fence()

    def updates(self, **update):
        self.tells("session/update", {"sessionId": self.own, "update": update})

    def asks(self, method, params):
        """The agent asks, and does not wait."""
        self.count += 1
        self.agent.say({"jsonrpc": "2.0", "id": f"asked-{self.count}", "method": method, "params": params})
        return f"asked-{self.count}"

    def hears(self, person, kind):
        """The last update of this kind that a client has heard."""
        person.fence()
        found = [it["params"]["update"] for it in person.end.messages if it.get("method") == "session/update"]
        return next((update for update in reversed(found) if update["sessionUpdate"] == kind), None)


def one_server_name_of_two(stage):
    """MCP servers that two clients of a process name alike have two names at the agent, and each client its own"""
    ben, names = stage.person("ben"), []
    for person in (stage.ann, ben):
        person.opens(**MCP_SERVER)
        opened = next(it for it in reversed(stage.agent.messages) if it.get("method") == "session/new")
        names.append(opened["params"]["mcpServers"][0]["serverId"])
    expect(names[0] == "mcp-server" and names[1] != "mcp-server", f"the agent was told {names}")
    for person, name in zip((stage.ann, ben), names):
        asked = stage.asks("mcp/message", {"serverId": name, "requestId": "r", "method": "tools/list"})
        heard = person.end.waits(lambda it: it.get("method") == "mcp/message")
        expect(heard["params"] == {"serverId": "mcp-server", "requestId": "r", "method": "tools/list"}, f"{person.name} heard {heard}")
        person.end.say({"jsonrpc": "2.0", "id": heard["id"], "result": {"by": person.name}})
        answer = stage.agent.waits(lambda it: it.get("id") == asked and "method" not in it)
        expect(answer.get("result") == {"by": person.name}, f"the agent was answered {answer}")
        since = len(stage.agent.heard)
        person.end.say({"jsonrpc": "2.0", "method": "mcp/message", "params": {"serverId": "mcp-server", "requestId": "r"}})
        told = stage.agent.waits(lambda it: it.get("method") == "mcp/message", since)
        expect(told["params"] == {"serverId": name, "requestId": "r"}, f"the agent heard {told}")


def a_question_about_a_request(stage):
    """an elicitation about a request of one client reaches that one alone, under its own id"""
    ben = stage.person("ben")
    ben.opens()
    stage.agents.silent.add("session/prompt")
    ben.end.say({"jsonrpc": "2.0", "id": "bens-own", "method": "session/prompt", "params": {"sessionId": ben.session, "prompt": []}})
    asked = stage.agent.waits(lambda it: it.get("method") == "session/prompt")
    params = {"requestId": asked["id"], "message": "?", "mode": "form", "requestedSchema": {"type": "object", "properties": {}}}
    stage.asks("elicitation/create", params)
    question = ben.end.waits(lambda it: it.get("method") == "elicitation/create")
    expect(question["params"]["requestId"] == "bens-own", f"Ben was asked {question}")
    stage.ann.fence()
    expect(not stage.ann.end.find(lambda it: it.get("method") == "elicitation/create"), "Ann was asked too")


def a_login_is_told_later(stage):
    """what a process has told of its login is told to a client that comes later, and the last of it only"""
    for number in (1, 2):
        stage.tells("auth/status_update", {"number": number})
    ben = stage.person("ben")
    ben.fence()
    told = [it["params"]["number"] for it in ben.end.messages if it.get("method") == "auth/status_update"]
    expect(told == [2], f"Ben was told {told}")


def commands_are_told_later(stage):
    """the commands of a session are told to who resumes it"""
    stage.updates(sessionUpdate="available_commands_update", availableCommands=COMMANDS)
    ben = stage.guest("ben")
    told = stage.hears(ben, "available_commands_update")
    expect(told and told["availableCommands"] == COMMANDS, f"Ben was told {told}")


def a_mode_is_told_to_others(stage):
    """a mode that one client sets is told to the others, once"""
    ben = stage.guest("ben")
    stage.ann.asks("session/set_mode", {"sessionId": stage.ann.session, "modeId": "careful"})
    told = stage.hears(ben, "current_mode_update")
    expect(told and told["currentModeId"] == "careful", f"Ben was told {told}")
    expect(not stage.hears(stage.ann, "current_mode_update"), "Ann was told her own mode")


def an_archived_session_is_closed(stage):
    """a session that is archived is not open any more"""
    answer = stage.ann.asks("session/archive", {"sessionId": stage.ann.session})
    expect("result" in answer, f"session/archive was answered {answer}")
    answer = stage.ann.asks("session/prompt", {"sessionId": stage.ann.session, "prompt": []})
    expect((answer.get("error") or {}).get("data", {}).get("reason") == "unknown_session", f"the prompt was answered {answer}")


def a_stranger_may_only_ask(stage):
    """a client that has not joined a shared session may ask for its state, and not end it"""
    ben = stage.person("ben")
    answer = ben.asks("session/status", {"sessionId": stage.ann.session})
    expect("result" in answer, f"session/status was answered {answer}")
    for method in ("session/archive", "session/delete"):
        answer = ben.asks(method, {"sessionId": stage.ann.session})
        expect("error" in answer, f"{method} was answered {answer}")
    stage.ann.fence(stage.ann.session)


def a_copy_can_be_used(stage):
    """a fork has a name of the bus, under which it can be used"""
    answer = stage.ann.asks("session/fork", {"sessionId": stage.ann.session, "cwd": "/a/folder", "mcpServers": []})
    stage.ann.fence(answer["result"]["sessionId"])
    last = stage.agent.messages[-1]["params"]
    expect(answer["result"]["sessionId"].endswith("." + last["sessionId"]), f"the agent heard {last}")


def a_cancel_as_a_request(stage):
    """session/cancel as a request is answered, and the agent hears the notification"""
    answer = stage.ann.asks("session/cancel", {"sessionId": stage.ann.session})
    expect(answer.get("result") == {}, f"it was answered {answer}")
    heard = stage.agent.waits(lambda it: it.get("method") == "session/cancel")
    expect("id" not in heard, f"the agent heard {heard}")


def who_chose_is_told(stage):
    """a client that was asked too, and hears no events of the bus, is told in the session who chose what"""
    ben = stage.guest("ben")
    options = [{"optionId": "yes", "name": "Go on", "kind": "allow_once"}]
    asked = stage.asks("session/request_permission", {"sessionId": stage.own, "toolCall": {"toolCallId": "t"}, "options": options})
    questions = [it.end.waits(lambda it: it.get("method") == "session/request_permission") for it in (stage.ann, ben)]
    chosen = {"outcome": {"outcome": "selected", "optionId": "yes"}}
    stage.ann.end.say({"jsonrpc": "2.0", "id": questions[0]["id"], "result": chosen})
    stage.agent.waits(lambda it: it.get("id") == asked and "method" not in it)
    told = stage.hears(ben, "notice") or stage.hears(ben, "agent_thought_chunk")
    text = told and (told.get("title") or told["content"]["text"].strip())
    expect(text and text.endswith(" chose Go on"), f"Ben was told {told}")
    expect(ben.end.find(lambda it: it.get("method") == "$/cancel_request"), "his question was not taken back")
    stage.ann.fence()
    expect(not stage.hears(stage.ann, "notice") and not stage.hears(stage.ann, "agent_thought_chunk"), "Ann was told her own choice")


def a_closed_session_has_either_name(stage):
    """a session that was closed is opened again by the name that the client knew, and by the agent's, which the list shows"""
    method = "session/load" if stage.wire == 1 else "session/resume"
    for name in (stage.ann.session, stage.own):
        stage.ann.asks("session/close", {"sessionId": stage.ann.session})
        answer = stage.ann.asks(method, {"sessionId": name, "cwd": "/a/folder", "mcpServers": []})
        expect("result" in answer, f"{name} was answered {answer}")
        stage.ann.session = name
        stage.ann.fence(name)
        expect(stage.agent.messages[-1]["params"]["sessionId"] == stage.own, f"the agent heard {stage.agent.messages[-1]}")


STORIES = [
    one_server_name_of_two,
    a_question_about_a_request,
    a_login_is_told_later,
    commands_are_told_later,
    a_mode_is_told_to_others,
    an_archived_session_is_closed,
    a_stranger_may_only_ask,
    a_copy_can_be_used,
    a_cancel_as_a_request,
    who_chose_is_told,
    a_closed_session_has_either_name,
]
FIRST_VERSION = {a_mode_is_told_to_others}
