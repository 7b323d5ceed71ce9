"""ACP's second version, with agents that speak it: a prompt is answered once it is taken in, and the turn ends with the session's state.

Two clients share the worker. What nobody shows in the first version is looked at here: a turn is no call in flight, yet a crash ends it,
and a stop of the bus waits for it.
"""

import concurrent.futures
import signal

from agents import Place
from scenario import WORKER_LOST, expect
from stage import Bus, Failed, Raw

INFO = {"name": "interop", "version": "1"}


def run_all(agent, binary, run, model, outcome):
    folder = run / f"{agent.name}-second"
    home = folder / "home"
    home.mkdir(parents=True)
    bus = Bus(binary, run, agent, Place(home, model.port), folder)
    about = f"{agent.name}, ACP v2"
    try:
        clients = [Talk(bus.address, folder / name) for name in ("ann", "ben")]
        for step in (begin, turns_of_two, crash, stop):
            judge(outcome, about, step, bus, agent, clients)
    finally:
        outcome.add(about, "the bus stops with exit code 0", bus.stop() == 0, str(folder))


def judge(outcome, about, step, *stage):
    try:
        step(*stage)
        outcome.add(about, step.__doc__, True)
    except (Failed, KeyError, OSError) as fault:
        outcome.add(about, step.__doc__, False, repr(fault))


def begin(_, agent, clients):
    """both clients agree on version 2 with one process and open a session"""
    for client in clients:
        client.begin()


def turns_of_two(_, agent, clients):
    """turns of two clients at once: answered when taken in, ended by their state, each hears its own"""
    both(lambda client: client.whole_turn(agent.long), clients)


def crash(bus, agent, clients):
    """kill -9 in mid-turn ends the turn with an error, and the next prompt goes on in the same session"""
    for client in clients:
        client.say(agent.endless)
    both(lambda client: client.hears("agent_message_chunk"), clients)
    bus.kill_workers()
    for client in clients:
        end = client.hears("state_update", "idle")
        expect(end.get("stopReason") == "error" and end["error"]["code"] == WORKER_LOST, f"the turn ended with {end}")
    both(lambda client: client.whole_turn(agent.plain), clients)


def stop(bus, agent, clients):
    """SIGTERM in mid-turn waits until the turn is over"""
    client = clients[0]
    client.say(agent.long)
    client.hears("agent_message_chunk")
    bus.process.send_signal(signal.SIGTERM)
    end = client.hears("state_update", "idle")
    expect(end.get("stopReason") == "end_turn", f"the turn ended with {end}")


def both(does, clients):
    with concurrent.futures.ThreadPoolExecutor() as pool:
        list(pool.map(does, clients))


class Talk(Raw):
    """A client of the second version with one session."""

    def __init__(self, address, folder):
        super().__init__(address)
        folder.mkdir()
        self.folder, self.tag, self.session, self.text = folder, f"TAG-{folder.name}", None, ""
        self.socket.settimeout(90)

    def begin(self):
        answer = self.ask("initialize", {"protocolVersion": 2, "info": INFO, "capabilities": {}})
        expect(answer.get("result", {}).get("protocolVersion") == 2, f"initialize was answered {answer}")
        answer = self.ask("session/new", {"cwd": str(self.folder), "mcpServers": []})
        self.session = answer["result"]["sessionId"]

    def say(self, text):
        self.text = ""
        prompt = [{"type": "text", "text": text.format(tag=self.tag)}]
        self.send({"jsonrpc": "2.0", "id": "p", "method": "session/prompt", "params": {"sessionId": self.session, "prompt": prompt}})

    def whole_turn(self, text):
        self.say(text)
        # A session that was just opened again says first that it is idle.
        self.hears("state_update", "running")
        end = self.hears("state_update", "idle")
        expect(end.get("stopReason") == "end_turn", f"the turn ended with {end}")
        expect(self.tag in self.text, f"did not hear {self.tag} but {self.text[:300]}")

    def hears(self, kind, state=None):
        """Reads up to an update of this kind; gives it back."""
        while True:
            message = self.read()
            if message.get("id") == "p" and "method" not in message:
                expect("result" in message, f"the prompt was answered {message}")
                continue
            expect("id" not in message, f"was asked {message}")
            told = message["params"]
            if message["method"].endswith("auth/status_update"):
                # It is about the agent's login: a new process says it to all of its clients, without a session.
                continue
            expect(told["sessionId"] == self.session, f"was told of another session: {told}")
            update = told["update"]
            if update["sessionUpdate"].startswith("agent_message"):
                content = update.get("content") or {}
                for part in content if isinstance(content, list) else [content]:
                    self.text += part.get("text", "")
            if update["sessionUpdate"] == kind and state in (None, update.get("state")):
                return update
