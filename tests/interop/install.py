"""Gets third-party programs from the registries into the cache folder, each pinned in pins.json, each in a folder of its own.

A folder carries a stamp with its pin and is used again while the pin is the same. Nothing here needs root or a network other
than npm, PyPI, cargo and Debian. An install that fails ends the run: what the suite names must be there. Only what a program asks of the
machine and no registry has (a newer Python) may be missing; what needs it is then left out, and the run says so, unless CI=true.
"""

import fcntl
import hashlib
import json
import os
import pathlib
import platform
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
REPO = HERE.parents[1]
PINS = json.loads((HERE / "pins.json").read_text())
MACHINE = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
NODE = f"node-{sys.platform}-{MACHINE}"
PINS["npm"]["node"] = f"{NODE}@{PINS['node']}"
CACHE = pathlib.Path(os.environ.get("STDIO_BUS_INTEROP_CACHE") or REPO / "target" / "interop").resolve()


class Missing(Exception):
    """A program that the suite names could not be installed; holds the end of the installer's output."""


class Unavailable(Exception):
    """What a program asks of the machine is not there, and no registry has it."""


def suite_python():
    """The interpreter that runs the suite and its Python client: a venv with the SDK and the validator."""
    pins = [f"{name}=={version}" for name, version in PINS["suite"].items()]
    return _venv("suite", pins)


def pip(name):
    """The folder of the programs of a pinned Python package, in a venv of the Python that it asks for."""
    version = PINS["python"].get(name)
    return _venv(name, PINS["pip"][name].split(), python(version) if version else sys.executable).parent


def npm(name):
    """The folder `node_modules` of a pinned npm package, or of several that go together."""

    def install(folder):
        (folder / "package.json").write_text('{"private": true}\n')
        _do(["npm", "install", "--no-audit", "--no-fund", "--loglevel=error", *PINS["npm"][name].split()], folder)

    return _once("npm-" + name, PINS["npm"][name], install) / "node_modules"


def cargo(name):
    """The path of a pinned Rust program."""

    def install(folder):
        crate, version = PINS["cargo"][name].split("@")
        _do(["cargo", "install", "--quiet", "--root", str(folder), "--version", version, crate], folder)

    return _once("cargo-" + name, PINS["cargo"][name], install) / "bin" / name


def built(name):
    """The path of a Rust program of this folder, with the dependencies that its lock file pins."""
    source = HERE / name
    manifest, lock = source / "Cargo.toml", source / "Cargo.lock"
    pin = "".join(path.read_text() for path in (manifest, lock, source / "src" / "main.rs"))

    def build(folder):
        _do(["cargo", "build", "--quiet", "--locked", "--manifest-path", str(manifest), "--target-dir", str(folder)], REPO)

    # The lines of a lock file would be printed as what is installed.
    stamp = hashlib.sha256(pin.encode()).hexdigest()
    return _once("built-" + name, f"{name} {stamp[:16]}", build) / "debug" / name.replace("_", "-")


def debian(name):
    """The folder of a Debian package and of what it needs beyond this machine's own, unpacked. Never installs anything."""

    def install(folder):
        if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
            raise Unavailable("this machine has no Debian packages")
        for part in ("lists/partial", "cache/archives/partial"):
            (folder / part).mkdir(parents=True)
        apt = ["apt-get", "-qq", "-o", f"Dir::State::Lists={folder}/lists", "-o", f"Dir::Cache={folder}/cache"]
        try:
            _do([*apt, "update"], folder)
            wanted = _do([*apt, "--print-uris", "--no-install-recommends", "install", name], folder)
            names = [line.split()[1].split("_")[0] for line in wanted.splitlines() if ".deb" in line]
            _do([*apt, "download", *names], folder)
        except Missing as fault:
            raise Unavailable(f"the Debian package {name} cannot be had: {fault}") from fault
        for package in folder.glob("*.deb"):
            _do(["dpkg-deb", "-x", str(package), str(folder / "root")], folder)

    return _once("debian-" + name, name, install) / "root"


def sdist(name):
    """The unpacked source distribution of a Python package, for the examples and workers that only it holds."""
    pin = f"{name}=={PINS['sdist'][name]}"

    def install(folder):
        fetch = [str(suite_python()), "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", pin]
        _do(fetch, folder)
        (archive,) = folder.glob("*.tar.gz")
        shutil.unpack_archive(archive, folder)

    return next(path for path in _once("sdist-" + name, pin, install).iterdir() if path.is_dir())


def node_folder():
    """The folder of a Node that is new enough for every program here. The npm registry has one package for each kind of machine."""
    return npm("node") / NODE / "bin"


def python(version):
    """A Python of exactly this minor version, of the machine or of its pyenv."""
    name = f"python{version}"
    versions = pathlib.Path(os.environ.get("PYENV_ROOT") or pathlib.Path.home() / ".pyenv") / "versions"
    found = [shutil.which(name), *sorted(map(str, versions.glob(f"{version}.*/bin/{name}")))]
    for program in filter(None, found):
        # A shim of pyenv is there for every version, and Debian's Python may have no venv.
        if subprocess.run([program, "-c", "import ensurepip, venv"], capture_output=True, check=False).returncode == 0:
            return program
    raise Unavailable(f"no Python {version} with venv on this machine")


def _venv(name, pins, python=sys.executable):
    def install(folder):
        _do([python, "-m", "venv", str(folder)], REPO)
        _do([str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", *pins], folder)

    return _once("pip-" + name, " ".join(pins), install) / "bin" / "python"


def _once(name, pin, install):
    folder = CACHE / name
    stamp = folder / ".pin"
    CACHE.mkdir(parents=True, exist_ok=True)
    # Another run may be installing the same.
    with open(CACHE / f".{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (stamp.exists() and stamp.read_text() == pin):
            print(f"installing {pin}", flush=True)
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            install(folder)
            stamp.write_text(pin)
    return folder


def _do(command, folder):
    done = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise Missing(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-3000:]}")
    return done.stdout
