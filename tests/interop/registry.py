"""`stdio-bus add` with an index whose entries are real packages of npm and PyPI: what it adds, starts.

The installers (npx, uvx) need the registries, or what they have kept in the cache folder.
"""

import json
import os
import subprocess

import install
from scenario import expect
from stage import Failed, environment

PATIENCE_SEC = 300
# How each agent is started; versions are those of pins.json.
ENTRIES = {
    "codex-acp": ("npx", install.PINS["npm"]["zed-codex"], {}),
    "hermes": ("uvx", install.PINS["pip"]["hermes"], {"cmd": "hermes", "args": ["acp", "--accept-hooks"]}),
}


def run_all(binary, run, outcome):
    for name in ENTRIES:
        about = f"{name}, stdio-bus add"
        try:
            add_one(name, binary, run / f"registry-{name}")
            outcome.add(about, add_one.__doc__, True)
        except (Failed, KeyError, OSError, ValueError, subprocess.TimeoutExpired) as fault:
            outcome.add(about, add_one.__doc__, False, repr(fault))


def add_one(name, binary, folder):
    """a package that an index names becomes a pool whose agent answers initialize"""
    folder.mkdir()
    kind, package, more = ENTRIES[name]
    entry = {"id": name, "name": name, "version": "1.0.0", "description": "-", "distribution": {kind: {"package": package, **more}}}
    (folder / "registry.json").write_text(json.dumps({"version": "1.0.0", "agents": [entry]}))
    (folder / "bus.json").write_text(json.dumps({"pools": [], "limits": {"init_timeout_sec": PATIENCE_SEC}}))
    # Installers may ask the registries, which is all that they may.
    env = {name: value for name, value in os.environ.items() if not name.startswith("STDIO_BUS_")}
    env.update({"HOME": str(folder), "INTEROP_RUN": environment(folder.parent)["INTEROP_RUN"]})
    env.update({"PATH": f"{install.pip('uv')}:{env['PATH']}", "npm_config_cache": str(install.CACHE / "npx-cache")})
    env.update({"UV_CACHE_DIR": str(install.CACHE / "uv-cache")})
    if "PIP_CERT" in env:
        env.setdefault("SSL_CERT_FILE", env["PIP_CERT"])

    def stdio_bus(*words):
        return subprocess.run([binary, *words], cwd=folder, env=env, capture_output=True, text=True, timeout=PATIENCE_SEC, check=False)

    added = stdio_bus("add", name, "--here", "--registry", "registry.json", "--yes")
    expect(added.returncode == 0 and package in added.stderr, f"add: exit code {added.returncode}, {added.stderr[-500:]}")
    pool = json.loads((folder / "bus.json").read_text())["pools"][0]
    expect(pool["id"] == name and os.path.basename(pool["command"]) == kind and package in pool["args"], f"the pool is {pool}")
    probed = stdio_bus("check", "--probe")
    expect(probed.returncode == 0, f"check --probe: exit code {probed.returncode}, {probed.stdout[-300:]}{probed.stderr[-500:]}")
