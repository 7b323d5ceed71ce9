"""The differences between a conversation with and without the bus that are wanted, each with its reason; and those that are known faults.

Each says as narrowly as it can what it covers. `holds` is given what client and agent heard without the bus and with it, as two pairs of
lists of lines. A fault of the bus that is known stands here too, with `is_fault`: the page says so, and whoever repairs it is told by the
suite to take it out.
"""

import dataclasses
import json
from typing import Callable

PLAIN, OPEN, ABSENT = "about no session", "about a session that is open", "about a session that is not open here"


@dataclasses.dataclass(frozen=True)
class Design:
    what: str
    why: str
    holds: Callable
    is_fault: bool = False


def answers(lines):
    return [message for message in map(json.loads, lines) if "method" not in message]


def is_error(lines, code):
    return len(lines) == 1 and all((message.get("error") or {}).get("code") == code for message in answers(lines)) and len(answers(lines)) == 1


def is_result(lines):
    return len(lines) == 1 and len(answers(lines)) == 1 and "result" in answers(lines)[0]


def is_refused(alone, through, code):
    """Whether who was to hear it heard nothing, and who said it is told why, if it was a request."""
    for listener, speaker in ((0, 1), (1, 0)):
        if alone[listener] and not through[listener] and not is_result(alone[listener]):
            return is_error(through[speaker], code) if alone[speaker] else not through[speaker]
    return False


def is_unknown(alone, through):
    return is_refused(alone, through, -32051)


def is_unknown_2(alone, through):
    is_named = all("sessionId" in message["error"]["data"] for message in answers(through[0]) if "error" in message)
    return is_refused(alone, through, -32002) and is_named


def without_commands(lines):
    """The lines but those that tell the commands, which the bus tells who hears nothing else of the session."""
    return [line for line in lines if '"available_commands_update"' not in line]


def is_answered_by_bus(alone, through):
    return bool(alone[1]) and not through[1] and is_result(without_commands(through[0]))


def is_load_refused(alone, through):
    return alone[1] == through[1] and "error" in answers(alone[0])[-1] and is_result(without_commands(through[0]))


def has_other_spaces(alone, through):
    """Whether a list has the same rows, and another space between them."""
    is_same = [list(map(json.loads, lines)) for lines in alone] == [list(map(json.loads, lines)) for lines in through]
    return is_same and alone[1] == through[1] and alone[0] != through[0]


UNKNOWN_SESSION = Design(
    "refused with `-32051`, or dropped if it is a notification",
    "The bus knows which sessions are open, and asks no agent and no client about others.",
    is_unknown,
)
UNKNOWN_SESSION_2 = Design(
    "refused with `-32002` and `data.sessionId` in version 2",
    "The bus knows which sessions are open. This is how the draft spells it; as the answer to `session/close` it means success.",
    is_unknown_2,
)
RESUME_BY_BUS = Design(
    "answered by the bus, with the mode and options of now and the commands after it; the agent does not hear it",
    "The session is open, and a resume replays nothing.",
    is_answered_by_bus,
)
LOAD_REFUSED = Design(
    "answered by the bus, where the agent refuses it",
    "The session is there, and its client wants to go on in it.",
    is_load_refused,
)
LIST_SPACES = Design(
    "there is no space between the rows, if the agent writes one",
    "The bus may leave out rows, and writes the commas itself. Each row is as the agent wrote it.",
    has_other_spaces,
)
