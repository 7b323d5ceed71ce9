"""What users of the published stdio_bus are used to: its configuration file, its workers, its client, and `sessionId` and `pool` at
the top of a message.
"""

import json
import signal
import subprocess
import sys

import install
from scenario import expect
from stage import HERE, Failed, Raw, environment


def run_all(binary, run, outcome):
    folder = run / "stdio_bus"
    folder.mkdir()
    workers = install.sdist("stdiobus") / "tests"
    config = folder / "config.json"
    config.write_text(json.dumps(published_config(workers), indent=2))
    bus = None
    try:
        bus, address = start(binary, run, config, folder)
        for habit in (a_name_is_answered, equal_names_of_two_clients, a_pool_at_the_top, a_stream_comes_back):
            judge(outcome, habit.__doc__, lambda habit=habit: habit(address))
    except Failed as fault:
        outcome.add("stdio_bus", "a configuration of 2.0.3 runs unchanged", False, str(fault))
    finally:
        if bus:
            bus.send_signal(signal.SIGTERM)
            outcome.add("stdio_bus", "a configuration of 2.0.3 runs unchanged", bus.wait(30) == 0, str(bus.returncode))
    judge(outcome, published_client.__doc__, lambda: published_client(binary, run, config))


def published_config(workers):
    """All that a configuration of 2.0.3 can say."""
    pools = [
        {"id": "echo", "command": sys.executable, "args": [str(workers / "real_echo_worker.py")], "instances": 2},
        {"id": "stream", "command": sys.executable, "args": [str(workers / "stream_echo_worker.py")], "instances": 1},
    ]
    limits = {"max_input_buffer": 1048576, "max_output_queue": 4194304, "max_restarts": 5, "restart_window_sec": 60}
    return {"pools": pools, "limits": {**limits, "drain_timeout_sec": 30, "backpressure_timeout_sec": 60}}


def start(binary, run, config, folder):
    command = [binary, "--config", str(config), "--tcp", "127.0.0.1:0"]
    log = open(folder / "bus.log", "w")
    bus = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, env=environment(run))
    line = bus.stdout.readline()
    if not line:
        raise Failed(f"the bus did not start, see {folder}/bus.log")
    return bus, json.loads(line)["listening"].removeprefix("tcp://")


def judge(outcome, what, does):
    try:
        does()
        outcome.add("stdio_bus", what, True)
    except Failed as fault:
        outcome.add("stdio_bus", what, False, str(fault))


def a_name_is_answered(address):
    """a sessionId at the top of a message is kept and given to one worker"""
    with Raw(address) as raw:
        heard = [raw.ask("work", {"n": n}, sessionId="mine", pool="echo") for n in range(3)]
        expect([one["result"]["echo"] for one in heard] == [{"n": 0}, {"n": 1}, {"n": 2}], str(heard))
        names = {one["result"]["receivedSessionId"] for one in heard}
        expect(len(names) == 1 and None not in names, f"the worker was given {names}")


def equal_names_of_two_clients(address):
    """equal names of two clients are two sessions"""
    with Raw(address) as ann, Raw(address) as ben:
        given = [raw.ask("work", {}, sessionId="s", pool="echo")["result"]["receivedSessionId"] for raw in (ann, ben)]
        expect(given[0] != given[1], f"the worker was given {given}")


def a_pool_at_the_top(address):
    """a pool at the top of a message chooses the worker; none among several is an error that lists them"""
    with Raw(address) as raw:
        answer = raw.ask("stream_echo", {"text": ""}, sessionId="p", pool="stream")
        expect(answer.get("result", {}).get("chunks_sent") == 0, str(answer))
        answer = raw.ask("work", {}, sessionId="q")
        expect(answer.get("error", {}).get("code") == -32052 and "stream" in json.dumps(answer), str(answer))


def a_stream_comes_back(address):
    """notifications of a published worker come back under the name that the client chose"""
    with Raw(address) as raw:
        raw.send({"jsonrpc": "2.0", "id": 1, "method": "stream_echo", "params": {"text": "a b"}, "sessionId": "me", "pool": "stream"})
        heard = [raw.read() for _ in range(3)]
        names = [one.get("sessionId") for one in heard[:2]]
        texts = [one.get("params", {}).get("update", {}).get("content", {}).get("text") for one in heard[:2]]
        expect((names, texts, heard[2].get("id")) == (["me", "me"], ["a ", "b "], 1), str(heard))


def published_client(binary, run, config):
    """the published Python client works with this bus as its binary"""
    single = config.with_name("single.json")
    whole = json.loads(config.read_text())
    single.write_text(json.dumps({**whole, "pools": whole["pools"][1:]}))
    env = {**environment(run), "PYTHONPATH": str(install.sdist("stdiobus"))}
    command = [sys.executable, str(HERE / "client_stdiobus.py"), binary, str(single)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    expect(done.returncode == 0, done.stderr[-1500:])
    seen = json.loads(done.stdout)
    expect(seen["echo"]["echo"] == {"n": 1}, str(seen["echo"]))
    expect([one["echo"]["n"] for one in seen["both"]] == ["one", "two", "one"], str(seen["both"]))
    expect(seen["both"][0]["receivedSessionId"] != seen["both"][1]["receivedSessionId"], str(seen["both"]))
    expect(seen["stream"]["chunks_sent"] == 3 and len(seen["chunks"]) == 3, f"{seen['stream']} {seen['chunks']}")
    expect({chunk["sessionId"] for chunk in seen["chunks"]} == {seen["session"]}, str(seen["chunks"]))
