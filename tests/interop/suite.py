"""One run from beginning to end: installs, plays, checks, report, and whether anything was left behind."""

import argparse
import concurrent.futures
import contextlib
import os
import pathlib
import signal
import subprocess
import time

import bridges
import browser
import compare
import editors
import habits
import install
import kept
import one_shot
import protocol
import registry
import remote
import report
import runner
import runtimes
import schema_check
import second_version
import servers
import sharing
import telemetry
from agents import AGENTS, Place
from scenario import Play
from stage import Failed, Model, left_behind

# Agents under test at the same time; more would make a small machine slow rather than the run fast.
AT_ONCE = 2


def main(arguments):
    options = parse(arguments)
    chosen = [agent for agent in AGENTS if agent.name in options.only] if options.only else AGENTS
    chosen = [agent for agent in chosen if options.only or options.all or agent.tier == 1]
    if options.servers or options.remote or options.sharing or options.kept:
        chosen = []
    began = time.monotonic()
    if options.install:
        install.npm("typescript-sdk")
        outcome = report.Outcome(install.CACHE)
        fetch_all(chosen, ["acpx"], outcome)
        return 0 if outcome.counts()[1] == 0 else 1
    binary = bus_binary()
    run = install.CACHE / "runs" / time.strftime("%Y%m%d-%H%M%S")
    run.mkdir(parents=True)
    schema = schema_check.Schema(install.npm("typescript-sdk") / "@agentclientprotocol/sdk/schema/v1/schema.json")
    programs = ["acpx", "yopo"] if options.all else ["acpx"]
    outcome = report.Outcome(run)
    if options.protocol:
        protocol.run_all(binary, run, outcome, is_writing=True)
        nothing_is_left(run, outcome)
        outcome.print(time.monotonic() - began)
        return 0 if outcome.counts()[1] == 0 else 1
    if options.otel:
        telemetry.run_all(binary, run, outcome)
        nothing_is_left(run, outcome)
        outcome.print(time.monotonic() - began)
        return 0 if outcome.counts()[1] == 0 else 1
    chosen = fetch_all(chosen, [] if options.servers or options.runner or options.compare or options.remote else programs, outcome)
    is_one_kind = options.runner or options.compare or options.remote or options.sharing or options.kept
    is_part = options.only or options.servers or is_one_kind or options.again
    model = Model(run)
    try:
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:

            def do(name, part, *arguments):
                return pool.submit(outcome.during, name, part, *arguments) if options.again in (None, name) else None

            played = [] if is_one_kind else chosen
            wait_for(do(f"play {agent.name}", play_one, agent, programs, binary, run, model, schema, outcome) for agent in played)
            spoken = [] if options.compare or options.remote else chosen
            talks = [do(f"run {agent.name}", runner.run_all, agent, binary, run, model, outcome) for agent in spoken]
            compared = [] if options.runner or options.remote else chosen
            talks += [do(f"compare {agent.name}", compare.run_all, agent, binary, run, model, outcome) for agent in compared]
            wait_for(talks)
        parts = {"bridges": lambda: bridges.run_all(binary, run, model, outcome, [] if is_one_kind else [agent.name for agent in chosen])}
        if not options.again:
            # Its table is of all agents that were played in this run.
            parts["detect"] = lambda: runtimes.run_all(binary, run, outcome)
        if options.remote or options.again or not is_part:
            parts["remote"] = lambda: remote.run_all(binary, run, model, outcome, options.all)
        if options.kept or options.again or not is_part:
            parts["kept"] = lambda: kept.run_all(binary, run, model, outcome, options.only)
        if options.sharing or options.again or not is_part:
            parts["sharing"] = lambda: sharing.run_all(binary, run, model, outcome)
        if options.again or not is_part:
            parts["protocol"] = lambda: protocol.run_all(binary, run, outcome, is_writing=False)
            parts["habits"] = lambda: habits.run_all(binary, run, outcome)
            parts["registry"] = lambda: registry.run_all(binary, run, outcome)
            parts["editors"] = lambda: editors.run_all(binary, run, model, outcome)
            parts["otel"] = lambda: telemetry.run_all(binary, run, outcome)
        if options.all and not is_part:
            parts["browser"] = lambda: browser.run(binary, run, outcome)
        if not options.only and not is_one_kind:
            parts["servers"] = lambda: servers.run_all(binary, run, schema, outcome, options.all)
        for name, part in parts.items():
            if options.again in (None, name):
                outcome.during(name, part)
    finally:
        model.stop()
    end_daemons(run, chosen)
    nothing_is_left(run, outcome)
    outcome.tells_gate()
    version = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    command = " ".join(["tests/interop/run", *arguments])
    outcome.write(run / "INTEROP.md", version, command)
    if options.all and not is_part:
        outcome.write_matrix(install.REPO / "docs" / "INTEROP.md", version, command)
    outcome.print(time.monotonic() - began)
    passed, failed = outcome.counts()
    # A name that is no part's plays nothing, and that is no success.
    return 0 if failed == 0 and (passed > 1 or not options.again) else 1


def wait_for(parts):
    for part in [part for part in parts if part]:
        part.result()


def nothing_is_left(run, outcome):
    """Whether everything that the run has started has ended; what has not is ended here."""
    end = time.monotonic() + 5
    while (left := left_behind(run)) and time.monotonic() < end:
        time.sleep(0.1)
    outcome.during(report.AFTERWARDS, outcome.add, "afterwards", "no process is left behind", not left, str(left))
    for pid, _ in left:
        os.kill(pid, signal.SIGKILL)


def fetch_all(chosen, programs, outcome):
    """Installs everything before the first play, so that no step waits for a registry; the agents that can run here."""
    install.node_folder()
    install.npm("happy-wire")
    place = Place(install.CACHE, 0)
    there = []
    for agent in chosen:
        try:
            agent.command(place)
            agent.env(place)
            there.append(agent)
        except install.Unavailable as why:
            outcome.lacks(agent.name, agent.pin, str(why))
    for name in programs:
        one_shot.PROGRAMS[name]([], "", install.CACHE)
    if "yopo" in programs:
        install.npm("browser")
    for name in install.PINS["sdist"]:
        install.sdist(name)
    install.npm("aimock")
    install.pip("trustme")
    install.pip("otel")
    install.npm("mcp-everything")
    install.pip("mcp-time")
    return there


def end_daemons(run, agents):
    """Ends what agents of this run that were killed could not end, and nobody else can: a daemon is in no group of theirs."""
    begins = tuple(agent.leaves for agent in agents if agent.leaves)
    for pid, line in left_behind(run):
        program, _, rest = line.partition(" ")
        if f"{pathlib.Path(program).name} {rest}".startswith(begins):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)


def parse(arguments):
    parser = argparse.ArgumentParser(prog="tests/interop/run", description="The interop suite.")
    parser.add_argument("--all", action="store_true", help="the second tier too")
    parser.add_argument("--servers", action="store_true", help="just the OpenAI agent in front of other people's model servers")
    parser.add_argument("--runner", action="store_true", help="only `stdio-bus run`, with no bus")
    parser.add_argument("--remote", action="store_true", help="only the SDK clients through the web door")
    parser.add_argument("--sharing", action="store_true", help="only several clients on one session of real agents")
    parser.add_argument("--kept", action="store_true", help="only what is kept of a session, beside what its owner saw; with --only of these agents")
    parser.add_argument("--compare", action="store_true", help="only the comparison of each agent with and without the bus")
    parser.add_argument("--protocol", action="store_true", help="only every method of the protocol with and without the bus; writes docs/PROTOCOL.md")
    parser.add_argument("--otel", action="store_true", help="only `stdio-bus otel` and a collector")
    parser.add_argument("--install", action="store_true", help="only install what the tier needs")
    parser.add_argument("--again", metavar="PART", help="only this part, as the gate names it when it has failed")
    parser.add_argument("--only", action="append", default=[], choices=[agent.name for agent in AGENTS], metavar="AGENT")
    return parser.parse_args(arguments)


def bus_binary():
    if os.environ.get("BUS"):
        return str(pathlib.Path(os.environ["BUS"]).resolve(strict=True))
    subprocess.run(["cargo", "build", "--release", "--locked", "--quiet"], cwd=install.REPO, check=True)
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR") or install.REPO / "target")
    return str((install.REPO / target / "release" / "stdio-bus").resolve(strict=True))


def play_one(agent, programs, binary, run, model, schema, outcome):
    folder = run / agent.name
    home = folder / "home"
    home.mkdir(parents=True)
    began = time.monotonic()
    programs = [name for name in programs if name not in agent.not_with]
    try:
        play = Play(binary, run, agent, Place(home, model.port), folder)
        play.perform(lambda play: play.cells.update({name: one_shot.perform(name, play) for name in programs}))
    except (Failed, OSError, ValueError, KeyError) as fault:
        outcome.add(agent.name, "the play ends", False, repr(fault))
        return
    outcome.cells[agent.name] = play.cells
    outcome.agents[agent.name] = agent
    outcome.seconds[agent.name] = time.monotonic() - began
    outcome.add(agent.name, "the bus stops with exit code 0", play.exit_code == 0, str(play.exit_code))
    check_schema(play, schema, outcome)
    if agent.second:
        second_version.run_all(agent, binary, run, model, outcome)


def check_schema(play, schema, outcome):
    """What the bus sent to the workers and to each client, less what the other side had got wrong itself."""
    workers, wires = play.bus.workers(), play.wires()
    of_agent = {fault for one in workers for fault, _ in schema_check.check(schema, one, "out")[0]}
    of_clients = {fault for name in wires for one in wires[name] for fault, _ in schema_check.check(schema, one, "in")[0]}
    sides = [("to the agent", workers, "in", of_clients)]
    sides += [(f"to {name}", wires[name], "out", of_agent) for name in wires]
    for side, recordings, direction, excused in sides:
        faults, count = [], 0
        for one in recordings:
            some, more = schema_check.check(schema, one, direction)
            faults, count = faults + some, count + more
        own = [(fault, line) for fault, line in faults if fault not in excused]
        outcome.schema(play.agent.name, side, count, own, [fault for fault, _ in faults if fault in excused])
