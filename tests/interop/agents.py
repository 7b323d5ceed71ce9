"""The agents that stand behind the bus: how each is started offline, what to say to it, and what it can do.

Every agent has a HOME of its own inside the run's folder, and a proxy setting that leads nowhere, so that only the fake model
server on loopback answers it. `cannot` names the steps that an agent has no way to show, with the reason that the report prints;
every other step must pass.
"""

import json
import pathlib
import sys
from dataclasses import dataclass, field
from typing import Callable

import install



@dataclass
class Agent:
    name: str
    tier: int
    pin: str
    """What is installed, with its version, for the report."""
    command: Callable[["Place"], list]
    env: Callable[["Place"], dict] = lambda place: {}
    files: Callable[["Place"], dict] = lambda place: {}
    """Settings to be found in its HOME, by path."""
    plain: str = "Say {tag}"
    """A prompt whose answer holds the tag, where `tags` is true. `{cwd}` would be the session's folder."""
    long: str = "Say {tag} COUNT=150"
    endless: str = "Say {tag} COUNT=4000"
    tool: str = "USE_TOOL {tag}"
    permission: str | None = None
    """A prompt that asks for a permission, where the tool prompt does not."""
    recall: str | None = "RECALL {tag}"
    tags: bool = True
    proof: bool = True
    """Whether the tool prompt writes proof.txt into the session's folder."""
    resumes: bool | str = True
    """Whether a session goes on after kill -9; else its client is told that it is lost. `sometimes`: either is right."""
    cannot: dict = field(default_factory=dict)
    not_with: dict = field(default_factory=dict)
    """Programs that cannot talk to this agent even without a bus, with the reason."""
    differs: dict = field(default_factory=dict)
    """Steps of the comparison in which a process that lives on differs from one that was started anew, with the reason."""
    stutters: frozenset = frozenset()
    """Steps of the comparison in which it tells every piece of a message twice, so that no two runs put the same pieces together."""
    hands: bool = False
    """Whether its tools are the client's hands, so that it has none where the client offers none."""
    second: bool = False
    """Whether it also speaks the second version of ACP."""
    few: bool = False
    """Whether two clients play with it instead of four, since each of its prompts is a process that starts slowly."""
    first: Callable[[], list] | None = None
    """A command to be run once before: a first start that several at once do not survive."""
    leaves: str | None = None
    """How the command line of a daemon begins that it starts, and ends only if it is not killed itself."""
    whole: bool = False
    """Whether it tells a message only when it is whole, so that what begins a turn is seen at the model server."""
    runtime: str | None = None
    """The row of the bus's own table by which it is run."""
    program: Callable[[], pathlib.Path] | None = None
    """The program that the row finds in PATH."""


@dataclass
class Place:
    """Where an agent runs: its home, the model server's port, and the bus that starts it."""

    home: pathlib.Path
    model_port: int

    def model(self, path=""):
        return f"http://127.0.0.1:{self.model_port}{path}"


def node_program(name, program, *arguments):
    return lambda place: [str(install.npm(name) / ".bin" / program), *arguments]


def new_node(env):
    """The same environment with a Node that is newer than the machine's first in PATH."""
    return lambda place: {**env(place), "PATH": f"{install.node_folder()}:/usr/local/bin:/usr/bin:/bin"}


def codex_config(policy):
    return lambda place: {".codex/config.toml": codex_toml(place, policy)}


def codex_toml(place, policy):
    return f"""
model = "fake-model"
model_provider = "fake"
approval_policy = "{policy}"
sandbox_mode = "danger-full-access"

[model_providers.fake]
name = "fake"
base_url = "{place.model('/v1')}"
wire_api = "responses"
env_key = "FAKE_KEY"
"""


def codex_env(place):
    request = json.dumps({"methodId": "api-key"})
    keys = {"FAKE_KEY": "fake", "CODEX_API_KEY": "fake", "OPENAI_API_KEY": "fake", "NO_BROWSER": "1"}
    return {**keys, "DEFAULT_AUTH_REQUEST": request, "CODEX_HOME": str(place.home / ".codex")}


def opencode_config(place):
    options = {"baseURL": place.model("/v1"), "apiKey": "fake"}
    model = {"name": "fake", "tool_call": True, "limit": {"context": 100000, "output": 8000}}
    provider = {"npm": "@ai-sdk/openai-compatible", "name": "fake", "options": options, "models": {"fake-model": model}}
    config = {"model": "fake/fake-model", "small_model": "fake/fake-model", "provider": {"fake": provider}}
    return json.dumps({**config, "permission": {"bash": "ask"}, "autoupdate": False, "share": "disabled"})


def gemini_settings(place):
    settings = {"security": {"auth": {"selectedType": "gemini-api-key"}}, "privacy": {"usageStatisticsEnabled": False}}
    return {".gemini/settings.json": json.dumps(settings)}


def kimi_config(place):
    text = f"""
default_model = "fake"

[providers.fake]
type = "openai"
base_url = "{place.model('/v1')}"
api_key = "fake"

[models.fake]
provider = "fake"
model = "fake-model"
max_context_size = 100000
"""
    return {".kimi-code/config.toml": text}


def vibe_config(place):
    text = f"""
active_model = "fake"
enable_telemetry = false
enable_update_checks = false

[[providers]]
name = "fake"
api_base = "{place.model('/v1')}"
api_key_env_var = "FAKE_KEY"
backend = "generic"

[[models]]
name = "fake-model"
provider = "fake"
alias = "fake"
"""
    return {".vibe/config.toml": text}


def fast_agent_env(place):
    return {"GENERIC_API_KEY": "fake", "GENERIC_BASE_URL": place.model("/v1")}


def nanocoder_env(place):
    provider = {"name": "fake", "baseUrl": place.model("/v1"), "apiKey": "fake", "models": ["fake-model"]}
    return {"NANOCODER_PROVIDERS": json.dumps([provider]), "NANOCODER_TRUST_DIRECTORY": "true", **UNPROXIED}


def openhands_settings(place):
    model = {"model": "openai/fake-model", "api_key": "fake", "base_url": place.model("/v1")}
    return {".openhands/agent_settings.json": json.dumps({"llm": model})}


def hermes_config(place):
    model = f"provider: custom\n  base_url: {place.model('/v1')}\n  api_key: fake\n  default: fake-model"
    return {".hermes/config.yaml": f"model:\n  {model}\n"}


def adapter(runtime, program, *arguments):
    """What is the same of every agent that is the bus's own adapter around a CLI."""

    def command(place):
        state = ["--state", str(place.home / "state")]
        return ["@bus", "agent", "cli", "--runtime", runtime, "--program", str(program()), *arguments, *state]

    return {"runtime": runtime, "program": program, "command": command, "few": True, "not_with": FOLDER}


def native(runtime, program, *arguments):
    """What is the same of every agent that the bus runs as the row of its table says."""

    def command(place):
        return [str(program()), *TABLE[runtime]["acp"]["args"], *arguments]

    return {"runtime": runtime, "program": program, "command": command}


def node_file(name, program):
    return lambda: install.npm(name) / ".bin" / program


def claude_program():
    """The CLI that its ACP adapter brings along."""
    return install.npm("claude") / "@anthropic-ai" / f"claude-agent-sdk-{sys.platform}-{install.MACHINE}" / "claude"


def gemini_env(place):
    return {
        "GEMINI_API_KEY": "fake",
        "GOOGLE_GEMINI_BASE_URL": place.model(),
        "GEMINI_MODEL": "fake-model",
        "GEMINI_CLI_TRUST_WORKSPACE": "true",
        "GEMINI_CLI_NO_RELAUNCH": "true",
    }


def openai_env(place):
    return {"OPENAI_API_KEY": "fake", "OPENAI_BASE_URL": place.model("/v1"), "OPENAI_MODEL": "fake-model", **UNPROXIED}


def opencode_env(place):
    return {"OPENCODE_CONFIG_CONTENT": opencode_config(place)}


def claude_env(place):
    return {
        "ANTHROPIC_BASE_URL": place.model(),
        "ANTHROPIC_API_KEY": "fake",
        "ANTHROPIC_MODEL": "fake-model",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }


# For agents that send even loopback requests through a proxy.
UNPROXIED = {name: "" for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")}
USAGE = {"yopo": "yopo 11.0.0 does not know usage_update, which this agent sends"}
FOLDER = {"yopo": "yopo 11.0.0 names the folder \".\", and this agent wants an absolute one"}
ONE_PROCESS = {"permission": "one process a prompt has no way to ask"}
# The built-in rows: how the bus would start each agent CLI.
TABLE = {row["id"]: row for row in json.loads((install.REPO / "workers/src/cli/runtimes.json").read_text())}
INSTANT = "answers at once, so there is no turn to cut short"

AGENTS = [
    Agent(
        name="echo",
        tier=1,
        pin="stdio-bus agent echo",
        command=lambda place: ["@bus", "agent", "echo", "--delay-ms", "20", "--state", str(place.home / "state")],
        plain="{tag} one two three four five six seven eight nine ten",
        long="{tag} " + "and on " * 80,
        endless="{tag} " + "and on " * 3000,
        tool="/tool",
        permission="/ask",
        recall=None,
        proof=False,
    ),
    Agent(
        name="python-example",
        tier=1,
        pin=f"agent-client-protocol {install.PINS['sdist']['agent-client-protocol']} examples/agent.py",
        command=lambda place: [str(install.suite_python()), str(install.sdist("agent-client-protocol") / "examples/agent.py")],
        resumes=False,
        recall=None,
        cannot={"tool": "has no tools", "permission": "has no tools", "cancel": INSTANT},
    ),
    Agent(
        name="python-echo",
        tier=1,
        pin=f"agent-client-protocol {install.PINS['sdist']['agent-client-protocol']} examples/echo_agent.py",
        command=lambda place: [str(install.suite_python()), str(install.sdist("agent-client-protocol") / "examples/echo_agent.py")],
        resumes=False,
        recall=None,
        cannot={"tool": "has no tools", "permission": "has no tools", "cancel": INSTANT},
    ),
    Agent(
        name="typescript-example",
        tier=1,
        pin=install.PINS["npm"]["typescript-examples"] + " dist/examples/agent.js",
        command=lambda place: [
            "node",
            str(install.npm("typescript-examples") / "@agentclientprotocol/sdk/dist/examples/agent.js"),
        ],
        tool=None,
        recall=None,
        tags=False,
        proof=False,
        resumes=False,
    ),
    Agent(
        name="qwen",
        tier=1,
        pin=install.PINS["npm"]["qwen"],
        **native("qwen", node_file("qwen", "qwen"), "--auth-type", "openai"),
        env=openai_env,
    ),
    Agent(
        name="openai",
        tier=1,
        pin="stdio-bus agent openai",
        hands=True,
        command=lambda place: ["@bus", "agent", "openai", "--state", str(place.home / "state")],
        env=openai_env,
        not_with=USAGE,
    ),
    Agent(
        name="zed-codex",
        not_with=USAGE,
        tier=1,
        pin=install.PINS["npm"]["zed-codex"],
        command=node_program("zed-codex", "codex-acp"),
        env=codex_env,
        files=codex_config("untrusted"),
    ),
    Agent(
        name="gemini",
        tier=2,
        pin=install.PINS["npm"]["gemini"],
        **native("gemini", node_file("gemini", "gemini")),
        env=gemini_env,
        files=gemini_settings,
        # It writes a session to disk now and then, and finds it again only if it had done so.
        resumes="sometimes",
    ),
    Agent(
        name="hermes",
        not_with=USAGE,
        tier=2,
        pin=install.PINS["pip"]["hermes"],
        **native("hermes", lambda: install.pip("hermes") / "hermes"),
        files=hermes_config,
        cannot={"permission": "approves its own tools"},
    ),
    Agent(
        name="opencode",
        not_with=USAGE,
        tier=2,
        pin=install.PINS["npm"]["opencode"],
        **native("opencode", node_file("opencode", "opencode")),
        env=opencode_env,
    ),
    Agent(
        name="claude",
        not_with=FOLDER,
        second=True,
        tier=2,
        pin=install.PINS["npm"]["claude"],
        command=node_program("claude", "claude-agent-acp"),
        env=new_node(claude_env),
    ),
    Agent(
        name="cli-claude",
        pin="stdio-bus agent cli, the claude of " + install.PINS["npm"]["claude"],
        tier=1,
        **adapter("claude", claude_program),
        env=claude_env,
    ),
    Agent(
        name="cli-codex",
        pin="stdio-bus agent cli, the codex of " + install.PINS["npm"]["codex"],
        tier=1,
        **adapter("codex", node_file("codex", "codex"), "--mode", "full-access"),
        env=new_node(codex_env),
        files=codex_config("never"),
        cannot={"permission": "does not ask in this mode"},
    ),
    Agent(
        name="cli-gemini",
        pin="stdio-bus agent cli, " + install.PINS["npm"]["gemini"],
        tier=2,
        **adapter("gemini", node_file("gemini", "gemini")),
        env=gemini_env,
        files=gemini_settings,
        cannot=ONE_PROCESS,
    ),
    Agent(
        name="cli-opencode",
        pin="stdio-bus agent cli, " + install.PINS["npm"]["opencode"],
        tier=2,
        **adapter("opencode", node_file("opencode", "opencode")),
        env=opencode_env,
        # It makes its database, and processes that do so at the same time fail.
        first=lambda: [str(install.npm("opencode") / ".bin/opencode"), "models"],
        cannot=ONE_PROCESS,
        whole=True,
    ),
    Agent(
        name="cli-qwen",
        pin="stdio-bus agent cli, " + install.PINS["npm"]["qwen"],
        tier=2,
        **adapter("qwen", node_file("qwen", "qwen")),
        env=openai_env,
        cannot=ONE_PROCESS,
    ),
    Agent(
        name="cli-kimi",
        pin="stdio-bus agent cli, " + install.PINS["npm"]["kimi"],
        tier=2,
        **adapter("kimi", node_file("kimi", "kimi")),
        env=new_node(lambda place: {}),
        files=kimi_config,
        cannot=ONE_PROCESS,
        whole=True,
    ),
    Agent(
        name="codex",
        not_with=FOLDER,
        second=True,
        tier=2,
        pin=install.PINS["npm"]["codex"],
        command=node_program("codex", "codex-acp"),
        env=new_node(codex_env),
        files=codex_config("on-request"),
        cannot={"permission": "no longer has a setting that asks for every command"},
    ),
    Agent(
        name="kimi",
        not_with=USAGE,
        tier=2,
        pin=install.PINS["npm"]["kimi"],
        **native("kimi", node_file("kimi", "kimi")),
        env=new_node(lambda place: {}),
        files=kimi_config,
    ),
    Agent(
        name="copilot",
        not_with=USAGE,
        tier=2,
        pin=install.PINS["npm"]["copilot"],
        **native("copilot", node_file("copilot", "copilot")),
        env=new_node(
            lambda place: {
                "COPILOT_OFFLINE": "true",
                "COPILOT_PROVIDER_BASE_URL": place.model("/v1"),
                "COPILOT_PROVIDER_TYPE": "openai",
                "COPILOT_PROVIDER_API_KEY": "fake",
                "COPILOT_MODEL": "fake-model",
            }
        ),
    ),
    Agent(
        name="nanocoder",
        tier=1,
        pin=install.PINS["npm"]["nanocoder"],
        **native("nanocoder", node_file("nanocoder", "nanocoder")),
        env=new_node(nanocoder_env),
        # Its tools work in the folder in which it was started.
        proof=False,
    ),
    Agent(
        name="vibe",
        not_with=USAGE,
        tier=2,
        pin=install.PINS["pip"]["vibe"],
        **native("vibe", lambda: install.pip("vibe") / "vibe-acp"),
        env=lambda place: {"FAKE_KEY": "fake"},
        files=vibe_config,
        differs={"a prompt after a return": "Once it has loaded a session that it had open, vibe tells each message twice, until it is started anew."},
        stutters=frozenset({"a prompt after that"}),
    ),
    Agent(
        name="fast-agent",
        not_with=FOLDER,
        tier=2,
        pin=install.PINS["pip"]["fast-agent"],
        **native("fast-agent", lambda: install.pip("fast-agent") / "fast-agent", "--model", "generic.fake-model"),
        env=fast_agent_env,
        hands=True,
        tool="USE_TOOL IN={cwd}/ {tag}",
        # Sessions of several folders in one process are stored in the folder of one of them, all as one conversation.
        resumes="sometimes",
        recall=None,
    ),
    Agent(
        name="openhands",
        tier=2,
        # What stands behind it there keeps pip from trying hundreds of versions.
        pin=install.PINS["pip"]["openhands"].split()[0],
        **native("openhands", lambda: install.pip("openhands") / "openhands"),
        # Its commands run in a tmux server, which would be that of every other openhands of the user.
        env=lambda place: {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "OPENHANDS_SUPPRESS_BANNER": "1", "TMUX_TMPDIR": str(place.home)},
        files=openhands_settings,
        leaves="tmux -Lopenhands ",
        cannot={"cancel": INSTANT},
    ),
    Agent(
        name="elizacp",
        tier=2,
        pin=install.PINS["cargo"]["elizacp"],
        # Else it picks its answers at random.
        command=lambda place: [str(install.cargo("elizacp")), "--deterministic", "acp"],
        plain="I feel {tag}",
        long="I feel {tag}",
        recall=None,
        tags=False,
        resumes=False,
        cannot={"tool": "has no tools", "permission": "has no tools", "cancel": INSTANT},
    ),
]
