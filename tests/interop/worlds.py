"""A scripted client and a scripted agent, once with nothing in between and once with the bus: the test speaks for both and hears all.

Every line is kept as it came. To compare two worlds, the names that the bus gives are taken back: its `TAG.ID` of a session becomes the
agent's ID again, and the ids of requests become numbers in the order of the requests. An id that the bus should have renamed and has not
becomes a word that says so, and so does one that it should have named back.
"""

import json
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading

from stage import HERE, Failed, environment

PATIENCE_SEC = 60
"""A line that has not come by then never will; on a busy machine it may take long."""
OWN = "agent-session"
"""What the scripted agent's names of sessions that it opens begin with."""
STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
TAGGED = re.compile(rf"(?:[A-Za-z0-9_-]+~)?[a-z2-7]{{13}}\.({OWN}-\d+)")
ID = re.compile(r'(\{"jsonrpc": ?"2.0", ?"id": ?)("(?:[^"\\]|\\.)*"|[^,}]+)')
REQUEST_ID = re.compile(r'("requestId": ?)("(?:[^"\\]|\\.)*"|[^,}]+)')
FENCE = "_example.com/fence"


class End:
    """One end of a conversation: what was heard there, in order, and a way to say something."""

    def __init__(self, source, target, changed, close):
        self.target, self.changed, self.close = target, changed, close
        self.heard, self.messages, self.is_over = [], [], False
        threading.Thread(target=self._listen, args=(source,), daemon=True).start()

    def _listen(self, source):
        try:
            for line in source:
                message = json.loads(line)
                with self.changed:
                    self.heard.append(line.decode().rstrip("\n"))
                    self.messages.append(message)
                    self.changed.notify_all()
        except (OSError, ValueError):
            pass  # The test has closed it.
        with self.changed:
            self.is_over = True
            self.changed.notify_all()

    def say(self, message, is_wide=False):
        """Says it, with the spaces that some programs leave or without."""
        separators = (", ", ": ") if is_wide else (",", ":")
        line = json.dumps(message, ensure_ascii=is_wide, separators=separators)
        self.target.write(line.encode() + b"\n")
        self.target.flush()
        return line

    def find(self, is_it, since=0):
        """The first message of this kind that was heard after so many lines."""
        return next((message for message in self.messages[since:] if is_it(message)), None)

    def waits(self, is_it, since=0):
        with self.changed:
            self.changed.wait_for(lambda: self.is_over or self.find(is_it, since), PATIENCE_SEC)
            found = self.find(is_it, since)
        if found is None:
            raise Failed(f"not heard within {PATIENCE_SEC} s; heard {self.heard[since:][-3:]}")
        return found


def socket_end(link, changed):
    link.settimeout(None)

    def close():
        try:
            link.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # The other side was faster.
        link.close()

    end = End(link.makefile("rb"), link.makefile("wb"), changed, close)

    def vanish():
        """Breaks the connection. Whoever only stops sending may still be listening."""
        link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        link.shutdown(socket.SHUT_RD)
        os.close(link.detach())

    end.vanish = vanish
    return end


class World:
    """Puppets that call the test at a socket of its own."""

    is_through = False

    def __init__(self, binary, run, folder):
        self.binary, self.run, self.folder = binary, run, folder
        folder.mkdir(parents=True)
        self.changed = threading.Condition()
        # The path of a Unix socket is short.
        self.sockets = tempfile.mkdtemp(prefix="bus-protocol-")
        self.door = socket.socket(socket.AF_UNIX)
        self.door.bind(f"{self.sockets}/s")
        self.door.listen()
        self.door.settimeout(PATIENCE_SEC)
        self.puppet = [sys.executable, str(HERE / "puppet.py"), f"{self.sockets}/s"]
        self.clients, self.agents, self.processes = [], [], []

    def agent_comes(self):
        """The next puppet that starts."""
        link, _ = self.door.accept()
        self.agents.append(socket_end(link, self.changed))
        return self.agents[-1]

    def stop(self):
        for end in [*self.clients, *self.agents]:
            end.close()
        code = 0
        for process in self.processes:
            process.terminate()
            code = process.wait(PATIENCE_SEC) or code
        self.door.close()
        shutil.rmtree(self.sockets)
        self.keep()
        return code

    def keep(self):
        """Writes what everybody heard, for who wants to know what went wrong."""
        for kind, ends in (("client", self.clients), ("agent", self.agents)):
            for number, end in enumerate(ends):
                (self.folder / f"{kind}-{number}.heard").write_text("".join(f"{line}\n" for line in end.heard))


class Direct(World):
    def client_comes(self):
        pipe = subprocess.PIPE
        process = subprocess.Popen(self.puppet, stdin=pipe, stdout=pipe, env=environment(self.run))
        self.processes.append(process)
        self.clients.append(End(process.stdout, process.stdin, self.changed, lambda: None))
        return self.clients[-1]


class Through(World):
    is_through = True

    def __init__(self, binary, run, folder, **pool):
        super().__init__(binary, run, folder)
        config = {
            "listen": ["tcp://127.0.0.1:0"],
            "history": False,
            "pools": [{"id": "puppet", "command": self.puppet[0], "args": self.puppet[1:], "instances": 1, **pool}],
            "limits": {"drain_timeout_sec": 1, "init_timeout_sec": PATIENCE_SEC},
        }
        (folder / "bus.json").write_text(json.dumps(config, indent=2))
        home = {"HOME": str(folder), "XDG_RUNTIME_DIR": str(folder), "XDG_STATE_HOME": str(folder)}
        self.log = open(folder / "bus.log", "w")
        process = subprocess.Popen(
            [binary, "serve", "--config", str(folder / "bus.json")],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self.log,
            env={**environment(run), **home},
        )
        self.processes.append(process)
        line = process.stdout.readline()
        if not line:
            raise Failed(f"the bus did not start, see {folder}/bus.log")
        host, port = json.loads(line)["listening"].removeprefix("tcp://").rsplit(":", 1)
        self.address = (host, int(port))

    def client_comes(self):
        self.clients.append(socket_end(socket.create_connection(self.address, PATIENCE_SEC), self.changed))
        return self.clients[-1]


class Talk:
    """One client and one agent that have said hello, in one world."""

    def __init__(self, world, client, agent):
        self.world, self.client, self.agent = world, client, agent
        self.counts = {}

    def number(self, of):
        self.counts[of] = self.counts.get(of, 0) + 1
        return self.counts[of]

    def fence(self):
        """Waits until both have heard all that was said: what is said later comes later."""
        name = f"fence-{self.number('fence')}"
        since, answered = len(self.agent.heard), len(self.client.heard)
        self.client.say({"jsonrpc": "2.0", "id": name, "method": FENCE, "params": {"name": name}})
        asked = self.agent.waits(lambda it: it.get("method") == FENCE and it["params"]["name"] == name, since)
        self.agent.say({"jsonrpc": "2.0", "id": asked["id"], "result": {}})
        self.client.waits(lambda it: it.get("id") == name and "method" not in it, answered)

    def asks(self, asker, method, params, answer=None, is_wide=False, is_left_open=False):
        """One of the two asks the other, who gives this answer if it hears the question. What each of them calls the question."""
        asked = self.agent if asker is self.client else self.client
        since, answered = len(asked.heard), len(asker.heard)
        name = f"{'client' if asker is self.client else 'agent'}-request-{self.number('request')}"
        asker.say({"jsonrpc": "2.0", "id": name, "method": method, "params": params}, is_wide)
        is_question = lambda it: it.get("method") == method and "id" in it
        is_answer = lambda it: it.get("id") == name and "method" not in it
        with self.world.changed:
            come = lambda: asked.find(is_question, since) or asker.find(is_answer, answered)
            if not self.world.changed.wait_for(come, PATIENCE_SEC):
                raise Failed(f"{method} was neither heard nor answered within {PATIENCE_SEC} s")
            question = asked.find(is_question, since)
        if question and not is_left_open:
            asked.say({"jsonrpc": "2.0", "id": question["id"], **(answer or {"result": {}})}, is_wide)
            asker.waits(is_answer, answered)
        return name, question and question["id"]

    def open(self, more=()):
        """A new session: the agent's name for it and the client's."""
        own = f"{OWN}-{self.number('session')}"
        since = len(self.client.heard)
        params = {"cwd": "/a/folder", "mcpServers": [], **dict(more)}
        name, _ = self.asks(self.client, "session/new", params, {"result": {"sessionId": own}})
        answer = self.client.find(lambda it: it.get("id") == name, since)
        return own, answer["result"]["sessionId"]

    def canonical(self, end, lines):
        """Lines with the names that everybody would use without a bus."""
        return [self._canonical(end, line) for line in lines if f'"{FENCE}"' not in line and '"id":"fence-' not in line]

    def _canonical(self, end, line):
        message = json.loads(line)
        if "method" in message and "id" in message:
            line = ID.sub(r'\1"<request>"', line, count=1)
        line = REQUEST_ID.sub(lambda found: found[1] + self._request(end, found[2]), line)
        return STRING.sub(lambda found: json.dumps(self._session(end, found[1])) if OWN in found[1] else found[0], line)

    def _session(self, end, name):
        tagged = TAGGED.fullmatch(name)
        if not self.world.is_through:
            return name
        if end is self.agent:
            return f"{name} (the bus's name, told to the agent)" if tagged else name
        return tagged[1] if tagged else f"{name} (the agent's name, told to the client)"

    def _request(self, end, spelled):
        """The number of the request of this id, if this end knows such a one."""
        for message in end.messages:
            if "method" in message and "id" in message and json.dumps(message["id"]) == spelled:
                return f'"<request {message["method"]}>"'
        return spelled
