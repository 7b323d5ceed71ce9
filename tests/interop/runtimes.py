"""Checks that `stdio-bus detect` finds the agent CLIs, and writes the results of the suite to docs/RUNTIMES.md."""

import json
import subprocess

import install
from agents import AGENTS, TABLE
from report import SIGNS
from scenario import CLIENTS
from stage import environment

BEGIN, END = "<!-- seen by tests/interop/run -->\n", "<!-- end of what was seen -->\n"
COLUMNS = {"prompt": "prompt", "tool": "tool", "cancel": "cancel", "continued turn": "crash"}
"""The columns, and the step of the scenario that each shows. After a crash, only the CLI's own session can continue."""


def run_all(binary, run, outcome):
    """Looks for the CLIs of all agents that were tested, and writes the table if these were all."""
    tested = [agent for agent in AGENTS if agent.runtime and agent.name in outcome.cells]
    if not tested:
        return
    found = detect(binary, run, tested)
    for runtime in sorted({agent.runtime for agent in tested}):
        one = found[runtime]
        is_there = one["available"] and one["version"]
        outcome.add("detect", f"{runtime} {one['version']} is found, with its version and its pool", bool(is_there and one["pool"]), str(one))
    text = "".join(line + "\n" for line in table(tested, found, outcome))
    (run / "RUNTIMES.md").write_text(text)
    if len(tested) == sum(agent.runtime is not None for agent in AGENTS):
        page = install.REPO / "docs" / "RUNTIMES.md"
        before, _, rest = page.read_text().partition(BEGIN)
        _, _, after = rest.partition(END)
        page.write_text(before + BEGIN + text + END + after)


def detect(binary, run, tested):
    """Returns what `detect` prints for each runtime if PATH has only these programs."""
    folder = run / "detect"
    programs = folder / "bin"
    programs.mkdir(parents=True)
    for agent in tested:
        name = programs / TABLE[agent.runtime]["binaries"][0]
        if not name.exists():
            name.symlink_to(agent.program())
    env = {**environment(run), "HOME": str(folder), "PATH": f"{programs}:{install.node_folder()}:/usr/local/bin:/usr/bin:/bin"}
    done = subprocess.run([binary, "detect", "--json"], env=env, cwd=folder, capture_output=True, text=True, check=True, timeout=120)
    return {one["id"]: one for one in json.loads(done.stdout)}


def table(tested, found, outcome):
    yield f"| runtime | version | run as | {' | '.join(COLUMNS)} |"
    yield "|---" * (3 + len(COLUMNS)) + "|"
    for agent in sorted(tested, key=lambda agent: (agent.runtime, agent.name)):
        command = "`agent cli`" if agent.name.startswith("cli-") else f"`{' '.join([TABLE[agent.runtime]['binaries'][0], *TABLE[agent.runtime]['acp']['args']])}`"
        cells = [SIGNS[worst(outcome.cells[agent.name], step)] for step in COLUMNS.values()]
        yield f"| {agent.runtime} | {found[agent.runtime]['version']} | {command} | {' | '.join(cells)} |"


def worst(rows, step):
    """The worst result of a step among the clients that run all steps."""
    states = [rows[client].get(step, ("fail",))[0] for client in CLIENTS if client in rows]
    return next(state for state in ("fail", "-", "told", "ok") if state in states)
