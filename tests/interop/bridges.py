"""Compares the bridges of `stdio-bus agent cli` with the ACP adapters of others for the same CLIs.

Both run the same turns, each behind its own bus and in front of the same model, and must report the same. Then the process behind the bridge is
checked: it serves all turns, asks for permission, takes settings, and resumes the session after a kill -9. A session that the adapter of others has
begun is then listed and loaded by the bridge, in the home of that adapter.
"""

import json
import os
import pathlib
import re
import signal
import subprocess

from agents import AGENTS, Place
from scenario import expect
from stage import Bus, Failed, Raw, environment, within

# The prompts, and what is done at the first word of the answer.
TURNS = [("Say TAG-one", None), ("USE_TOOL TAG-two", None), ("Say TAG-three COUNT=4000", "cancel"), ("RECALL TAG-four", None)]

# The mode in which each CLI asks before it runs a command.
ASKS = {"cli-claude": "default", "cli-codex": "ask"}

# Options that have another id here, and what docs/RUNTIMES.md says is left out.
SAME = {"reasoning_effort": "effort"}
LEFT_OUT = {"/goal", "/remote-control"}


def run_all(binary, run, model, outcome, chosen):
    for name in ("claude", "codex"):
        if f"cli-{name}" not in chosen:
            continue
        folder = run / f"bridge-{name}"
        try:
            theirs, offered = reports_of(name, binary, run, model, folder / "official")
            ours, offers = reports_of(f"cli-{name}", binary, run, model, folder / "bridge", check_process)
            missing = sorted(offered - offers - LEFT_OUT)
            outcome.add(f"bridge {name}", "offers the options and commands that the adapter of others offers", not missing, str(missing))
            differ = [(one, other) for one, other in zip(ours, theirs) if one != other]
            outcome.add(f"bridge {name}", "tells the same turns as the adapter of others", not differ, str(differ[:1]))
            check_history(f"cli-{name}", binary, run, model, folder / "official")
            outcome.add(f"bridge {name}", "lists and loads a session that the adapter of others has begun", True, "")
            outcome.add(f"bridge {name}", "one process for all turns, which asks, is told settings and started again where it was", True, "")
        except (Failed, KeyError, OSError) as fault:
            outcome.add(f"bridge {name}", "is played to its end", False, f"{fault!r}, see {folder}")


def reports_of(name, binary, run, model, folder, check=lambda conversation: None):
    """Returns this agent's report of each turn, and the options and commands that it offers."""
    (folder / "home").mkdir(parents=True)
    (folder / "work").mkdir()
    agent = next(agent for agent in AGENTS if agent.name == name)
    bus = Bus(binary, run, agent, Place(folder / "home", model.port), folder)
    try:
        with Raw(bus.address) as raw:
            raw.socket.settimeout(60)
            conversation = Conversation(raw, bus, folder / "work")
            reports = [conversation.turn(text, action) for text, action in TURNS]
            offers = set(conversation.offers)
            check(conversation)
            return reports, offers
    finally:
        bus.stop()


class Conversation:
    def __init__(self, raw, bus, work):
        self.raw, self.bus, self.count, self.asked, self.offers = raw, bus, 0, 0, set()
        raw.ask("initialize", {"protocolVersion": 1, "clientCapabilities": {}})
        opened = raw.ask("session/new", {"cwd": str(work), "mcpServers": []})["result"]
        self.session = opened["sessionId"]
        self.note_offers(opened)

    def note_offers(self, told):
        self.offers |= {SAME.get(one["id"], one["id"]) for one in told.get("configOptions", [])}
        self.offers |= {f"/{one['name']}" for one in told.get("availableCommands", [])}

    def notify(self, method, **params):
        self.raw.send({"jsonrpc": "2.0", "method": method, "params": {"sessionId": self.session, **params}})

    def turn(self, text, action=None):
        """Returns the text and whether it has ids, the calls with title, kind and their first and last status, what was asked, the tokens in the context, and the
        stop reason. A turn that was cut short has no text."""
        self.count += 1
        prompt = {"sessionId": self.session, "prompt": [{"type": "text", "text": text}]}
        self.raw.send({"jsonrpc": "2.0", "id": self.count, "method": "session/prompt", "params": prompt})
        text_seen, calls, questions, has_ids, used = "", {}, [], True, None
        while True:
            message = self.raw.read()
            update = message["params"]["update"] if message.get("method") == "session/update" else {}
            self.note_offers(update)
            if update.get("sessionUpdate") == "agent_message_chunk":
                text_seen += update["content"]["text"]
                has_ids = has_ids and ("messageId" in update or update["content"]["text"].startswith("Warning: "))
                if action and update["content"]["text"].startswith("word0"):
                    self.notify("session/cancel") if action == "cancel" else action()
            elif update.get("sessionUpdate", "").startswith("tool_call"):
                call = calls.setdefault(update["toolCallId"], {"first": update.get("status")})
                call.update({key: update[key] for key in ("title", "kind", "status") if update.get(key)})
            elif update.get("sessionUpdate") == "usage_update":
                used = update["used"]
            elif message.get("method") == "session/request_permission":
                self.asked += 1
                call = message["params"]["toolCall"]
                shown = {key: call.get(key) for key in ("title", "kind", "status", "rawInput")}
                # A command stands in the content too, for clients that show nothing else; the adapters of others leave it out.
                content = [one["type"] for one in call.get("content", []) if call.get("kind") != "execute"]
                questions.append({**shown, "content": content})
                option = next(one for one in message["params"]["options"] if one["kind"] == "allow_once")
                outcome = {"outcome": {"outcome": "selected", "optionId": option["optionId"]}}
                self.raw.send({"jsonrpc": "2.0", "id": message["id"], "result": outcome})
            elif message.get("id") == self.count:
                stop = message.get("result", {}).get("stopReason") or message.get("error", {}).get("code")
                # The adapter for codex reports the CLI's warnings as text of the model.
                text_seen = re.sub(r"Warning: .*\n\n", "", text_seen)
                whole = {"text": text_seen, "has_ids": has_ids, "used": used} if not action else {"text": None}
                return {**whole, "calls": list(calls.values()), "asked": questions, "stop": stop}

    def set(self, option, value):
        params = {"sessionId": self.session, "configId": option, "type": "select", "value": value}
        expect("result" in self.raw.ask("session/set_config_option", params), f"{option} cannot be {value}")

    def cli(self):
        """The process of the CLI, which is the only child of the agent."""
        agent = self.bus.workers()[-1].pid
        lists = pathlib.Path(f"/proc/{agent}/task").glob("*/children")
        children = [child for one in lists for child in one.read_text().split()]
        expect(len(children) == 1, f"the agent has the children {children}")
        return int(children[0])


def check_process(conversation):
    first = conversation.cli()
    expect(conversation.turn("Say TAG-five")["stop"] == "end_turn" and conversation.cli() == first, "another process for the next turn")
    conversation.set("model", "another-model")
    expect(conversation.turn("Say TAG-six")["stop"] == "end_turn" and conversation.cli() == first, "another process after a change of the model")
    conversation.set("mode", ASKS[conversation.bus.config["default_pool"]])
    before = conversation.asked
    tool = conversation.turn("USE_TOOL TAG-tool")
    expect(tool["stop"] == "end_turn" and conversation.asked > before, f"no permission was asked for: {tool}")
    os.kill(first, signal.SIGKILL)
    within(10, lambda: not is_running(first), "the end of the CLI")
    answer = conversation.turn("RECALL TAG-seven")
    expect(answer["stop"] == "end_turn" and "TAG-one" in answer["text"], f"after a kill between turns: {answer}")
    second = conversation.cli()
    cut = conversation.turn("Say TAG-eight COUNT=4000", lambda: os.kill(second, signal.SIGKILL))
    expect(cut["stop"] == -32603, f"a kill in a turn is answered with {cut}")
    answer = conversation.turn("RECALL TAG-nine")
    expect(answer["stop"] == "end_turn" and "TAG-one" in answer["text"], f"after a kill in a turn: {answer}")


def check_history(name, binary, run, model, folder):
    """Speaks with the agent itself, in the home in which the adapter of others has run."""
    agent = next(agent for agent in AGENTS if agent.name == name)
    place = Place(folder / "home", model.port)
    command = [binary if word == "@bus" else word for word in agent.command(place)]
    env = {**environment(run), "HOME": str(place.home), **agent.env(place)}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=env, text=True) as process:

        def ask(count, method, params):
            process.stdin.write(json.dumps({"jsonrpc": "2.0", "id": count, "method": method, "params": params}) + "\n")
            process.stdin.flush()
            updates = []
            for line in process.stdout:
                message = json.loads(line)
                if message.get("id") == count and "method" not in message:
                    return updates, message
                updates.append(message.get("params", {}).get("update", {}))
            raise Failed(f"{method} was not answered")

        try:
            ask(1, "initialize", {"protocolVersion": 1, "clientCapabilities": {}})
            listed = ask(2, "session/list", {})[1]["result"]["sessions"]
            expect(len(listed) == 1 and "TAG-one" in listed[0]["title"], f"listed are {listed}")
            session = {"sessionId": listed[0]["sessionId"], "cwd": listed[0]["cwd"], "mcpServers": []}
            updates, answer = ask(3, "session/load", session)
            expect("result" in answer, f"the session is not loaded: {answer}")
            said = [one["content"]["text"] for one in updates if one.get("sessionUpdate") == "user_message_chunk"]
            expect(said == [text for text, _ in TURNS], f"the user is told to have said {said}")
            prompt = [{"type": "text", "text": "RECALL TAG-later"}]
            updates, answer = ask(4, "session/prompt", {"sessionId": session["sessionId"], "prompt": prompt})
            text = "".join(one["content"]["text"] for one in updates if one.get("sessionUpdate") == "agent_message_chunk")
            expect("TAG-one" in text and "result" in answer, f"after a load: {text} {answer}")
        finally:
            process.stdin.close()


def is_running(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0] not in "ZX"
    except OSError:
        return False
