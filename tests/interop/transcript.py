"""What a client hears, as lines that two ways to the same agent can be compared by.

A `Peer` is the client: it sends what it is told to, answers what an agent asks, and keeps every message. `Names` takes out of the
messages what no two runs have in common: ids that somebody made up become names in the order in which they appear, so that what is
the same id stays the same name; folders and times become words; pieces of one text become one.
"""

import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import threading
import time

from stage import Failed

QUIET_SEC = 0.25
"""A step is over when its answer is there and nothing more was heard for so long."""
UNANSWERED_SEC = 0.6
"""What was not answered by then is taken for unanswered, where it may be."""
ANSWERED_SEC = 5
"""The same for requests that nearly every agent answers, on a machine that may be busy."""
ID_KEYS = {"toolCallId", "messageId", "terminalId", "requestId", "turnId", "runId", "parentToolUseId", "tool_call_id", "item_id"}
TIME_KEYS = re.compile(r"duration|elapsed|latency|timestamp|updatedat|createdat|_at$|^at$|seconds|_ms$|pid$", re.I)
MADE_UP = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
    r"|\b(?:call|msg|toolu|resp|fc|chatcmpl)_\d+_\d+\b|\b[0-9a-f]{16,64}\b|\bses_\w{10,}\b",
    re.I,
)
TIMES = re.compile(r"\b\d+(?:\.\d+)? ?m?s\b|\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d)?(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)?")
CUT_SHORT = re.compile(r"(?:word\d+\s*)+(?:wo?r?d?$)?|(?:\b(?:and|on)\b ?)+")
"""Words of a turn whose length depends on when it is cancelled."""
PATIENCE_SEC = 240
"""An agent on a busy machine takes minutes to start."""
CHUNKS = {"agent_message_chunk", "agent_thought_chunk", "user_message_chunk"}


class Peer:
    """A client at the end of a program's pipes or of a socket."""

    def __init__(self, command=None, env=None, cwd=None, log=None, address=None):
        if command:
            pipe = subprocess.PIPE
            # A group of its own, since some agents are a program that starts another.
            self.process = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=log, env=env, cwd=cwd, start_new_session=True
            )
            self.source, self.target = self.process.stdout, self.process.stdin
        else:
            host, port = address.rsplit(":", 1)
            self.process, self.socket = None, socket.create_connection((host, int(port)), 10)
            self.socket.settimeout(None)
            self.source, self.target = self.socket.makefile("rb"), self.socket.makefile("wb")
        self.heard, self.count, self.last, self.over = [], 0, time.monotonic(), False
        self.choice, self.gone = "allow", False
        self.changed, self.writing = threading.Condition(), threading.Lock()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        try:
            for line in self.source:
                self._hear(line)
        except (OSError, ValueError):
            pass  # The socket was closed here.
        with self.changed:
            self.over = True
            self.changed.notify_all()

    def _hear(self, line):
        try:
            message = json.loads(line, parse_float=lambda text: f"float {text}")
        except ValueError:
            return  # A stray print of an agent, which the bus skips.
        with self.changed:
            self.heard.append(message)
            self.last = time.monotonic()
            self.changed.notify_all()
        if isinstance(message, dict) and "method" in message and "id" in message:
            self.say({"jsonrpc": "2.0", "id": message["id"], **self._reply(message["method"], message.get("params") or {})})

    def _reply(self, method, params):
        """An editor's answers: files are there, and permissions are given or not as was said before."""
        if method == "session/request_permission":
            options = params["options"]
            chosen = [option["optionId"] for option in options if option.get("kind", "").startswith(self.choice)]
            return {"result": {"outcome": {"outcome": "selected", "optionId": chosen[0]} if chosen else {"outcome": "cancelled"}}}
        try:
            if method == "fs/read_text_file":
                return {"result": {"content": pathlib.Path(params["path"]).read_text()}}
            if method == "fs/write_text_file":
                pathlib.Path(params["path"]).write_text(params["content"])
                return {"result": {}}
        except OSError as fault:
            return {"error": {"code": -32002, "message": type(fault).__name__}}
        return {"error": {"code": -32601, "message": "not in this editor"}}

    def say(self, message):
        self.say_line(json.dumps(message))

    def say_line(self, text):
        with self.writing:
            try:
                self.target.write(text.encode() + b"\n")
                self.target.flush()
            except (OSError, ValueError):
                pass  # Whoever listened is gone, which the answer that does not come tells.

    def request(self, method, params):
        """Sends a request; its id."""
        self.count += 1
        self.say({"jsonrpc": "2.0", "id": self.count, "method": method, "params": params})
        return self.count

    def answer(self, number, seconds=PATIENCE_SEC):
        """Waits for the answer; None if the other side ended."""
        with self.changed:
            self.changed.wait_for(lambda: self.over or self._answer(number), seconds)
            found = self._answer(number)
            if not found and not self.over:
                raise Failed(f"no answer within {seconds} s")
            return found

    def _answer(self, number):
        return next((m for m in self.heard if isinstance(m, dict) and m.get("id") == number and "method" not in m), None)

    def ask(self, method, params, seconds=PATIENCE_SEC):
        return self.answer(self.request(method, params), seconds)

    def hears_update(self, kind, since, seconds=PATIENCE_SEC):
        """Waits until an update of this kind came after the first `since` messages."""
        with self.changed:
            self.changed.wait_for(lambda: self.over or any(kind_of(m) == kind for m in self.heard[since:]), seconds)

    def quiet(self, at_most_sec=5):
        """Waits until nothing more comes."""
        end = time.monotonic() + at_most_sec
        while not self.over and time.monotonic() < end:
            with self.changed:
                rest = self.last + QUIET_SEC - time.monotonic()
                if rest <= 0:
                    return
                self.changed.wait(rest)

    def exchange(self, line, seconds=UNANSWERED_SEC):
        """Says a line that may be answered or not."""
        since = len(self.heard)
        self.say_line(line)
        with self.changed:
            self.changed.wait_for(lambda: self.over or len(self.heard) > since, seconds)

    def hushed(self):
        """Begins a silence: what `quiet` waits for is counted from now on."""
        self.last = time.monotonic()

    def vanish(self):
        """Ends without a word, as by kill -9 or a lost network."""
        if self.process:
            self._kill()
        elif not self.gone:
            self.gone = True
            self.socket.shutdown(socket.SHUT_RDWR)
            self.socket.close()

    def leave(self, seconds=10):
        """Ends as an editor does: it closes the pipe, and ends what does not end by itself."""
        if not self.process:
            return self.vanish()
        try:
            self.target.close()
        except OSError:
            pass
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            pass
        self._kill()

    def _kill(self):
        if self.gone:
            return
        self.gone = True
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # Nobody of it is left.
        self.process.wait()


def kind_of(message):
    """The kind of a session/update, else None."""
    if not isinstance(message, dict) or message.get("method") != "session/update":
        return None
    update = (message.get("params") or {}).get("update")
    return update.get("sessionUpdate") if isinstance(update, dict) else None


class Names:
    """Turns messages into comparable lines; one for each way, since the same thing has another name on each."""

    def __init__(self, folders):
        self.folders, self.sessions, self.made_up = folders, {}, {}

    def session(self, whole):
        """A new session; through the bus its id ends with the agent's own."""
        name = f"<session {len(set(self.sessions.values())) + 1}>"
        self.sessions[whole] = name
        tag, dot, own = whole.partition(".")
        if dot and len(tag) == 13 and len(own) > 7:
            self.sessions[own] = name

    def lines(self, messages):
        """The messages as text, with pieces of one text joined."""
        joined = []
        for message in messages:
            plain = self.plain(message)
            if joined and is_continued(joined[-1], plain):
                joined[-1]["params"]["update"]["content"]["text"] += plain["params"]["update"]["content"]["text"]
            else:
                joined.append(plain)
        for message in joined:
            if kind_of(message) in CHUNKS and "text" in message["params"]["update"].get("content", {}):
                content = message["params"]["update"]["content"]
                content["text"] = CUT_SHORT.sub("<words> ", content["text"]).strip()
        return [json.dumps(message, sort_keys=True, ensure_ascii=False) for message in joined]

    def plain(self, message):
        if kind_of(message) == "usage_update":
            # A process counts from its start on, and an agent without the bus is started more often.
            message = without_numbers(message)
        if not isinstance(message, dict) or "id" not in message:
            return self.value(message, "")
        # The id of an answer is the client's own and must come back as it was; that of a question is its asker's.
        return {**self.value(message, ""), "id": "<id>" if "method" in message else message["id"]}

    def value(self, value, key):
        if isinstance(value, dict) and value.get("category") == "model":
            # Which models there are, an agent learns some time after its start.
            value = {**value, "options": "<models>"}
        if key == "models" and isinstance(value, dict):
            value = {**value, "availableModels": "<models>"}
        if key == "quota":
            # The tokens of all that its process has asked so far, for titles as well, which are asked for at any time.
            # A turn that was cancelled may have none yet.
            value = {**without_numbers(value), "model_usage": "<models>"}
        if isinstance(value, dict):
            return {self.text(name): self.value(part, name) for name, part in value.items()}
        if isinstance(value, list):
            # So it does which options those models have.
            known = [part for part in value if not (isinstance(part, dict) and part.get("category") == "model_config")]
            return [self.value(part, key) for part in known]
        if key in ID_KEYS and isinstance(value, (str, int)) and not isinstance(value, bool):
            return self.name(value)
        if isinstance(value, str):
            return "<time>" if TIME_KEYS.search(key) and value[:1].isdigit() else self.text(value)
        if isinstance(value, int) and not isinstance(value, bool) and (TIME_KEYS.search(key) or value > 10**9):
            return "<time>"
        return value

    def text(self, text):
        for whole, name in self.sessions.items():
            if text == whole or (len(whole) > 7 and whole in text):
                text = text.replace(whole, name)
        for folder, name in self.folders:
            text = text.replace(folder, name)
        text = TIMES.sub("<time>", text)
        return MADE_UP.sub(lambda found: self.name(found[0]), text)

    def forget(self):
        """Begins to count made up ids anew, so that one more of them in a step does not rename those of all later ones."""
        self.made_up = {}

    def name(self, value):
        return self.made_up.setdefault(value, f"<made up {len(self.made_up) + 1}>")


def without_numbers(value):
    if isinstance(value, dict):
        return {key: without_numbers(part) for key, part in value.items()}
    if isinstance(value, list):
        return [without_numbers(part) for part in value]
    is_number = isinstance(value, (int, float)) or (isinstance(value, str) and value.startswith("float "))
    return "<number>" if is_number else value


def is_continued(before, message):
    """Whether a message is the next piece of the text that the one before it began."""

    def shape(one):
        if kind_of(one) not in CHUNKS or one["params"]["update"].get("content", {}).get("type") != "text":
            return None
        update = one["params"]["update"]
        rest = {**update, "content": {**update["content"], "text": ""}}
        return {**one, "params": {**one["params"], "update": rest}}

    return shape(message) is not None and shape(before) == shape(message)
