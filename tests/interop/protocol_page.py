"""docs/PROTOCOL.md, written from the table of methods and the schemas."""

import install
from designs import ABSENT, OPEN, PLAIN, UNKNOWN_SESSION, UNKNOWN_SESSION_2
from methods import CLASSES

PAGE = install.REPO / "docs" / "PROTOCOL.md"


def check(protocol, outcome, is_writing):
    if protocol.faults:
        return  # The table comes first.
    text = "\n".join(page(protocol)) + "\n"
    if is_writing:
        PAGE.write_text(text)
    is_true = PAGE.exists() and PAGE.read_text() == text
    outcome.add("protocol", "docs/PROTOCOL.md is what the table says", is_true, "write it: tests/interop/run --protocol")


def page(protocol):
    said = list(protocol.said.values())
    schemas = [one for one in said if one.versions & {"1", "1 unstable", "2", "2 unstable"}]
    others = [one for one in said if one not in schemas]
    yield "# The protocol, method by method"
    yield ""
    yield "For authors of clients and agents: what the bus does with every method and every update of ACP. Written by `tests/interop/run --protocol`, which says each of them"
    yield "between a scripted client and a scripted agent, with and without the bus in between, with the required params alone and with every optional one."
    yield f"What is heard is the same, byte for byte, but for the differences that are listed here. The methods are those of npm {install.PINS['npm']['typescript-sdk']}."
    yield ""
    yield "- **Ids of requests** are your own, on both sides. The bus names them anew and back, also in `requestId` of `$/cancel_request` and `elicitation/create`."
    yield "- **Ids of sessions** are `TAG.AGENTID` for clients and AGENTID for agents. The bus renames `sessionId` in params and results, in the `data` of an error, and in the rows of lists,"
    yield "  where it renames `forkedFrom` too; `sessionIds` and `removed` of JetBrains AIR's methods; and `senderSessionId`, `recipientSessionId` and `background[].sessionId` of updates. All other bytes are passed on as they are, `_meta` too."
    yield "  The bus's name of a session goes when the session is closed: `session/list` shows it by the agent's id then, and both names open it again, as does any `TAG.AGENTID` of an earlier bus."
    yield "- **Errors** of the bus have `data.reason`; [GUIDE.md](GUIDE.md#when-things-fail) has the codes. Errors of an agent or a client are passed on."
    yield "- `_bus/` methods are the bus's own: [GUIDE.md](GUIDE.md#talk-to-it)."
    yield from ["", "## Who hears it", "", "| class | meaning |", "|---|---|"]
    yield from (f"| {name} | {meaning} |" for name, meaning in CLASSES.items())
    for title, speaker in (("What clients say", "client"), ("What agents say", "agent")):
        yield from ["", f"## {title}", ""]
        yield from table(protocol, [one for one in schemas if one.speaker == speaker and not one.update], "method")
    yield from ["", "## Updates", "", "`session/update` by its kind: all are for everybody in the session.", ""]
    yield from table(protocol, [one for one in schemas if one.update], "update")
    yield from ["", "## Methods that no schema has", "", "They were read in the packages of agents and clients, or are drafted.", ""]
    yield from table(protocol, others, "method", "whose")
    yield from differences(protocol)


def table(protocol, said, first, second="version"):
    yield f"| {first} | {second} | | class | what the bus does |"
    yield "|---|---|---|---|---|"
    for one in said:
        row = protocol.row(one)
        name = one.update or one.method.removesuffix(" (notification)")
        name = "any other" if name == "_example.com/other" else name
        direction = "agent says, " if first == "method" and one.speaker == "agent" and not is_of_schema(one) else ""
        kind = direction + ("request" if one.is_request else "notification")
        yield f"| `{name}` | {versions(one)} | {kind} | {row.kind} | {row.does} |"


def is_of_schema(said):
    return any(version[0] in "12" for version in said.versions) and "experimental" not in "".join(said.versions)


def versions(said):
    found = []
    for wire in ("1", "2"):
        if wire in said.versions:
            found.append(wire)
        elif f"{wire} unstable" in said.versions:
            found.append(f"{wire} unstable")
    return ", ".join(found or sorted(said.versions))


def differences(protocol):
    """What is not the same through the bus: what is wanted, and what is not."""
    places = {UNKNOWN_SESSION: ["every message by session about one that is not open here"], UNKNOWN_SESSION_2: ["every request by session about one that is not open here"]}
    for row in protocol.rows.values():
        for situation in (PLAIN, OPEN, ABSENT):
            for design in row.differs.get(situation, []):
                places.setdefault(design, []).append(f"`{row.method}` {situation}")
    for title, is_fault in (("Differences that are wanted", False), ("Differences that are not wanted, and known", True)):
        chosen = [design for design in places if design.is_fault == is_fault]
        if not chosen:
            continue
        yield from ["", f"## {title}", "", "| where | through the bus | why |", "|---|---|---|"]
        for design in chosen:
            yield f"| {'; '.join(places[design])} | {design.what} | {design.why} |"
