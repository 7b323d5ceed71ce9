"""What the bus does with every method and every update of ACP: the one table that the protocol suite and docs/PROTOCOL.md are made of.

The schemas say which methods there are, in which direction and version; a method that they have and this table lacks fails the suite.
Methods that no schema has are in extensions.py. Where the bus makes a difference on purpose, a row names it (designs.py has the reason);
a difference that does not occur any more fails the suite too.
"""

import dataclasses

import designs
from designs import ABSENT, OPEN, PLAIN

# Who hears what a client says.
ONE_ANSWER = "answered once for all"
EVERY_PROCESS = "to every process"
ONE_PROCESS = "to one process"
EACH_IN_TURN = "to each process in turn"
OPENS = "opens a session"
BY_SESSION = "by session"
ANY_SESSION = "by session, open or not"
ENDS = "ends a session"
BY_BUS = "answered by the bus"
# Who hears what an agent says.
OWNER = "to the owner"
ANSWERERS = "to all who may answer"
ALL_IN_SESSION = "to all in the session"
ALL_CLIENTS = "to all clients of the process"
ALL_OF_LIST = "to all whose list it is"
ONLY_CLIENT = "to the only client"
# Both.
WHO_ASKED = "by request"
BY_SERVER = "by MCP server"

CLASSES = {
    ONE_ANSWER: "A process hears it once. Its answer is kept and given to every further client that says the same.",
    EVERY_PROCESS: "Every process of the pool that works for clients like you hears it, those that start later too. You hear the answer of yours.",
    ONE_PROCESS: "One process of your pool hears it and answers: the one that has your sessions, if there is one.",
    EACH_IN_TURN: "Every process of your pool that works for clients like you and has declared the method hears it, one after the other, and you hear one answer, put together from theirs.",
    OPENS: "A process of your pool is chosen, and the session that its answer names is yours.",
    BY_SESSION: "The process of the session hears it. A session that is not open here is refused with `-32051` (`unknown_session`).",
    ANY_SESSION: "The process that has the session hears it. If none has it open, any process of your pool does, since the agent may know it.",
    ENDS: "The process of the session hears it. When it has agreed, the session is not open any more, for nobody.",
    BY_BUS: "No process hears it.",
    OWNER: "The client that opened the session, or took it over, and nobody else. About a session that is not open: `-32051` to the agent.",
    ANSWERERS: "The owner of the session and all guests that may answer; the first answer counts, and the others hear `$/cancel_request`.",
    ALL_IN_SESSION: "The owner of the session and all guests, in one order. About a session that is not open here: dropped.",
    ALL_CLIENTS: "Every client that the process works for.",
    ALL_OF_LIST: "Every client of each process of the pool that has the same store: they hear of the same sessions. One that does not keep up misses it.",
    ONLY_CLIENT: "The client of the process if it has only one. With several a request is refused with `-32601`, and a notification is dropped.",
    WHO_ASKED: "Whoever made the request, or was asked it, under the id that it knows.",
    BY_SERVER: "The client that named the server in `mcpServers`, or the process that it was named to.",
}


@dataclasses.dataclass
class Row:
    speaker: str
    method: str
    kind: str
    does: str
    # Differences that are wanted, or known and not yet gone, by the situation that they are seen in.
    differs: dict = dataclasses.field(default_factory=dict)

    def designs(self, situation, wire, is_request):
        """The differences that are seen in this situation, in one version of the protocol."""
        found = list(self.differs.get(situation, []))
        if situation == ABSENT and self.kind in ABSENT_IS_UNKNOWN:
            found.append(designs.UNKNOWN_SESSION)
        if wire == 2 and is_request and self.speaker == "client":
            found = [designs.UNKNOWN_SESSION_2 if design is designs.UNKNOWN_SESSION else design for design in found]
        return found


ABSENT_IS_UNKNOWN = {BY_SESSION, OWNER, ANSWERERS, ALL_IN_SESSION}


def client(method, kind, does, differs=()):
    return Row("client", method, kind, does, dict(differs))


def agent(method, kind, does, differs=()):
    return Row("agent", method, kind, does, dict(differs))


METHODS = [
    client("initialize", ONE_ANSWER, "Starts or finds a process that was initialized with the same version and capabilities; its answer is passed on, byte for byte."),
    client("authenticate", EVERY_PROCESS, "Logs in all processes, and those that start later."),
    client("logout", EVERY_PROCESS, "Logs out all processes."),
    client("auth/login", EVERY_PROCESS, "Logs in all processes, and those that start later."),
    client("auth/logout", EVERY_PROCESS, "Logs out all processes."),
    client("auth/status", ONE_PROCESS, "Is answered by one process: all of a pool have the same login."),
    client("providers/list", ONE_PROCESS, "Is answered by one process."),
    client("providers/set", EVERY_PROCESS, "Sets the provider in all processes, for every client of the pool."),
    client("providers/disable", EVERY_PROCESS, "Disables the provider in all processes, for every client of the pool."),
    client("session/new", OPENS, "Opens a session. Its id in the answer is the bus's name for it; use it like any other."),
    client(
        "session/load",
        OPENS,
        "Opens a session that the agent has stored. If it is open here, the agent tells it again to you alone, or you join it if it is another client's.",
        {OPEN: [designs.LOAD_REFUSED]},
    ),
    client(
        "session/resume",
        OPENS,
        "Opens a session without its history. If it is open here the bus answers, and you join it if it is another client's.",
        {OPEN: [designs.RESUME_BY_BUS]},
    ),
    client(
        "session/list",
        EACH_IN_TURN,
        "Is answered by every process of the pool, at every node, as one list in which each session stands once. A long one ends with a cursor of the bus; behind the first page a process whose store was listed before adds only what it has open. Sessions that are open here have the bus's names, and sessions that other clients own and do not share are left out.",
        {PLAIN: [designs.LIST_SPACES]},
    ),
    client("session/fork", OPENS, "Opens a copy, in the process of the original if that is open here; who may not speak of the original may not copy it."),
    client("session/prompt", BY_SESSION, "Begins a turn. A guest's prompt waits while another client's turn runs, and is told to the others."),
    client("session/cancel", BY_SESSION, "Cancels the turn, and takes back prompts of yours that wait. As a request it is answered with `{}`."),
    client("session/set_mode", BY_SESSION, "Sets the mode, which the bus remembers for whoever joins and sets again if the process dies."),
    client("session/set_config_option", BY_SESSION, "Sets the option, which the bus remembers for whoever joins and sets again if the process dies."),
    client("session/set_title", ANY_SESSION, "Renames a session."),
    client("session/status", ANY_SESSION, "Is answered by the agent, and opens nothing."),
    client("session/unarchive", ANY_SESSION, "Brings a session back into the list, and opens nothing."),
    client("session/archive", ENDS, "Archives a session, open or not. One that is open is closed; only its owner may."),
    client("session/delete", ENDS, "Deletes a session, open or not; of one that is open only its owner may."),
    client(
        "session/close",
        ENDS,
        "Closes the session. A guest only leaves it. A session that is not open here is refused with `-32051`.",
        {ABSENT: [designs.UNKNOWN_SESSION]},
    ),
    client("tool_call/cancel", BY_SESSION, "Is passed on; an observer may not say it."),
    client("terminal/cancel", BY_SESSION, "Is passed on; an observer may not say it."),
    client("mcp/message", BY_SERVER, "Is passed on to the process that the server was named to, with the name that the agent knows. `requestId` stays as it is."),
    client("$/cancel_request", WHO_ASKED, "Is passed on with the id under which the agent knows the request; a prompt that waits is taken back."),
    client("proxy/initialize", ONE_PROCESS, "Is meant for a chain of proxies, which the bus is not: it is passed on like any method that the bus does not know."),
    client("proxy/successor", ONE_PROCESS, "The same. Ids in the wrapped message are not read."),
    client("proxy/successor (notification)", ONE_PROCESS, "The same."),
    agent("session/request_permission", ANSWERERS, "Asks. With `\"permission\": \"allow\"` or `\"deny\"` in the pool the bus answers itself. Who was asked as well is told who chose what: by `_bus/session`, or, if it does not hear that, by an update."),
    agent("fs/read_text_file", OWNER, "Reads a file of the client whose capabilities the agent was given."),
    agent("fs/write_text_file", OWNER, "Writes a file of the client whose capabilities the agent was given."),
    agent("terminal/create", OWNER, "Is passed on."),
    agent("terminal/output", OWNER, "Is passed on."),
    agent("terminal/wait_for_exit", OWNER, "Is passed on."),
    agent("terminal/kill", OWNER, "Is passed on."),
    agent("terminal/release", OWNER, "Is passed on."),
    agent("elicitation/create", ANSWERERS, "Asks. About a request, it asks only the client that made it, under that client's id."),
    agent("elicitation/complete", WHO_ASKED, "Reaches the client that was asked. About an elicitation that nobody was asked it is dropped."),
    agent("auth/status_update", ALL_CLIENTS, "Tells of the login. The last one is kept and told to clients that come later."),
    agent("mcp/message", BY_SERVER, "Reaches the MCP server of the client that named it. Where another client of the process has used the same name before, the agent is told a fresh one in `mcpServers`, and `serverId` is replaced in both directions."),
    agent("$/cancel_request", WHO_ASKED, "Is passed on with the id under which the client knows the request, to everybody who was asked."),
]

UPDATES = {
    "user_message_chunk": "Is passed on. The bus tells it itself, to the others, when one of several clients says a prompt.",
    "user_message": "Is passed on.",
    "agent_message_chunk": "Is passed on.",
    "agent_message": "Is passed on.",
    "agent_thought_chunk": "Is passed on. The bus says `NAME chose OPTION` by one of its own, to who was asked too and takes neither its events nor notices.",
    "agent_thought": "Is passed on.",
    "tool_call": "Is passed on.",
    "tool_call_update": "Is passed on.",
    "tool_call_content_chunk": "Is passed on.",
    "terminal_update": "Is passed on.",
    "terminal_output_chunk": "Is passed on.",
    "plan": "Is passed on.",
    "plan_update": "Is passed on.",
    "plan_removed": "Is passed on.",
    "available_commands_update": "Is passed on, and told to whoever joins later.",
    "current_mode_update": "Is passed on, and remembered for whoever joins and for another process.",
    "config_option_update": "Is passed on, and remembered for whoever joins and for another process.",
    "session_info_update": "Is passed on; the title is shown where the bus lists its sessions.",
    "usage_update": "Is passed on, and counted where the bus shows usage.",
    "notice": "Is passed on. The bus says `NAME chose OPTION` by one of its own, to who was asked too, takes notices and does not hear its events.",
    "compaction_update": "Is passed on.",
    "compaction_summary_chunk": "Is passed on.",
    "subagent_update": "Is passed on. The session that it announces gets a name of the bus and belongs to whoever owns the one that announces it.",
    "session_message": "Is passed on, with the bus's names for sender and recipient.",
    "session_message_chunk": "Is passed on, with the bus's names for sender and recipient.",
    "state_update": "Is passed on, and tells the bus when a turn of version 2 begins and ends; background tasks have the bus's names.",
    "_example.com/other": "Any other update is passed on as it is.",
}

