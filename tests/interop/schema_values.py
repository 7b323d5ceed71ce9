"""Values that a JSON schema of ACP allows: with the required members alone, with every optional member, and each variant of a union once.

Ids are no text like any other: the bus knows them by other names than the agent. In a value they are marks, which whoever says it
replaces by the names that it knows.
"""

import itertools
import json

import jsonschema

SESSION, CHILD, OTHER, REQUEST = "@session", "@child", "@other", "@request"
MARKS = {SESSION, CHILD, OTHER, REQUEST}
# A session that another one has begun, and not the one that the message is about.
CHILDREN = {("SubagentUpdate", "sessionId"), ("BackgroundSubagent", "sessionId")}
IDS = {"RequestId": REQUEST, "McpServerAcpId": "mcp-server", "McpRequestId": "mcp-request", "ElicitationId": "elicitation"}
META = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "example.com/kept": [True, None, -0.5, "\u2028 \"ü\" \\"]}
FORMATS = {"uri": "file:///a/b.txt", "date-time": "2026-01-02T03:04:05Z", "double": 0.25}
# Text of names that the bus reads is plain; any other shows that not a byte is changed.
TEXT = 'a "text", ünï\\codé \t\u2028 </x>'
OTHER_VARIANT = "_example.com/other"
DEEP = 12
MOST_ROUNDS = 24


class Values:
    """The values of one schema file."""

    def __init__(self, path):
        self.definitions = json.loads(path.read_text())["$defs"]
        self.validators = {}

    def all_of(self, name, version):
        """Values of this definition: the required members; all members, once for each variant of its unions; null where that may be."""
        made = [Maker(self.definitions, version, is_full=False).of(name)]
        for number in itertools.count():
            maker = Maker(self.definitions, version, is_full=True, number=number)
            made.append(maker.of(name))
            if number + 1 >= min(maker.most_options, MOST_ROUNDS):
                break
        made.append(Maker(self.definitions, version, is_full=True, is_null=True).of(name))
        unlike = {json.dumps(value): value for value in made}
        return list(unlike.values())

    def faults(self, name, value):
        """Why this is no value of the definition, if it is none."""
        if name not in self.validators:
            self.validators[name] = jsonschema.Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": self.definitions})
        return [fault.message for fault in self.validators[name].iter_errors(value)]


class Maker:
    """Makes one value. Of a union it takes the variant with its number, so that a maker for each number makes them all."""

    def __init__(self, definitions, version, is_full, number=0, is_null=False):
        self.definitions, self.version = definitions, version
        self.is_full, self.number, self.is_null = is_full, number, is_null
        self.most_options = 1

    def of(self, name):
        return self.make(self.definitions[name], (name, ""), 0)

    def make(self, schema, place, depth):
        """`place` is the definition and the member that the value stands in."""
        if "$ref" in schema:
            return self.referred(schema["$ref"].rpartition("/")[2], place, depth)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return self.choose(schema["enum"])
        parts = [self.make(part, place, depth + 1) for part in schema.get("allOf", [])]
        for union in ("oneOf", "anyOf"):
            if union in schema:
                parts.append(self.make(self.variant(schema[union]), place, depth + 1))
        if "properties" in schema or all(isinstance(part, dict) for part in parts) and parts:
            made = {}
            for part in [*parts, self.members(schema, place[0], depth)]:
                made.update({key: value for key, value in part.items() if key not in made})
            return made
        return parts[0] if parts else self.plain(schema, place, depth)

    def referred(self, name, place, depth):
        if name == "SessionId":
            return CHILD if place in CHILDREN else SESSION if place[1] == "sessionId" else OTHER
        if name == "ProtocolVersion":
            return self.version
        if name in IDS:
            return IDS[name]
        return self.make(self.definitions[name], (name, place[1] if "properties" not in self.definitions[name] else ""), depth + 1)

    def variant(self, options):
        real = [option for option in options if option.get("type") != "null"]
        if self.is_null and len(real) < len(options):
            return {"type": "null"}
        return self.choose(real)

    def choose(self, options):
        self.most_options = max(self.most_options, len(options))
        return options[self.number % len(options)]

    def members(self, schema, name, depth):
        required = schema.get("required", [])
        made = {}
        for key, member in schema.get("properties", {}).items():
            if key not in required and (not self.is_full or depth > DEEP):
                continue
            may_be_null = "null" in as_list(member.get("type")) or {"type": "null"} in member.get("anyOf", [])
            if self.is_null and key not in required and not may_be_null:
                continue
            if key == "_meta" and not self.is_null:
                made[key] = META
            elif "title" in schema and schema["title"] == "other" and member.get("type") == "string" and key in required:
                made[key] = OTHER_VARIANT
            else:
                made[key] = self.make(member, (name, key), depth + 1)
        return made

    def plain(self, schema, place, depth):
        kinds = as_list(schema.get("type"))
        if self.is_null and "null" in kinds:
            return None
        kind = next((kind for kind in kinds if kind != "null"), "object" if kinds == [] else "null")
        if kind == "array":
            is_empty = (not self.is_full or depth > DEEP) and not schema.get("minItems")
            return [] if is_empty else [self.make(schema["items"], place, depth + 1)]
        if kind == "object":
            more = schema.get("additionalProperties")
            return {"key": self.make(more, place, depth + 1)} if isinstance(more, dict) and self.is_full else {}
        if kind == "string":
            return FORMATS.get(schema.get("format"), "/a/folder" if place[1] in ("cwd", "path") else TEXT)
        if kind in ("integer", "number"):
            return max(schema.get("minimum", 7), 7) if kind == "integer" else FORMATS["double"]
        return {"boolean": True, "null": None}[kind]


def as_list(value):
    return value if isinstance(value, list) else [] if value is None else [value]


def filled(value, names):
    """A value with the names that its marks stand for."""
    if isinstance(value, dict):
        return {key: filled(part, names) for key, part in value.items()}
    if isinstance(value, list):
        return [filled(part, names) for part in value]
    return names[value] if isinstance(value, str) and value in MARKS else value


def marks_in(value):
    """The marks that stand somewhere in a value."""
    if isinstance(value, dict):
        return set().union(*map(marks_in, value.values()), set())
    if isinstance(value, list):
        return set().union(*map(marks_in, value), set())
    return {value} & MARKS if isinstance(value, str) else set()
