"""The differences that the bus makes on purpose between what a client hears of an agent with and without it, each with its reason.

Every one says as narrowly as it can what it covers: never a message that is lost, told twice or wrong.
"""

import dataclasses
import json
from typing import Callable

from transcript import CHUNKS, kind_of, without_numbers

WORKER_LOST, UNKNOWN_SESSION = -32050, -32051
# What agents tell whenever it suits them: it must be heard, and at whatever time.
LOOSE = {"available_commands_update", "session_info_update", "usage_update", "config_option_update"}
# The same for notifications about no session: who is logged in, some agents find out after they have answered the first requests.
LOOSE_METHODS = {"_auth/status_update"}
# A title is thought up by a model, and may come when the client has left.
LATE = "session_info_update"
IDS = ['"text"', '""', "0", "-1", "9007199254740993", "1.5"]
ODD_IDS = ["null", "true", "[1]", '{"a":1}']
NO_MESSAGES = [
    "this is no JSON",
    "[]",
    '[{"jsonrpc":"2.0","id":71,"method":"nonsense/method","params":{}}]',
    '{"jsonrpc":"2.0","id":72,"method":5}',
    '{"jsonrpc":"2.0","id":73}',
]
NO_ANSWERS = ['{"jsonrpc":"2.0","id":74,"result":{}}']
ODD_MESSAGES = [
    '{"id":75,"method":"nonsense/method","params":{}}',
    '{"jsonrpc":"2.0","id":76,"method":"session/prompt"}',
    '{"jsonrpc":"2.0","id":77,"method":"session/prompt","params":[1]}',
    '{"jsonrpc":"2.0","method":"nonsense/notice","params":{}}',
]


def is_error(message, *codes):
    return isinstance(message, dict) and (message.get("error") or {}).get("code") in codes


@dataclasses.dataclass
class Design:
    """A difference that is wanted: `holds` is given the step, and what was heard directly and through the bus (None: nothing).

    In `STEPS_BY_DESIGN` it is given all that was heard, by step, and decides about a whole step.
    """

    what: str
    why: str
    holds: Callable


NO_SESSION = {"a prompt in a closed session", "a prompt in no session", "a mode in no session", "session/load of no session"}
REFUSED = {f"the id {text}" for text in ODD_IDS} | {f"the line {text}" for text in NO_MESSAGES}
DROPPED = {f"the line {text}" for text in NO_ANSWERS}
READABLE = {f"the id {text}" for text in IDS}
ODD_REQUESTS = {f"the line {text}": json.loads(text)["id"] for text in ODD_MESSAGES if "id" in json.loads(text)}
ENDED = "the agent ended"
NOT_PLAYED = "played only through the bus"
LOADS = {"session/load of an open session", "session/load after a return"}
RETURNED = "a prompt after a return"


def has_no_id(message):
    """Whether it is an error that answers no request."""
    return isinstance(message, dict) and "error" in message and message.get("id") is None


def has_id(message, id_=None):
    """Whether it is an answer, where `id_` is given the one to this request."""
    return isinstance(message, dict) and "id" in message and id_ in (None, message["id"])


def is_loose(message):
    return kind_of(message) in LOOSE or (isinstance(message, dict) and message.get("method") in LOOSE_METHODS)


def without_session(message):
    """An answer without the session's id in its result."""
    result = message.get("result") if isinstance(message, dict) else None
    return {**message, "result": {key: value for key, value in result.items() if key != "sessionId"}} if isinstance(result, dict) else message


def is_told_again(alone, through):
    """Whether an agent replays what the bus does not let through."""
    return through is None and kind_of(alone) in CHUNKS | {"tool_call", "tool_call_update", "plan"}


def counts_on(alone, through):
    """Whether two answers are the same but for the tokens, of which the second tells as many or more."""
    results = [message.get("result") if isinstance(message, dict) else None for message in (alone, through)]
    if not all(isinstance(result, dict) and isinstance(result.get("usage"), dict) for result in results):
        return False
    fewer, more = (result["usage"] for result in results)
    rest, other = ({**message, "result": {**message["result"], "usage": without_numbers(message["result"]["usage"])}} for message in (alone, through))
    return rest == other and all(more[key] >= count for key, count in fewer.items() if isinstance(count, int))


def is_refused(messages):
    """Whether a request was answered with an error, and nothing else was heard."""
    return len(messages) == 1 and has_id(messages[0]) and "error" in messages[0]


def without_choices(value):
    """A session as it was opened, without what is chosen in it."""
    if isinstance(value, dict):
        chosen = {"sessionId", "currentModeId", "currentModelId", "currentValue"}
        return {key: without_choices(part) for key, part in value.items() if key not in chosen}
    return [without_choices(part) for part in value] if isinstance(value, list) else value


def without_ids(messages):
    return [{**message, "id": None} if has_id(message) else message for message in messages]


def stays_open(step, alone, through):
    """Whether an agent refuses to open a session, and the bus, which has it open, answers as when it was opened."""
    if step not in LOADS or not is_refused(alone[step]):
        return False
    opened = next((message["result"] for message in through["session/new"] if has_id(message) and "result" in message), None)
    expected = {"jsonrpc": "2.0", "id": alone[step][0]["id"], "result": opened}
    return opened is not None and without_choices(through[step]) == without_choices([expected])


def goes_on(step, alone, through):
    """Whether an agent has lost a session with its process, and through the bus it says there what it had said to the same prompt."""
    is_gone = step == RETURNED and is_refused(alone[step]) and is_refused(alone.get("session/load after a return", []))
    return is_gone and without_ids(through[step]) == without_ids(alone["a prompt after that"])


def keeps_choices(step, alone, through):
    """Whether a session that is loaded after a return has still the mode and options that it had before, and all the rest is the same."""
    before = "session/load of an open session"
    if step != "session/load after a return" or not (alone[step] and through[step] and through.get(before)):
        return False
    (*told, answer), (*same, other) = alone[step], through[step]
    return told == same and without_choices(answer) == without_choices(other) and without_ids([other]) == without_ids(through[before][-1:])


def is_lost(step, alone, through):
    """Whether an agent ends of an odd request, and that one and what else it had left unanswered is each answered `worker_lost`, once."""
    if step not in ODD_REQUESTS or alone[step] != [ENDED]:
        return False
    unanswered = {id_ for name, id_ in ODD_REQUESTS.items() if not any(has_id(message, id_) for message in alone[name])}
    ids = [message["id"] for message in through[step] if is_error(message, WORKER_LOST) and has_id(message)]
    return len(ids) == len(through[step]) == len(set(ids)) and ODD_REQUESTS[step] in ids and set(ids) <= unanswered


def is_answer_first(step, alone, through):
    """Whether the answer that opens a session comes before what is told of it, and all the rest is the same."""
    *told, answer = alone[step] or [None]
    return step == "session/fork" and has_id(answer) and "result" in answer and through[step] == [answer, *told]


BY_DESIGN = [
    Design(
        "a session that is not there, or not this client's, is `-32051` with `data.reason`, not the agent's own error",
        "The bus knows whose a session is, and asks no agent about others.",
        lambda step, alone, through: step in NO_SESSION and (is_error(through, UNKNOWN_SESSION) or through is None),
    ),
    Design(
        "a line that is no message, or whose id is neither text nor a number, is answered `-32700` or `-32600` by the bus",
        "Agents answer such lines in many ways or not at all, and some end, with everybody's sessions.",
        lambda step, alone, through: step in REFUSED and (is_error(through, -32700, -32600) or (alone == ENDED and through is None)),
    ),
    Design(
        "an answer to nothing that was asked is dropped",
        "It would be an answer to somebody else's question.",
        lambda step, alone, through: step in DROPPED and through is None,
    ),
    Design(
        "an error that an agent says without an id is dropped",
        "It answers no request, so that nobody knows whose it is.",
        lambda step, alone, through: through is None and has_no_id(alone),
    ),
    Design(
        "an id that the agent cannot read, or rounds, comes back as it was",
        "The agent sees only the bus's own ids.",
        lambda step, alone, through: step in READABLE and (has_no_id(alone) or has_id(alone, 9007199254740992)) and has_id(through),
    ),
    Design(
        "`session/resume` of a session that the bus has open is answered by the bus, with the mode and options of now and nothing replayed",
        "So ACP wants it, and some agents do otherwise; also where an agent offers it and does not know it.",
        lambda step, alone, through: step.startswith("session/resume") and (is_told_again(alone, through) or is_error(alone, -32601)),
    ),
    Design(
        "the bus's answer to `session/resume` names no session",
        "The client has named it, and ACP has no `sessionId` in this answer; some agents tell it nevertheless.",
        lambda step, alone, through: step.startswith("session/resume") and has_id(alone) and without_session(alone) == through,
    ),
    Design(
        "an agent that ends after an `initialize` that it refuses does not end for its client, which may try again",
        "The bus replaces the process, and others may use it.",
        lambda step, alone, through: (step.startswith("initialize of") and alone == ENDED and through is None) or through == NOT_PLAYED,
    ),
    Design(
        "what an agent tells of a session that is not there is not heard",
        "No agent is asked about it.",
        lambda step, alone, through: through is None and kind_of(alone) in LOOSE and alone["params"]["sessionId"] == "no-such-session",
    ),
    Design(
        "after the death of a process the options that the next one begins with are heard, before the bus has set those of the client again",
        "Directly the session would be gone. What is told of the options after that is true again.",
        lambda step, alone, through: step == "at any time" and alone is None and kind_of(through) == "config_option_update",
    ),
    Design(
        "tokens that an agent counts from the start of its process are counted on when a client returns",
        "The process lives on. Directly the client has started another.",
        lambda step, alone, through: step == RETURNED and counts_on(alone, through),
    ),
]

STEPS_BY_DESIGN = [
    Design(
        "`session/load` of a session that the bus has open and the agent refuses to load is answered by the bus, with the mode and options of now",
        "The session is there, and its client wants to go on in it.",
        stays_open,
    ),
    Design(
        "a session that the agent would have lost with its process goes on when a client returns",
        "The process lives on. Directly the client has started another.",
        goes_on,
    ),
    Design(
        "the mode and options of a session are still set when a client returns and loads it, where the agent forgets them with its process",
        "The process lives on. Directly the client has started another.",
        keeps_choices,
    ),
    Design(
        "a request that an agent ends of is answered `-32050` (`worker_lost`), and its client stays connected",
        "The bus starts another process, and others may use it.",
        is_lost,
    ),
    Design(
        "the answer to `session/fork` comes before what the agent tells of the new session",
        "Only the answer says whose session it is.",
        is_answer_first,
    ),
]
