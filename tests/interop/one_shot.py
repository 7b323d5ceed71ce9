"""Clients that are whole programs: each starts `stdio-bus connect`, sends one prompt and exits. Its messages are recorded.

Two of each run at once, one with a plain prompt and one that leads to a tool call and a permission, so that two sessions share the worker.
"""

import concurrent.futures
import subprocess

import install
from scenario import STEPS, expect, tag_of
from stage import TEE, Failed, Recording, environment, within

CANNOT = {
    "cancel": "sends one prompt and exits",
    "reload": "sends one prompt and exits",
    "upgrade": "sends one prompt and exits",
    "crash": "sends one prompt and exits",
}


def acpx(connect, text, folder):
    program = [str(install.npm("acpx") / ".bin" / "acpx"), "--approve-all", "--format", "json", "--timeout", "90"]
    return [*program, "--cwd", str(folder / "work"), "--agent", " ".join(connect), "exec", text]


def yopo(connect, text, folder):
    return [str(install.cargo("yopo")), "--", text, *connect]


PROGRAMS = {"acpx": acpx, "yopo": yopo}


def perform(name, play):
    """Runs both prompts of one program and returns its row of cells."""
    agent, bus = play.agent, play.bus
    texts = {"plain": agent.plain, "tool": agent.permission or agent.tool or agent.plain}
    try:
        # These programs advertise other capabilities than the earlier clients, whose sessions must end before the worker can be replaced.
        within(20, lambda: is_idle(bus.status()), "the clients before to be gone")
        with concurrent.futures.ThreadPoolExecutor() as pool:
            seen = list(pool.map(lambda kind: run_program(name, play, kind, texts[kind]), texts))
    except Failed as fault:
        return {step: ("fail", str(fault)) for step in STEPS}
    plain, tool = seen
    cells = {}
    for step in STEPS:
        why_not = CANNOT.get(step) or agent.cannot.get(step)
        try:
            cells[step] = ("-", why_not) if why_not else check(step, plain, tool, play, name) or ("ok", "")
        except Failed as fault:
            cells[step] = ("fail", str(fault))
    return cells


def is_idle(status):
    """Whether only this client is connected, and no session of an earlier one is left."""
    return status["clients"] == 1 and status["sessions"] == 0


class Messages:
    """The messages between one program and the bus."""

    def __init__(self, path, code, output):
        self.code, self.output = code, output
        recording = Recording(path)
        sent, received = list(recording.messages("in")), list(recording.messages("out"))
        asked = {message["id"]: message["method"] for message in sent if "method" in message and "id" in message}
        self.results = {asked[m["id"]]: m.get("result") or {} for m in received if "method" not in m and m.get("id") in asked}
        self.updates = [m["params"] for m in received if m.get("method") == "session/update"]
        self.permissions = [m for m in received if m.get("method") == "session/request_permission"]
        self.text = "".join(
            one["update"]["content"].get("text", "")
            for one in self.updates
            if one["update"]["sessionUpdate"] == "agent_message_chunk"
        )


def run_program(name, play, kind, text):
    folder = play.folder / f"{name}-{kind}"
    (folder / "work").mkdir(parents=True)
    (folder / "wire").mkdir()
    text = text.format(tag=tag_of(play.agent, name + kind), cwd=folder / "work")
    connect = [*TEE, str(folder / "wire" / "line"), "--", play.binary, "connect"]
    connect += ["--tcp", play.bus.address, "--pool", play.agent.name]
    env = environment(play.run)
    env["PATH"] = f"{install.node_folder()}:{env['PATH']}"
    try:
        done = subprocess.run(
            PROGRAMS[name](connect, text, folder),
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
    recordings = list((folder / "wire").iterdir())
    expect(len(recordings) == 1, f"{name} started the agent {len(recordings)} times: {done.stderr[-500:]}")
    return Messages(recordings[0], done.returncode, done.stdout + done.stderr)


def check(step, plain, tool, play, name):
    if step == "initialize":
        for messages in (plain, tool):
            expect(messages.results.get("initialize", {}).get("protocolVersion") == 1, str(messages.results.get("initialize")))
    elif step == "new":
        ids = {messages.results.get("session/new", {}).get("sessionId") for messages in (plain, tool)}
        expect(len(ids) == 2 and None not in ids, f"session ids {ids}")
    elif step == "prompt":
        expect(plain.results.get("session/prompt", {}).get("stopReason") == "end_turn", plain.output[-500:])
        expect(not play.agent.tags or tag_of(play.agent, name + "plain") in plain.text, f"the answer is {plain.text[:300]}")
    elif step == "tool":
        done = [one for one in tool.updates if one["update"].get("status") == "completed"]
        expect(done, "no tool call was completed")
    elif step == "permission":
        expect(tool.permissions, "no permission was asked for")
    elif step == "two sessions":
        for messages in (plain, tool):
            expect(messages.results.get("session/prompt", {}).get("stopReason") == "end_turn", messages.output[-500:])
            foreign = [one for one in messages.updates if one["sessionId"] != messages.results["session/new"]["sessionId"]]
            expect(not foreign, f"received updates of another session: {foreign[:1]}")
    elif step == "leave":
        expect((plain.code, tool.code) == (0, 0), f"exit codes {plain.code}, {tool.code}: {plain.output[-300:]} {tool.output[-300:]}")
