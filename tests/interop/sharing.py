"""Several clients on one session of a real agent: the TypeScript SDK owns it, the Python SDK and acpx join it by what every ACP client can.

The Python client joins in the middle of a turn and must have heard the same text in the end; it grants what the owner is asked and does not
answer; its own prompt is told to the owner; acpx resumes the session by its id and prompts in it; the owner is killed, and the Python client
goes on as the owner, which the agent's process does not notice.
"""

import subprocess
import sys

import install
from agents import AGENTS, Place
from scenario import expect, tag_of
from stage import HERE, Bus, Client, Failed, Raw, environment, within

# Of the first tier, three that other people have written.
NAMES = ["qwen", "zed-codex", "nanocoder"]


def run_all(binary, run, model, outcome):
    for agent in [agent for agent in AGENTS if agent.name in NAMES]:
        folder = run / f"sharing-{agent.name}"
        (folder / "home").mkdir(parents=True)
        play = Play(binary, run, agent, Place(folder / "home", model.port), folder)
        try:
            for what, does in play.steps():
                does()
                outcome.add(f"sharing {agent.name}", what, True)
        except (Failed, KeyError, OSError, subprocess.TimeoutExpired) as fault:
            outcome.add(f"sharing {agent.name}", what, False, f"{fault}, see {folder}")
        finally:
            code = play.stop()
        outcome.add(f"sharing {agent.name}", "the bus stops with exit code 0", code == 0, str(code))


class Play:
    def __init__(self, binary, run, agent, place, folder):
        self.binary, self.run, self.agent, self.folder = binary, run, agent, folder
        self.bus = Bus(binary, run, agent, place, folder, {"session_keep_sec": 60})
        self.work = folder / "work"
        self.work.mkdir()
        self.ann = self.ben = self.session = None

    def steps(self):
        yield "a guest that joins in the middle of a turn hears the same as the owner", self.joins
        yield "a guest grants what the owner is asked", self.grants
        yield "the owner is told a guest's prompt", self.prompts
        yield "acpx joins by the id and prompts", self.acpx
        yield "a guest goes on when the owner is killed", self.takes_over

    def client(self, kind):
        folder = self.folder / kind
        folder.mkdir()
        if kind == "python":
            program = [sys.executable, str(HERE / "client_python.py")]
        else:
            entry = install.npm("typescript-sdk") / "@agentclientprotocol/sdk/dist/v1/stable/acp.js"
            program = ["node", str(HERE / "client_typescript.mjs"), str(entry)]
        client = Client(kind, [*program, "--tcp", self.bus.address], self.run, folder)
        client.does("initialize", seconds=240)
        return client

    def text(self, name):
        return self.agent.plain.format(tag=tag_of(self.agent, name), cwd=self.work)

    def said(self, client, since=0, kind="agent_message_chunk"):
        return "".join(event["text"] or "" for event in client.events[since:] if event.get("kind") == kind)

    def joins(self):
        self.ann = self.client("typescript")
        self.session = self.ann.does("new", cwd=str(self.work), seconds=120)["session"]
        turn = self.ann.order("prompt", session=self.session, text=self.agent.long.format(tag=tag_of(self.agent, "long"), cwd=self.work))
        self.ann.sees(lambda event: event.get("kind") == "agent_message_chunk", 0)
        self.ben = self.client("python")
        self.ben.does("load", session=self.session, cwd=str(self.work))
        answer = self.ann.answer(turn, 120)
        expect(answer.get("ok", {}).get("stop") == "end_turn", f"the turn was answered {answer}")
        within(10, lambda: self.said(self.ben) == self.said(self.ann), "both to have heard the same")
        expect(self.said(self.ben, kind="user_message_chunk"), "the guest was not told the prompt")

    def grants(self):
        self.ann.does("hold")
        since = len(self.ben.events)
        text = (self.agent.permission or self.agent.tool).format(tag=tag_of(self.agent, "tool"), cwd=self.work)
        answer = self.ann.answer(self.ann.order("prompt", session=self.session, text=text), 120)
        expect(answer.get("ok", {}).get("stop") == "end_turn", f"the turn was answered {answer}")
        expect(any(event["event"] == "permission" for event in self.ben.events[since:]), "the guest was not asked")

    def prompts(self):
        since = len(self.ann.events)
        answer = self.ben.does("prompt", session=self.session, text=self.text("ben"), seconds=120)
        expect(answer["stop"] == "end_turn", f"the turn was answered {answer}")
        within(10, lambda: self.text("ben") in self.said(self.ann, since, "user_message_chunk"), "the owner to be told the prompt")
        within(10, lambda: tag_of(self.agent, "ben") in self.said(self.ann, since), "the owner to hear the answer")

    def acpx(self):
        connect = [self.binary, "connect", "--tcp", self.bus.address, "--pool", self.agent.name]
        program = [str(install.npm("acpx") / ".bin" / "acpx"), "--approve-all", "--timeout", "90", "--ttl", "1"]
        program += ["--cwd", str(self.work), "--agent", " ".join(connect)]
        env = {**environment(self.run), "HOME": str(self.folder)}
        env["PATH"] = f"{install.node_folder()}:{env['PATH']}"
        since = len(self.ben.events)
        for arguments in (["sessions", "new", "--resume-session", self.session], [self.text("acpx")]):
            done = subprocess.run([*program, *arguments], cwd=self.work, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=150)
            expect(done.returncode == 0, f"acpx {arguments[0]}: {done.stdout[-500:]} {done.stderr[-500:]}")
        expect(tag_of(self.agent, "acpx") in done.stdout, f"acpx heard {done.stdout[-500:]}")
        within(10, lambda: tag_of(self.agent, "acpx") in self.said(self.ben, since), "the guest to hear what acpx was answered")

    def takes_over(self):
        processes = len(self.bus.workers())
        self.ann.process.kill()
        self.ann.process.wait()

        def owner():
            with Raw(self.bus.address) as raw:
                return [one["client"] for one in raw.ask("_bus/sessions")["result"]["sessions"] if one["state"] == "live"]

        within(20, lambda: len(owner()) == 1 and owner()[0], "the guest to own the session")
        answer = self.ben.does("prompt", session=self.session, text=self.text("after"), seconds=120)
        expect(answer["stop"] == "end_turn", f"the turn was answered {answer}")
        expect(len(self.bus.workers()) == processes, "another process was started for it")

    def stop(self):
        for client in (self.ann, self.ben):
            if client:
                client.stop()
        return self.bus.stop()
