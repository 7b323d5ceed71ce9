"""What the protocol suite says: every method and update of the schemas and of the table, with every kind of params and answers."""

import dataclasses
import re

from designs import ABSENT, OPEN, PLAIN
from extensions import EXTENSIONS, MORE_RESULTS
from methods import ALL_IN_SESSION, ENDS, METHODS, UPDATES, Row
from schema_values import CHILD, OTHER, REQUEST, SESSION, Values, filled, marks_in

UPDATE = "session/update"
FAULTS = {
    "client": {"error": {"code": -32002, "message": "said by the agent", "data": {"sessionId": OTHER, "why": ["kept", 1]}}},
    "agent": {"error": {"code": -32000, "message": "said by the client", "data": {"why": ["kept", 1]}}},
}
"""An error that answers what one of them says. An agent may name a session in it; a client has no reason to."""
VERSIONS = {"1": "v1/schema.json", "1 unstable": "v1/schema.unstable.json", "2": "v2/schema.json", "2 unstable": "v2/schema.unstable.json"}


@dataclasses.dataclass
class Said:
    """One method, or one kind of update, that one side says: what the schemas have of it."""

    speaker: str
    method: str
    is_request: bool
    update: str | None = None
    versions: set = dataclasses.field(default_factory=set)
    # By version of the protocol, the values of its params and of its results.
    params: dict = dataclasses.field(default_factory=dict)
    results: dict = dataclasses.field(default_factory=dict)

    @property
    def name(self):
        return self.update or self.method

    @property
    def key(self):
        return self.speaker, self.method, self.update


@dataclasses.dataclass(eq=False)
class Case:
    """One exchange: `params` and `answer` hold marks for the ids."""

    said: Said
    number: int
    situation: str
    params: dict
    answer: dict | None
    # Whether the session is not open any more after it.
    is_ending: bool

    @property
    def name(self):
        return f"{self.said.speaker} says {self.said.name}, {self.situation}"

    def __str__(self):
        return f"{self.name}, no. {self.number}"


def rows():
    """The rows of the table, by who says it, the method and, of an update, its kind."""
    found = {(row.speaker, row.method, None): row for row in METHODS}
    found |= {("agent", UPDATE, kind): Row("agent", UPDATE, ALL_IN_SESSION, does) for kind, does in UPDATES.items()}
    return found | {(one.speaker, one.method, one.update): Row(one.speaker, one.method, one.kind, one.does, one.differs) for one in EXTENSIONS}


class Protocol:
    """All that the schemas of an SDK have, and what is said in the wild, each with its row."""

    def __init__(self, sdk):
        self.said, self.faults, self.rows = {}, [], rows()
        for version, path in VERSIONS.items():
            self.read(Values(sdk / "schema" / path), version)
        self.read_extensions(sdk)
        self.check_rows()

    def check_rows(self):
        """Every method has a row, and every row is of a method."""
        for speaker, method, update in sorted(self.said.keys() - self.rows.keys(), key=str):
            where = "UPDATES" if update else "METHODS"
            what = f"{update or method}, which the {speaker} says"
            self.faults.append(f"the schema has {what}, and methods.py lacks it: add to {where} what the bus does with it, and try it")
        for speaker, method, update in sorted(self.rows.keys() - self.said.keys(), key=str):
            what = f"{update or method}, which the {speaker} says"
            self.faults.append(f"no schema has {what}, any more: move it from methods.py to extensions.py if it is still said, else take it out")

    def known(self):
        """All that has a row; what has none is a fault of the table, and the rest is tried nevertheless."""
        return [said for said in self.said.values() if said.key in self.rows]

    def row(self, said):
        return self.rows[said.key]

    def read(self, values, version):
        wire, is_whole = int(version[0]), "unstable" in version
        for name, definition in list(values.definitions.items()):
            if "x-method" not in definition or name.endswith("Response") or " " in name:
                continue
            method, side = definition["x-method"], definition["x-side"]
            speakers = {"agent": ["client"], "client": ["agent"], "protocol": ["client", "agent"], "proxy": ["client"]}[side]
            is_request = name.endswith("Request")
            for speaker in speakers:
                if method == UPDATE:
                    self.read_updates(values, name, version)
                    continue
                method_name = f"{method} (notification)" if not is_request and (method, True) in self.both(values) else method
                said = self.add(Said(speaker, method_name, is_request), version)
                if is_whole:
                    said.params[wire] = self.values(values, name, wire)
                    answer = re.sub("Request$", "Response", name)
                    said.results[wire] = self.values(values, answer, wire) if is_request else []
                    said.results[wire] += MORE_RESULTS.get(said.key, [])

    def both(self, values):
        """The methods that are a request and a notification in the same direction."""
        sides = {}
        for name, definition in values.definitions.items():
            if "x-method" in definition and not name.endswith("Response") and " " not in name:
                sides.setdefault((definition["x-method"], definition["x-side"]), set()).add(name.endswith("Request"))
        return {(method, len(kinds) == 2) for (method, _), kinds in sides.items()}

    def read_updates(self, values, name, version):
        wire, union = int(version[0]), values.definitions["SessionUpdate"]
        for option in union.get("oneOf") or union.get("anyOf"):
            kind = option["properties"]["sessionUpdate"].get("const", "_example.com/other")
            said = self.add(Said("agent", UPDATE, False, kind), version)
            if "unstable" in version:
                whole = values.definitions[name]
                one = {**whole, "properties": {**whole["properties"], "update": option}}
                own_name = f"{name} {kind.replace('/', ' ')}"
                values.definitions[own_name] = one
                said.params[wire] = self.values(values, own_name, wire)

    def add(self, said, version):
        said = self.said.setdefault(said.key, said)
        said.versions.add(version)
        return said

    def values(self, values, name, wire):
        made = values.all_of(name, wire)
        for value in made:
            faults = values.faults(name, filled_for_check(value))
            self.faults += [f"schema_values.py makes a wrong {name} of version {wire}: {fault}" for fault in faults[:1]]
        return made

    def read_extensions(self, sdk):
        known = {method for _, method, _ in self.said}
        drafted = re.findall(r'"((?:nes|document)/\w+)"', (sdk / "dist" / "nes" / "acp.d.ts").read_text())
        listed = {one.method for one in EXTENSIONS}
        self.faults += [f"methods.py lacks {name} among EXTENSIONS: the SDK's experimental/nes has it" for name in sorted(set(drafted) - listed)]
        for one in EXTENSIONS:
            if one.method in known and not one.update:
                self.faults.append(f"{one.method} is in the schema now: take it out of EXTENSIONS in methods.py")
            self.said[one.speaker, one.method, one.update] = said_of(one)

    def cases(self, wire):
        """Every exchange of one version, but for `initialize`, which comes first."""
        for said in self.known():
            if said.method != "initialize":
                yield from cases_of(said, self.row(said).kind, wire)


def said_of(one):
    said = Said(one.speaker, one.method, one.is_request, one.update, {one.who})
    said.params[1], said.results[1] = list(one.params), list(one.results) if one.is_request else []
    return said


def filled_for_check(value):
    return filled(value, {SESSION: "s", CHILD: "c", OTHER: "o", REQUEST: 1})


def cases_of(said, kind, wire):
    """Each params once and each result once, and one error, in every situation that the params allow."""
    params, results = said.params.get(wire, []), said.results.get(wire, [])
    answers = [{"result": result} for result in results] + ([FAULTS[said.speaker]] if said.is_request else [])
    for number in range(max(len(params), len(answers))):
        if not params:
            return
        chosen = params[number % len(params)]
        answer = answers[number % len(answers)] if answers else None
        if SESSION not in marks_in(chosen):
            yield Case(said, number, PLAIN, chosen, answer, False)
            continue
        yield Case(said, number, OPEN, chosen, answer, kind == ENDS)
        # What is ended is not open any more, so that the answer makes no difference.
        if number < 2 or kind == ENDS:
            yield Case(said, number, ABSENT, chosen, answer, kind == ENDS)
