"""What was seen: collected while the suite runs, printed as a table, written to the report of the run and to docs/INTEROP.md."""

import os
import pathlib
import threading
import time

import install
from scenario import STEPS

WIDTH = 20
SIGNS = {"ok": "ok", "told": "told", "-": "–", "fail": "**fails**"}


# The check of whether a process was left behind, which a part that has failed may cause.
AFTERWARDS = "afterwards"


def failed(cells):
    """Whether a client of an agent has seen a step fail, or has not come to it."""
    return any(cells.get(step, ("fail",))[0] == "fail" for step in STEPS)


class Outcome:
    def __init__(self, run):
        self.run = run
        self.cells, self.agents, self.seconds, self.checks, self.passed_on = {}, {}, {}, [], {}
        self.designs, self.skipped = {}, []
        # The part of the suite that this thread plays, and the parts in which something has failed.
        self.here, self.failed_in = threading.local(), set()

    def during(self, part, play, *arguments):
        """Plays a part of the suite, which can be played by itself by this name."""
        self.here.part = part
        play(*arguments)
        self.here.part = None

    def add(self, about, what, is_so, detail=""):
        """A check that belongs to no cell of the table."""
        self.checks.append((about, what, is_so, detail))
        if not is_so:
            self.failed_in.add(getattr(self.here, "part", None))

    def tells_gate(self):
        """The gate plays once more what has failed, if it can be played by itself and is more than what was left behind."""
        parts = self.failed_in | {f"play {agent}" for agent, rows in self.cells.items() if any(map(failed, rows.values()))}
        notes = os.environ.get("BUS_GATE_NOTES")
        if notes and parts <= {AFTERWARDS} | {part for part in parts if part}:
            (pathlib.Path(notes) / "failed").write_text("".join(f"{part}\n" for part in sorted(parts - {AFTERWARDS})))

    def designed(self, agent, designs):
        """Differences that the bus makes on purpose, seen with this agent."""
        for design in designs:
            self.designs.setdefault(design.what, (design.why, set()))[1].add(agent)

    def skip(self, name, pin, why):
        """What could not be run."""
        print(f"skipped {name} ({pin}): {why}", flush=True)
        self.skipped.append((name, pin, why))

    def lacks(self, name, pin, why):
        """What could not be run because this machine lacks something. Where CI=true that is a failure."""
        if os.environ.get("CI") == "true":
            return self.add(name, "what it needs is there", False, why)
        self.skip(name, pin, why)
        if notes := os.environ.get("BUS_GATE_NOTES"):
            with (pathlib.Path(notes) / "skipped").open("a") as file:
                file.write(f"{name} ({pin}): {why}\n")

    def schema(self, agent, side, count, faults, excused):
        """What the schema said to the messages of one side; `excused` are faults that the origin itself had made."""
        self.passed_on.setdefault(agent, set()).update(excused)
        self.add(agent, f"{count} messages {side} are valid ACP v1", not faults and count > 0, str(faults[:3]))

    def compared(self):
        """The differences between an agent with and without the bus that are wanted."""
        yield from ["", "## With and without the bus", ""]
        yield "A client plays one scenario with each agent itself, through `stdio-bus connect` and over a socket: initialize, new, prompts, a tool that is"
        yield "allowed and one that is refused, cancel, modes and options, list, load, resume, fork and close, a return without a goodbye, kill -9 of the agent, unknown"
        yield "methods and sessions, odd ids and lines. What it hears is the same, message by message (but for ids that somebody made up, and times), except:"
        yield from ["", "| through the bus | why | seen with |", "|---|---|---|"]
        for what, (why, agents) in sorted(self.designs.items()):
            yield f"| {what} | {why} | {', '.join(sorted(agents))} |"

    def counts(self):
        states = [cells.get(step, ("fail",))[0] for rows in self.cells.values() for cells in rows.values() for step in STEPS]
        passed = sum(state in ("ok", "told") for state in states) + sum(is_so for _, _, is_so, _ in self.checks)
        failed = sum(state == "fail" for state in states) + sum(not is_so for _, _, is_so, _ in self.checks)
        return passed, failed

    def print(self, seconds):
        for agent, rows in sorted(self.cells.items()):
            print(f"\n{agent} ({self.agents[agent].pin}), {self.seconds[agent]:.0f} s")
            print(" " * WIDTH + " ".join(f"{step:>12}" for step in STEPS))
            for client, cells in rows.items():
                print(f"{client:<{WIDTH}}" + " ".join(f"{cells.get(step, ('fail',))[0]:>12}" for step in STEPS))
        print()
        for agent, kinds in sorted(self.passed_on.items()):
            for kind in sorted(kinds):
                print(f"note: {agent}: passed on as it came, though not in the schema: {kind}")
        for agent, rows in sorted(self.cells.items()):
            for client, cells in rows.items():
                for step, (state, detail) in cells.items():
                    if state == "fail":
                        print(f"FAILED {agent} / {client} / {step}: {detail}\n       see {self.run / agent}")
                if missing := [step for step in STEPS if step not in cells]:
                    print(f"FAILED {agent} / {client}: not reached: {', '.join(missing)}")
        for about, what, is_so, detail in self.checks:
            if not is_so:
                print(f"FAILED {about}: {what}: {detail}\n       see {self.run / about}")
        for name, pin, why in self.skipped:
            print(f"skipped {name} ({pin}): {why}")
        passed, failed = self.counts()
        print(f"\n{seconds:.0f} s, every message under {self.run}")
        print(f"{passed} passed, {failed} failed")

    def write(self, path, bus_version, command):
        """The report of this run with every cell and check, from what it saw and nothing else."""
        path.write_text("\n".join([*self.head(bus_version, command), *self.details(), *self.end(), *self.all_checks()]) + "\n")

    def write_matrix(self, path, bus_version, command):
        """docs/INTEROP.md: the worst of each agent's cells, and what is wanted or missing."""
        path.write_text("\n".join([*self.head(bus_version, command), *self.matrix(), *self.end(), *self.count_of_checks()]) + "\n")

    def head(self, bus_version, command):
        passed, failed = self.counts()
        pins = install.PINS
        yield "# Seen to work"
        yield ""
        yield f"Written by `{command}`: {bus_version}, {time.strftime('%Y-%m-%d')}, {passed} passed, {failed} failed."
        yield "Every cell was seen in that run, with unmodified programs from npm, PyPI and cargo and a fake model server on loopback."
        yield ""
        yield "Clients, all at once on one worker process of each agent (of `cli-` agents two, since each prompt is a process):"
        yield ""
        yield f"- python: PyPI agent-client-protocol {pins['suite']['agent-client-protocol']}; typescript: npm {pins['npm']['typescript-sdk']};"
        yield "  `tcp` over a socket, `connect` through `stdio-bus connect`"
        yield f"- acpx: npm {pins['npm']['acpx']}; yopo: cargo {pins['cargo']['yopo']}; both through `stdio-bus connect`, two at a time"
        yield ""
        yield "Steps: **two sessions**: long turns of all clients at once in one process, each hears only its own; **cancel**: in mid-turn;"
        yield "**reload**: SIGHUP with a changed configuration in everybody's turn; **upgrade**: SIGUSR2 in everybody's turn, the bus becomes its"
        yield "own program anew and no client or agent notices; **crash**: kill -9 in everybody's turn, which is answered"
        yield "`worker_lost`, then the next prompt of the same session goes on and the agent remembers (`told`: it cannot resume, and its client is"
        yield "told that the session is lost); **leave**: everybody ends cleanly. `–`: the agent or client has no way to show it."

    def matrix(self):
        yield ""
        yield "A cell is the worst that any client of that agent saw. The cells of each client are in the report of the run, `INTEROP.md` in its folder"
        yield "below `target/interop/runs`."
        yield from ["", "## The matrix", ""]
        yield f"| agent | version | clients | {' | '.join(STEPS)} |"
        yield "|---" * (len(STEPS) + 3) + "|"
        for agent, rows in sorted(self.cells.items()):
            cells = " | ".join(SIGNS[worst(client.get(step, ("fail",))[0] for client in rows.values())] for step in STEPS)
            yield f"| {agent} | `{self.agents[agent].pin}` | {len(rows)} | {cells} |"
        yield from ["", "Why a cell is empty, or a client was left out:", ""]
        for agent in sorted(self.cells):
            notes = self.notes(agent)
            if notes:
                yield f"- {agent}: {'; '.join(f'{step}: {why}' for step, why in notes.items())}."

    def notes(self, agent):
        return self.agents[agent].cannot | self.agents[agent].not_with

    def details(self):
        for agent, rows in sorted(self.cells.items()):
            yield from ["", f"## {agent}", "", f"`{self.agents[agent].pin}`", ""]
            yield f"| client | {' | '.join(STEPS)} |"
            yield "|---" * (len(STEPS) + 1) + "|"
            for client, cells in rows.items():
                yield f"| {client} | " + " | ".join(SIGNS[cells.get(step, ("fail",))[0]] for step in STEPS) + " |"
            for step, why in self.notes(agent).items():
                yield from ["", f"{step}: {why}."]
            kinds = sorted(self.passed_on.get(agent, ()))
            if kinds:
                yield from ["", "Its own messages that the schema does not have, passed on as they came: " + "; ".join(kinds) + "."]

    def end(self):
        yield from self.compared()
        if self.skipped:
            yield from ["", "## Not run", ""]
            yield from (f"- {name} (`{pin}`): {why}" for name, pin, why in self.skipped)

    def all_checks(self):
        yield from ["", "## Also seen", ""]
        for about, what, is_so, _ in sorted(self.checks):
            yield f"- {about}: {what}{'' if is_so else ' **fails**'}"

    def count_of_checks(self):
        yield from ["", "## Also seen", ""]
        yield f"{len(self.checks)} further checks, each of them named in the report of the run. Those that fail:"
        yield ""
        failed = [f"- {about}: {what} **fails**" for about, what, is_so, _ in sorted(self.checks) if not is_so]
        yield from failed or ["- none"]


def worst(states):
    """What the clients of an agent saw, as one cell. A client that cannot show a step says nothing of it."""
    states = set(states)
    return next(state for state in ("fail", "told", "ok", "-") if state in states)
