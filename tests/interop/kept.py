"""What is kept of a session of a real agent is what its owner saw, message for message.

The owner is a plain client that writes down every line. It plays turns with each agent (words, a tool, a question that it grants), the writer
of transcripts is killed in between, and in the end the transcript is read: prompts, updates, questions with their answers and the ends of
turns, in the same order. The chunks of one message are joined on both sides; nothing else may differ.
"""

import json
import os
import pathlib
import signal
import subprocess

from agents import AGENTS, Place
from scenario import expect, tag_of
from stage import Bus, Failed, Raw, within

# The agent of this repository, and of the first tier those that other people have written.
NAMES = ["echo", "qwen", "zed-codex", "nanocoder"]
CHUNKS = ("agent_message_chunk", "agent_thought_chunk", "user_message_chunk")


def run_all(binary, run, model, outcome, only=()):
    for agent in [agent for agent in AGENTS if agent.name in (only or NAMES)]:
        folder = run / f"kept-{agent.name}"
        (folder / "home").mkdir(parents=True)
        (folder / "work").mkdir()
        bus = Bus(binary, run, agent, Place(folder / "home", model.port), folder, more={"history": {"folder": str(folder / "history")}})
        what = "what is kept is what the owner saw"
        try:
            compare(bus, agent, folder)
            outcome.add(f"kept {agent.name}", what, True)
        except (Failed, KeyError, OSError, subprocess.TimeoutExpired) as fault:
            outcome.add(f"kept {agent.name}", what, False, f"{fault}, see {folder}")
        finally:
            code = bus.stop()
        outcome.add(f"kept {agent.name}", "the bus stops with exit code 0", code == 0, str(code))


def compare(bus, agent, folder):
    within(20, lambda: (bus.status()["history"] or {}).get("state") == "up", "somebody who writes")
    owner = Owner(bus.address)
    owner.ask("initialize", {"protocolVersion": 1, "clientCapabilities": {}})
    session = owner.ask("session/new", {"cwd": str(folder / "work"), "mcpServers": []})["sessionId"]
    prompts = [agent.plain, agent.long, agent.tool, agent.permission or agent.plain]
    for number, prompt in enumerate(prompts):
        text = prompt.format(tag=tag_of(agent, f"kept{number}"), cwd=folder / "work")
        owner.prompt(session, text)
        if number == 1:
            # What is said from now on is heard by another writer. The end of a turn is in no log, so it must be on disk.
            path = next((folder / "history").glob("*.ndjson"))
            within(20, lambda: joined(kept(path))[-1:] == [["ends", "end_turn"]], "the end of the turn on disk")
            before = bus.status()["history"]["pid"]
            os.kill(before, signal.SIGKILL)
            within(20, lambda: bus.status()["history"]["pid"] not in (None, before), "another writer")
            within(20, lambda: bus.status()["history"]["state"] == "up", "another writer that writes")
    seen = joined(owner.saw)
    files = list((folder / "history").glob("*.ndjson"))
    expect(len(files) == 1, f"{len(files)} files")
    within(20, lambda: len(joined(kept(files[0]))) >= len(seen), "all to be on disk")
    on_disk = joined(kept(files[0]))
    for number, (one, other) in enumerate(zip(seen, on_disk)):
        expect(one == other, f"number {number}: the owner saw {short(one)}, on disk is {short(other)}")
    expect(len(seen) == len(on_disk), f"the owner saw {len(seen)}, on disk are {len(on_disk)}: {short(on_disk[len(seen):])}")


class Owner:
    """A client that grants what it is asked, and writes down what it sees as the transcript should have it."""

    def __init__(self, address):
        self.raw, self.saw, self.next = Raw(address), [], 1
        self.raw.socket.settimeout(240)

    def prompt(self, session, text):
        params = {"sessionId": session, "prompt": [{"type": "text", "text": text}]}
        self.saw.append(("prompt", text))
        result = self.ask("session/prompt", params)
        self.saw.append(("ends", result["stopReason"]))

    def ask(self, method, params):
        number, self.next = self.next, self.next + 1
        self.raw.send({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        while True:
            message = self.raw.read()
            if "method" not in message and message.get("id") == number:
                expect("result" in message, f"{method} was answered {message}")
                return message["result"]
            self.hear(message)

    def hear(self, message):
        method, params = message.get("method"), message.get("params")
        if method == "session/update":
            self.saw.append(("update", params["update"]))
        elif method == "session/request_permission":
            option = next((one for one in params["options"] if one["kind"].startswith("allow")), params["options"][0])
            outcome = {"outcome": {"outcome": "selected", "optionId": option["optionId"]}}
            self.saw += [("asks", params.get("toolCall", {}).get("toolCallId")), ("decides", option["optionId"])]
            self.raw.send({"jsonrpc": "2.0", "id": message["id"], "result": outcome})
        elif "id" in message and method:
            self.raw.send({"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32601, "message": "not here"}})


def kept(path: pathlib.Path):
    """What a transcript has, in the same words."""
    said = []
    for line in path.read_text().splitlines()[1:]:
        entry = json.loads(line)
        message = entry.get("message") or {}
        method, params, result = message.get("method"), message.get("params") or {}, message.get("result") or {}
        if "gap" in entry:
            said.append(("gap", entry["gap"]))
        elif method == "session/prompt":
            said.append(("prompt", "".join(block.get("text", "") for block in params["prompt"])))
        elif method == "session/update":
            said.append(("update", params["update"] if "cut" not in entry else {"cut": True}))
        elif method == "session/request_permission":
            said.append(("asks", params.get("toolCall", {}).get("toolCallId")))
        elif "outcome" in result:
            said.append(("decides", result["outcome"].get("optionId")))
        elif "stopReason" in result:
            said.append(("ends", result["stopReason"]))
    return said


def joined(said):
    """The chunks of one message are one. What only tells what can be said is left out: it may come before the first word."""
    all = []
    for kind, what in said:
        update = what.get("sessionUpdate") if kind == "update" else None
        if update in ("available_commands_update", "current_mode_update", "config_option_update", "session_info_update", "usage_update"):
            continue
        content = what.get("content") if update in CHUNKS else None
        if not isinstance(content, dict) or content.get("type") != "text":
            all.append([kind, what])
            continue
        piece = [update, what.get("messageId"), content["text"]]
        if all and all[-1][:2] == piece[:2]:
            all[-1][2] += piece[2]
        else:
            all.append(piece)
    return all


def short(what):
    text = json.dumps(what)
    return text if len(text) < 400 else f"{text[:400]}..."
