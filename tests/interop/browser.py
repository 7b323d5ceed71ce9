"""A web page against the port of a bus: a real Chromium tries everything that a page can, and nothing of it has an effect."""

import base64
import json
import signal
import subprocess

import habits
import install
from scenario import expect
from stage import HERE, Failed, Raw, environment

ABOUT = "a web page"
LINE = b'{"jsonrpc":"2.0","id":1,"method":"evil/from_a_page","params":{}}\n'


def run(binary, run, outcome):
    folder = run / "browser"
    folder.mkdir()
    config = folder / "bus.json"
    config.write_text(json.dumps({"pools": [{"id": "echo", "command": "stdio-bus", "args": ["agent", "echo"]}]}))
    bus, address = habits.start(binary, run, config, folder)
    try:
        tried = visit(run, folder, address)
        bodies = [base64.b64decode(one) for one in tried["recorded"]]
        judge(outcome, "really sends a whole message to a port", any(LINE in body for body in bodies), str(bodies))
        heard = {how: what for how, what in tried["outcomes"].items() if not what.startswith("failed: ")}
        judge(outcome, "gets nothing from the bus, however it asks", not heard, str(heard))
        with Raw(address) as raw:
            counters = raw.ask("_bus/status")["result"]["counters"]
        judge(outcome, "has no effect", counters["requests"] == 0, str(counters))
    except (Failed, OSError, ValueError, KeyError) as fault:
        judge(outcome, "can be opened", False, repr(fault))
    finally:
        bus.send_signal(signal.SIGTERM)
        bus.wait(30)


def visit(run, folder, address):
    """What browser.mjs has to tell."""
    modules = install.npm("browser")
    command = [str(install.node_folder() / "node"), str(HERE / "browser.mjs"), str(modules), address.rpartition(":")[2]]
    # The browser unpacks itself there.
    env = {**environment(run), "TMPDIR": str(folder), "HOME": str(folder)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, env=env, check=False)
    (folder / "browser.log").write_text(done.stdout + done.stderr)
    expect(done.returncode == 0, f"see {folder}/browser.log: {done.stderr[-500:]}")
    return json.loads(done.stdout)


def judge(outcome, what, is_so, detail):
    outcome.add(ABOUT, what, is_so, detail)
