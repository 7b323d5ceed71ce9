"""Holds what the bus sent against the published JSON schema of ACP v1.

Every line is checked: the JSON-RPC frame, the params of a request or notification by its method, a result by the method it answers.
The bus passes on what it is given, so a fault that the origin's own message already had is the origin's: it is counted apart and
named, and is no failure of the bus.
"""

import json

import jsonschema


class Schema:
    def __init__(self, path):
        whole = json.loads(path.read_text())
        self.definitions = whole["$defs"]
        self.validators, self.of = {}, {}
        for name, definition in self.definitions.items():
            if "x-method" in definition:
                kind = "result" if name.endswith("Response") else "params"
                self.of[definition["x-side"], definition["x-method"], kind] = name

    def faults(self, name, value):
        if name not in self.validators:
            self.validators[name] = jsonschema.Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": self.definitions})
        for fault in self.validators[name].iter_errors(value):
            path = ".".join("*" if isinstance(part, int) else str(part) for part in fault.absolute_path)
            yield f"{name}{'.' if path else ''}{path}: {fault.validator}"


def check(schema, recording, direction):
    """The faults of what went in one direction, as (fault, message), and how many messages were looked at.

    `in` are messages to an agent, `out` those to a client."""
    listener = "agent" if direction == "in" else "client"
    asked, faults, count = {}, [], 0
    for entry in recording.lines:
        try:
            message = json.loads(entry["line"])
        except ValueError:
            if entry["dir"] == direction:
                faults.append(("line: not JSON", entry["line"][:200]))
            continue
        if entry["dir"] != direction:
            # What the other side asks decides what a later result must look like.
            if isinstance(message, dict) and "method" in message and "id" in message:
                asked[json.dumps(message["id"])] = message["method"]
            continue
        count += 1
        faults += [(fault, entry["line"][:400]) for fault in message_faults(schema, message, listener, asked)]
    return faults, count


def message_faults(schema, message, listener, asked):
    if not isinstance(message, dict):
        return ["line: not an object"]
    if message.get("jsonrpc") != "2.0":
        return ["jsonrpc: not 2.0"]
    if "id" in message and not is_id(message["id"]):
        return ["id: not a RequestId"]
    if "method" in message:
        return request_faults(schema, message, listener)
    if "id" not in message:
        return ["id: missing in an answer"]
    if ("result" in message) == ("error" in message):
        return ["answer: not exactly one of result and error"]
    if "error" in message:
        return list(schema.faults("Error", message["error"]))
    method = asked.get(json.dumps(message["id"]))
    if method is None:
        return ["id: answers nothing that was asked"]
    # The answer to a client's request is defined on the agent's side, and the other way round.
    name = schema.of.get(("agent" if listener == "client" else "client", method, "result"))
    return list(schema.faults(name, message["result"])) if name else []


def request_faults(schema, message, listener):
    method = message["method"]
    if method.startswith("_"):
        return []  # An extension; its params are its own affair.
    name = schema.of.get((listener, method, "params")) or schema.of.get(("protocol", method, "params"))
    if name is None:
        return [f"{method}: not a method of the schema"]
    return list(schema.faults(name, message.get("params", {})))


def is_id(value):
    return value is None or isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool))
