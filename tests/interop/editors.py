"""Programs for people, in a terminal and by real keys: neovim, as it comes from Debian, with `stdio-bus run` in its terminal.

Somebody talks there to the echo agent, and to a real one while the bus is upgraded.
"""

import subprocess

import install
from agents import AGENTS, Place
from scenario import expect
from stage import Bus, Failed, Raw, environment
from terminal import Terminal

# An answer that takes some seconds and fits on the screen.
UPGRADE_WORDS = 350

NOT_TO_BE_HAD = {
    "Emacs with agent-shell": "agent-shell, acp.el and shell-maker are in no registry (npm, PyPI, cargo) and not in Debian",
    "neovim with CodeCompanion or agentic.nvim": "neither is in a registry (npm, PyPI, cargo) or in Debian",
}


def run_all(binary, run, model, outcome):
    for name, why in NOT_TO_BE_HAD.items():
        outcome.skip(name, "plugin", why)
    try:
        root = install.debian("neovim")
    except install.Unavailable as why:
        outcome.lacks("neovim", "Debian", str(why))
        return
    talk(root, binary, run, model, outcome, "echo", (a_prompt, a_permission, a_cancel, a_crash, the_end))
    # A real agent, in front of the fake model server.
    talk(root, binary, run, model, outcome, "qwen", (an_upgrade,))


def talk(root, binary, run, model, outcome, name, steps):
    """Somebody talks to this agent in neovim, step by step."""
    folder = run / f"neovim-{name}"
    home = folder / "home"
    home.mkdir(parents=True)
    agent = next(agent for agent in AGENTS if agent.name == name)
    try:
        bus = Bus(binary, run, agent, Place(home, model.port), folder)
    except install.Unavailable as why:
        outcome.skip(f"neovim with {name}", agent.pin, str(why))
        return
    editor = None
    try:
        # Whoever comes first waits until the agent has started.
        with Raw(bus.address) as first:
            first.socket.settimeout(240)
            first.ask("initialize", {"protocolVersion": 1, "clientCapabilities": {}})
        editor = Neovim(root, run, binary, bus, home)
        for step in steps:
            try:
                step(editor, bus)
                outcome.add(editor.about, step.__doc__, True)
            except (Failed, OSError) as fault:
                outcome.add(editor.about, step.__doc__, False, str(fault))
    finally:
        if editor:
            editor.terminal.kill()
        outcome.add(folder.name, "the bus stops with exit code 0", bus.stop() == 0, str(folder))


class Neovim:
    """neovim with its terminal open, in which somebody talks to an agent of a running bus."""

    def __init__(self, root, run, binary, bus, home):
        libraries = ":".join(str(path) for path in sorted(root.glob("usr/lib/*-linux-gnu*")))
        env = {**environment(run), "HOME": str(home), "VIMRUNTIME": str(root / "usr/share/nvim/runtime"), "SHELL": "/bin/sh"}
        env["LD_LIBRARY_PATH"] = libraries
        program = str(root / "usr/bin/nvim")
        version = subprocess.run([program, "--version"], env=env, capture_output=True, text=True, check=False).stdout.split("\n")[0]
        self.about = f"{version.replace('NVIM v', 'neovim ') or 'neovim'} (Debian), stdio-bus run in its terminal"
        # Only the editor itself needs the libraries.
        talk = f"env -u LD_LIBRARY_PATH {binary} run --tcp {bus.address} --pool {bus.config['default_pool']}"
        self.terminal = Terminal([program, "--clean", "-n", "-c", f"terminal {talk}", "-c", "startinsert"], env, home)

    def ready(self):
        """Waits until the next prompt can be typed."""
        self.terminal.shows(lambda text: last_of(text) == ">", "that it can be typed")

    def says(self, text):
        self.terminal.keys(text + "\r")


def last_of(text):
    """The last line of the talk, above the lines of the editor itself."""
    return ([""] + [line for line in text.split("\n")[:-2] if line])[-1]


def a_prompt(editor, _):
    """a prompt that is typed is answered on the screen"""
    editor.ready()
    editor.says("green ideas sleep")
    editor.terminal.shows(lambda text: text.count("green ideas sleep") == 2, "the answer")


def a_permission(editor, _):
    """a permission is asked, and given with a key"""
    editor.ready()
    editor.says("/ask")
    editor.terminal.shows(lambda text: "1-4?" in text, "the question")
    editor.says("1")
    editor.terminal.shows(lambda text: "You chose allow_once." in text, "what was chosen")


def a_cancel(editor, _):
    """Ctrl-C in mid-turn cancels it, and the next prompt is answered"""
    editor.ready()
    editor.says("/slow 100")
    editor.terminal.shows(lambda text: "/slow 100" in text, "what was typed")
    editor.terminal.keys("\x03")
    editor.terminal.shows(lambda text: "cancelled" in text, "that it was cancelled")
    editor.ready()
    editor.says("after the cancel")
    editor.terminal.shows(lambda text: text.count("after the cancel") == 2, "the answer")


def a_crash(editor, bus):
    """after kill -9 of the agent the next prompt is answered in the same session"""
    editor.ready()
    bus.kill_workers()
    editor.says("after the kill")
    editor.terminal.shows(lambda text: text.count("after the kill") == 2, "the answer")


def an_upgrade(editor, bus):
    """the bus becomes its own program anew in the middle of a turn: every word of the answer is on the screen once, and the next prompt is answered"""
    editor.ready()
    editor.says(f"Say TAG-upgrade COUNT={UPGRADE_WORDS}")
    editor.terminal.shows(lambda text: "word20 " in text, "the beginning of the answer")
    bus.upgrade()
    last = f"word{UPGRADE_WORDS - 1}"
    expect(last not in editor.terminal.text(), "the turn was over before the upgrade was")
    answer = "".join(f"word{number}" for number in range(UPGRADE_WORDS)) + "TAG-upgrade"
    editor.terminal.shows(lambda text: answer in "".join(text.split()), "every word once, in order")
    editor.ready()
    editor.says("Say TAG-afterwards")
    editor.terminal.shows(lambda text: text.count("TAG-afterwards") == 2, "the answer to the next prompt")


def the_end(editor, _):
    """Ctrl-D ends it, and then the editor ends"""
    editor.ready()
    editor.terminal.keys("\x04")
    # A turn that was cancelled on the way is told by the exit code.
    editor.terminal.shows(lambda text: "[Process exited 130]" in text, "the end with exit code 130")
    editor.terminal.keys("\x1c\x0e:qa!\r")
    code = editor.terminal.ends()
    expect(code == 0, f"neovim ended with {code}")
