"""Methods that no schema of ACP has, and that agents and clients say nevertheless: read in their packages, or drafted.

`params` and `results` are values with marks for ids, as schema_values.py makes them from a schema.
"""

import dataclasses

import designs
from designs import ABSENT
from methods import ALL_CLIENTS, ALL_OF_LIST, ANY_SESSION, BY_SESSION, ENDS, ONE_PROCESS, ONLY_CLIENT, OPENS, OWNER
from schema_values import OTHER, SESSION

ADAPTERS = "claude-agent-acp, codex-acp"
AIR = "JetBrains AIR"
NES = "1, experimental/nes"
DRAFT = "drafted"
OLD = "until 2026"
TEXT = [{"type": "text", "text": "and one more thing"}]
DOCUMENT = {"sessionId": SESSION, "uri": "file:///a/b.rs"}
POSITION = {"line": 3, "character": 7}
ROW = {"sessionId": OTHER, "cwd": "/a/folder", "title": "a title", "_meta": {"jetbrains.air": {"archived": False}}}
FORKED = {"sessionId": OTHER, "cwd": "/a/folder", "forkedFrom": OTHER}


@dataclasses.dataclass
class Extension:
    speaker: str
    method: str
    is_request: bool
    who: str
    kind: str
    does: str
    params: tuple
    results: tuple = ({},)
    update: str | None = None
    differs: dict = dataclasses.field(default_factory=dict)


def asks(method, who, kind, does, *params, results=({},), **more):
    return Extension("client", method, True, who, kind, does, params, results, **more)


def tells(method, who, kind, does, *params, **more):
    return Extension("client", method, False, who, kind, does, params, **more)


EXTENSIONS = [
    asks("session/set_model", OLD, BY_SESSION, "Sets the model, as agents knew it before options; the bus remembers it.", {"sessionId": SESSION, "modelId": "m"}),
    asks("nes/start", NES, OPENS, "Opens a session for next edit suggestions.", {}, {"workspaceUri": "file:///a"}, results=({"sessionId": SESSION},)),
    asks(
        "nes/suggest",
        NES,
        BY_SESSION,
        "Is passed on.",
        {**DOCUMENT, "version": 1, "position": POSITION, "triggerKind": "automatic"},
        results=({"suggestions": []},),
    ),
    asks(
        "nes/close",
        NES,
        ENDS,
        "Closes the session. One that is not open here is refused with `-32051`.",
        {"sessionId": SESSION},
        differs={ABSENT: [designs.UNKNOWN_SESSION]},
    ),
    tells("nes/accept", NES, BY_SESSION, "Is passed on.", {"sessionId": SESSION, "id": "s1"}),
    tells("nes/reject", NES, BY_SESSION, "Is passed on.", {"sessionId": SESSION, "id": "s1"}, {"sessionId": SESSION, "id": "s1", "reason": "ignored"}),
    tells("document/didOpen", NES, BY_SESSION, "Is passed on.", {**DOCUMENT, "languageId": "rust", "version": 1, "text": "fn"}),
    tells("document/didChange", NES, BY_SESSION, "Is passed on.", {**DOCUMENT, "version": 2, "contentChanges": [{"text": "fn main"}]}),
    tells("document/didClose", NES, BY_SESSION, "Is passed on.", DOCUMENT),
    tells("document/didSave", NES, BY_SESSION, "Is passed on.", DOCUMENT),
    tells("document/didFocus", NES, BY_SESSION, "Is passed on.", {**DOCUMENT, "version": 2, "position": POSITION}),
    asks("_session/steering", ADAPTERS, BY_SESSION, "Is passed on, while a turn runs too.", {"sessionId": SESSION, "prompt": TEXT}),
    asks("_session/goal", ADAPTERS, BY_SESSION, "Is passed on.", {"sessionId": SESSION, "action": "clear"}, {"sessionId": SESSION, "action": "set", "objective": "x"}),
    asks("_session/async_task/stop", ADAPTERS, BY_SESSION, "Is passed on.", {"sessionId": SESSION, "asyncTaskId": "t1"}),
    Extension("agent", "_auth/status_update", False, ADAPTERS, ALL_CLIENTS, "Tells of the login, as `auth/status_update` does.", ({}, {"loggedIn": True})),
    asks("_session/rename", AIR, ANY_SESSION, "Renames a session.", {"sessionId": SESSION, "title": "x"}),
    asks("_session/archive", AIR, ENDS, "Archives a session, open or not; one that is open is closed.", {"sessionId": SESSION}),
    asks("_session/unarchive", AIR, ANY_SESSION, "Brings a session back into the list.", {"sessionId": SESSION}),
    asks(
        "_session/batch_get",
        AIR,
        ONE_PROCESS,
        "Is answered by one process, out of its store; sessions that only other nodes or other stores have are not in it.",
        {"sessionIds": []},
        {"sessionIds": [OTHER]},
        results=({"sessions": []}, {"sessions": [ROW]}),
    ),
    asks("_session/list/subscribe", AIR, ONE_PROCESS, "Is answered by one process, since a subscription has one id. What it tells is for all whose list it is.", {"cwd": "/a"}, results=({"subscriptionId": "s"},)),
    asks("_session/list/unsubscribe", AIR, ONE_PROCESS, "Is answered by one process.", {"subscriptionId": "s"}),
    Extension(
        "agent",
        "_session/list/changes",
        False,
        AIR,
        ALL_OF_LIST,
        "Tells that the list has changed. Each client hears of the sessions that it may see; a change of more than 256 KiB for all of them together is dropped.",
        ({"subscriptionId": "s", "sessions": [], "removed": []}, {"subscriptionId": "s", "sessions": [ROW], "removed": [OTHER]}),
    ),
    Extension("agent", "session/list_changed", False, DRAFT, ALL_OF_LIST, "Tells that the list has changed.", ({}, {"cwd": "/a/folder"})),
    asks("quota/read", DRAFT, ONE_PROCESS, "Is answered by one process.", {}, results=({"quotas": []},)),
    Extension(
        "agent",
        "session/update",
        False,
        DRAFT,
        ALL_CLIENTS,
        "Without a session it is about the account: it is told to all, and to clients that come later.",
        ({"update": {"sessionUpdate": "quota_update", "quotas": []}},),
        update="quota_update",
    ),
    asks("session/inject", DRAFT, BY_SESSION, "Is passed on.", {"sessionId": SESSION, "prompt": TEXT}),
    asks("_example.com/anything", "any", ONE_PROCESS, "Any other method about no session is passed on.", {}, {"a": [1, {"b": None}]}),
    tells("_example.com/telling", "any", ONE_PROCESS, "Any other notification about no session is passed on.", {}, {"a": 1}),
    asks("_example.com/of_session", "any", BY_SESSION, "Any other method with `sessionId` in its params is passed on.", {"sessionId": SESSION}, {"a": 1, "sessionId": SESSION}),
    Extension("agent", "_example.com/asking", True, "any", ONLY_CLIENT, "Any other request about no session.", ({}, {"a": [1]}), ({}, {"b": 2})),
    Extension("agent", "_example.com/telling", False, "any", ONLY_CLIENT, "Any other notification about no session is kept for clients that come, if no turn runs and no two clients share the process.", ({}, {"a": [1]})),
    Extension("agent", "_example.com/of_session", True, "any", OWNER, "Any other request with `sessionId` in its params.", ({"sessionId": SESSION},), ({}, {"b": 2})),
]

# Members of the schema's results that are drafted or in the wild.
MORE_RESULTS = {
    ("client", "session/list", None): [
        {"sessions": [{"sessionId": OTHER, "cwd": "/a"}, {"sessionId": "not-open-here", "cwd": "/b"}], "nextCursor": None},
        {"sessions": [FORKED]},
        {"sessions": [{"sessionId": OTHER, "cwd": "/a", "_meta": {"jetbrains.air": {"forkedFrom": OTHER}}}]},
    ],
}
