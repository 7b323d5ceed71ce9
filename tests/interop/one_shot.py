"""Clients that are whole programs: they start `stdio-bus connect`, put one question and exit. What they did is read off the wire.

Two of each run at once, one with a plain question and one that leads to a tool and a permission, so that two sessions share the worker.
"""

import concurrent.futures
import subprocess

import install
from scenario import STEPS, expect, tag_of
from stage import TEE, Failed, Recording, environment, within

CANNOT = {
    "cancel": "puts one question and exits",
    "reload": "puts one question and exits",
    "crash": "puts one question and exits",
}


def acpx(door, text, folder):
    program = [str(install.npm("acpx") / ".bin" / "acpx"), "--approve-all", "--format", "json", "--timeout", "90"]
    return [*program, "--cwd", str(folder / "work"), "--agent", " ".join(door), "exec", text]


def yopo(door, text, folder):
    return [str(install.cargo("yopo")), "--", text, *door]


PROGRAMS = {"acpx": acpx, "yopo": yopo}


def perform(name, play):
    """Both questions of one program; its row of cells."""
    agent, bus = play.agent, play.bus
    texts = {"plain": agent.plain, "tool": agent.permission or agent.tool or agent.plain}
    try:
        # These advertise other capabilities than the clients before them, whose sessions must be gone for the worker to be replaced.
        within(20, lambda: is_alone(bus.status()), "the clients before to be gone")
        with concurrent.futures.ThreadPoolExecutor() as pool:
            seen = list(pool.map(lambda kind: ask(name, play, kind, texts[kind].format(tag=tag_of(agent, name + kind))), texts))
    except Failed as fault:
        return {step: ("fail", str(fault)) for step in STEPS}
    plain, tool = seen
    cells = {}
    for step in STEPS:
        why_not = CANNOT.get(step) or agent.cannot.get(step)
        try:
            cells[step] = ("-", why_not) if why_not else judge(step, plain, tool, play, name) or ("ok", "")
        except Failed as fault:
            cells[step] = ("fail", str(fault))
    return cells


def is_alone(status):
    """Whether only the one who asks is connected, and nothing is kept of those who were before."""
    return status["clients"] == 1 and status["sessions"] == 0


class Wire:
    """What passed between one program and the bus."""

    def __init__(self, path, code, output):
        self.code, self.output = code, output
        recording = Recording(path)
        said, heard = list(recording.messages("in")), list(recording.messages("out"))
        asked = {message["id"]: message["method"] for message in said if "method" in message and "id" in message}
        self.results = {asked[m["id"]]: m.get("result") or {} for m in heard if "method" not in m and m.get("id") in asked}
        self.updates = [m["params"] for m in heard if m.get("method") == "session/update"]
        self.permissions = [m for m in heard if m.get("method") == "session/request_permission"]
        self.speech = "".join(
            one["update"]["content"].get("text", "")
            for one in self.updates
            if one["update"]["sessionUpdate"] == "agent_message_chunk"
        )


def ask(name, play, kind, text):
    folder = play.folder / f"{name}-{kind}"
    (folder / "work").mkdir(parents=True)
    (folder / "wire").mkdir()
    door = [*TEE, str(folder / "wire" / "line"), "--", play.binary, "connect"]
    door += ["--tcp", play.bus.address, "--pool", play.agent.name]
    env = environment(play.run)
    env["PATH"] = f"{install.node_folder()}:{env['PATH']}"
    try:
        done = subprocess.run(
            PROGRAMS[name](door, text, folder),
            cwd=folder / "work",
            env={**env, "HOME": str(folder)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=150,
        )
    except subprocess.TimeoutExpired as late:
        raise Failed(f"{name} did not end: {late.stdout} {late.stderr}") from late
    (folder / "output.log").write_text(done.stdout + done.stderr)
    wires = list((folder / "wire").iterdir())
    expect(len(wires) == 1, f"{name} started the agent {len(wires)} times: {done.stderr[-500:]}")
    return Wire(wires[0], done.returncode, done.stdout + done.stderr)


def judge(step, plain, tool, play, name):
    if step == "initialize":
        for wire in (plain, tool):
            expect(wire.results.get("initialize", {}).get("protocolVersion") == 1, str(wire.results.get("initialize")))
    elif step == "new":
        ids = {wire.results.get("session/new", {}).get("sessionId") for wire in (plain, tool)}
        expect(len(ids) == 2 and None not in ids, f"session ids {ids}")
    elif step == "prompt":
        expect(plain.results.get("session/prompt", {}).get("stopReason") == "end_turn", plain.output[-500:])
        expect(not play.agent.tags or tag_of(play.agent, name + "plain") in plain.speech, f"the answer is {plain.speech[:300]}")
    elif step == "tool":
        done = [one for one in tool.updates if one["update"].get("status") == "completed"]
        expect(done, "no tool call was completed")
    elif step == "permission":
        expect(tool.permissions, "no permission was asked for")
    elif step == "two sessions":
        for wire in (plain, tool):
            expect(wire.results.get("session/prompt", {}).get("stopReason") == "end_turn", wire.output[-500:])
            strangers = [one for one in wire.updates if one["sessionId"] != wire.results["session/new"]["sessionId"]]
            expect(not strangers, f"was told about another session: {strangers[:1]}")
    elif step == "leave":
        expect((plain.code, tool.code) == (0, 0), f"exit codes {plain.code}, {tool.code}: {plain.output[-300:]} {tool.output[-300:]}")
