"""`stdio-bus run` with the agents themselves, no bus between: what it prints, how it ends, and whether anything is left.

The envelopes of every run are checked with the schema that npm @slopus/happy-wire publishes.
"""

import json
import signal
import subprocess

import install
from agents import Place
from scenario import expect, tag_of
from stage import Failed, asked, environment, left_behind, within

PATIENCE_SEC = 120


def run_all(agent, binary, run, model, outcome):
    for step in (plain, tool, refused, cancelled, embedded):
        shown_by = {"refused": "permission", "cancelled": "cancel", "embedded": "permission"}.get(step.__name__, step.__name__)
        if shown_by in agent.cannot or (step in (tool, refused, embedded) and not agent.tool):
            continue
        about = f"{agent.name}, stdio-bus run"
        try:
            step(Stage(agent, binary, run, model, step.__name__))
            outcome.add(about, step.__doc__, True)
        except (Failed, KeyError, OSError, ValueError) as fault:
            outcome.add(about, step.__doc__, False, repr(fault))


def plain(stage):
    """a prompt is answered with envelopes that the published schema takes"""
    ended, envelopes = stage.ends("--allow", stage.agent.plain)
    expect(ended == 0, f"exit code {ended}: {stage.complaints()}")
    expect(status(envelopes) == "completed", f"the turn ended with {envelopes[-1:]}")
    said = "".join(one["ev"]["text"] for one in envelopes if one["ev"]["t"] == "text" and not one["ev"].get("thinking"))
    expect(said != "" and (stage.tag in said or not stage.agent.tags), f"the agent said {said!r}")


def tool(stage):
    """a tool is used with --allow, and each call that starts ends in its turn"""
    ended, envelopes = stage.ends("--allow", stage.hands, stage.agent.permission or stage.agent.tool)
    expect(ended == 0, f"exit code {ended}: {stage.complaints()}")
    started = [one["ev"]["call"] for one in envelopes if one["ev"]["t"] == "tool-call-start"]
    finished = [one["ev"]["call"] for one in envelopes if one["ev"]["t"] == "tool-call-end"]
    expect(started and sorted(started) == sorted(finished), f"started {started}, ended {finished}")
    if stage.agent.proof:
        expect((stage.work / "proof.txt").exists(), "the tool left no proof.txt in the folder")


def refused(stage):
    """where nobody can be asked a permission is refused, which the exit code tells"""
    ended, envelopes = stage.ends(stage.hands, stage.agent.permission or stage.agent.tool)
    expect(ended == 5, f"exit code {ended}: {stage.complaints()}")
    expect(not (stage.work / "proof.txt").exists(), "the tool was used all the same")
    expect(any(one["ev"]["t"] == "service" for one in envelopes), "nothing was said about it")


def cancelled(stage):
    """one SIGINT in mid-turn cancels it, and nothing is left"""
    process = stage.start("--allow", "--stream", stage.agent.endless)
    try:
        within(PATIENCE_SEC, stage.has_begun, "the turn to begin")
        process.send_signal(signal.SIGINT)
        ended = process.wait(PATIENCE_SEC)
    finally:
        process.kill()
    envelopes = stage.envelopes()
    expect(ended == 130 and status(envelopes) == "cancelled", f"exit code {ended}, {envelopes[-1:]}")


def embedded(stage):
    """a program that embeds it is asked for the permission, gives it, and has a second turn"""
    process = stage.start("--input", "json", stage.hands, None)
    try:
        stage.write(process, {"type": "prompt", "text": stage.prompt(stage.agent.permission or stage.agent.tool)})
        within(PATIENCE_SEC, lambda: stage.answer(process) and stage.turns() == 1, "the first turn to end")
        stage.write(process, {"type": "prompt", "content": [{"type": "text", "text": stage.prompt(stage.agent.plain)}]})
        process.stdin.close()
        within(PATIENCE_SEC, lambda: stage.turns() == 2, "the second turn to end")
        ended = process.wait(PATIENCE_SEC)
    finally:
        process.kill()
    expect(stage.answered, "nothing was asked")
    expect(ended == 0 and status(stage.envelopes()) == "completed", f"exit code {ended}: {stage.complaints()}")


def status(envelopes):
    return envelopes[-1]["ev"].get("status") if envelopes else None


class Stage:
    """One run of the runner with one agent, in folders of its own."""

    def __init__(self, agent, binary, run, model, step):
        self.agent, self.run, self.tag = agent, run, tag_of(agent, step)
        self.hands = "--hands" if agent.hands else None
        self.folder = run / f"{agent.name}-runner" / step
        self.home, self.work = self.folder / "home", self.folder / "work"
        self.output = self.folder / "envelopes"
        self.answered = set()
        for folder in (self.home, self.work):
            folder.mkdir(parents=True)
        place = Place(self.home, model.port)
        for path, text in agent.files(place).items():
            (self.home / path).parent.mkdir(parents=True, exist_ok=True)
            (self.home / path).write_text(text)
        self.mark = f"{agent.name}-{step}"
        self.env = {**environment(run), "HOME": str(self.home), **agent.env(place), "INTEROP_STEP": self.mark}
        self.binary = binary
        self.command = [binary if word == "@bus" else word for word in agent.command(place)]

    def prompt(self, text):
        return text.format(tag=self.tag, cwd=self.work)

    def start(self, *arguments):
        """The last argument is the prompt; without one, it is written to stdin later."""
        *flags, prompt = arguments
        flags = [word for word in flags if word]
        prompt = ["--once", self.prompt(prompt)] if prompt else []
        words = ["run", "--json", "--init-timeout", str(PATIENCE_SEC), *flags, *prompt, "--", *self.command]
        return subprocess.Popen(
            [self.binary, *words],
            stdin=subprocess.DEVNULL if prompt else subprocess.PIPE,
            stdout=open(self.output, "w"),
            stderr=open(self.folder / "complaints", "w"),
            cwd=self.work,
            env=self.env,
        )

    def write(self, process, command):
        process.stdin.write(json.dumps(command).encode() + b"\n")
        process.stdin.flush()

    def answer(self, process):
        """Allows what was asked since the last look. Always true."""
        for event in (json.loads(line)["ev"] for line in self.output.read_text().splitlines(keepends=True) if line.endswith("\n")):
            if event["t"] == "permission" and event["id"] not in self.answered:
                self.answered.add(event["id"])
                allows = [option["optionId"] for option in event["options"] if option["kind"].startswith("allow")]
                self.write(process, {"type": "permission", "id": event["id"], "optionId": allows[0]})
        return True

    def turns(self):
        return self.output.read_text().count('"t":"turn-end"')

    def has_begun(self):
        if self.agent.whole:
            return asked(self.run, self.tag) > 0
        return '"t":"text"' in self.output.read_text()

    def ends(self, *arguments):
        """The exit code, and what was printed."""
        process = self.start(*arguments)
        try:
            return process.wait(PATIENCE_SEC), self.envelopes()
        except subprocess.TimeoutExpired:
            raise Failed(f"no end within {PATIENCE_SEC} s") from None
        finally:
            process.kill()

    def complaints(self):
        return (self.folder / "complaints").read_text()[-500:]

    def envelopes(self):
        """All that was printed, which the schema takes, from a runner that has left nothing behind."""
        self.is_alone()
        lines = self.output.read_text().splitlines(keepends=True)
        # Those are for a program that embeds it, and not of Happy's schema.
        text = "".join(line for line in lines if json.loads(line)["ev"]["t"] not in ("session", "permission", "permission-end"))
        program = ["node", str(install.HERE / "envelopes.mjs"), str(install.npm("happy-wire"))]
        checked = subprocess.run(program, input=text, capture_output=True, text=True, check=False)
        count = len(text.splitlines())
        expect(checked.stdout.split("\n")[:-1] == [str(count)], f"the schema says: {checked.stdout[-1000:]}{checked.stderr[-500:]}")
        return [json.loads(line) for line in text.splitlines()]

    def is_alone(self):
        mark = f"INTEROP_STEP={self.mark}".encode()
        left = []
        for pid, line in left_behind(self.run):
            try:
                with open(f"/proc/{pid}/environ", "rb") as environ:
                    if mark in environ.read().split(b"\0"):
                        left.append(line)
            except OSError:
                continue  # It ended meanwhile.
        expect(not left, f"left behind: {left}")
