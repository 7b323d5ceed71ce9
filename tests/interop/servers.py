"""The OpenAI agent, through the bus, in front of model servers that other people wrote and that know nothing of it.

aimock plays what a cloud endpoint does, its failures too, and is in every run. With --all also a real llama.cpp (its server from PyPI, with
a model that is made here) and the mock of litellm.
"""

import contextlib
import json
import os
import pathlib
import socket
import ssl
import subprocess
import threading
import time
import types
import urllib.request

import install
import schema_check
from scenario import expect
from stage import HERE, Bus, Failed, Raw, environment, free_port, within

LLAMA_TEXT = "<think> I look at my weights. </think> Hello from a real llama.cpp server: this text is stored in it."


def run_all(binary, run, schema, outcome, everything):
    kinds = [Aimock, Llama, Litellm] if everything else [Aimock]
    for kind in kinds:
        folder = run / kind.name
        folder.mkdir()
        server = None
        try:
            server = kind(run, folder)
            for number, check in enumerate(kind.checks):
                judge(outcome, kind.name, check, binary, run, server, folder / str(number), schema)
        except Failed as fault:
            outcome.add(kind.name, "the server starts", False, str(fault))
        finally:
            if server:
                server.stop()


def judge(outcome, name, check, binary, run, server, folder, schema):
    """One check with a bus of its own. What the agent said meanwhile must be valid ACP too."""
    folder.mkdir()
    env = getattr(check, "env", lambda server: {})(server)
    talk = Talk(binary, run, server, folder, env)
    what = check.__doc__
    try:
        check(server, talk)
        is_so, detail = True, ""
    except (Failed, KeyError, OSError) as fault:
        is_so, detail = False, f"{fault!r}, see {folder}"
    talk.stop()
    faults = [fault for one in talk.bus.workers() for fault, _ in schema_check.check(schema, one, "out")[0]]
    # Kept for clients from before options.
    faults = [fault for fault in faults if "models" not in fault]
    outcome.add(name, what, is_so and not faults, detail or str(faults[:3]))


def with_env(env):
    """For a check that needs other variables: a function of the server."""

    def mark(check):
        check.env = env
        return check

    return mark


def azure_env(server):
    env = {"OPENAI_API_KEY": "", "AZURE_OPENAI_API_KEY": server.key, "OPENAI_API_VERSION": "2024-10-21"}
    return {**env, "OPENAI_BASE_URL": f"{server.origin}/openai/deployments/gpt-4o"}


class Talk:
    """A bus with the agent in front of a server, and a client that lets its files be read and written, and allows it."""

    def __init__(self, binary, run, server, folder, env):
        home = folder / "home"
        home.mkdir()
        env = {"OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": server.key, "OPENAI_MODEL": server.model, **env}
        agent = types.SimpleNamespace(
            name="openai",
            command=lambda place: ["@bus", "agent", "openai", "--state", str(home / "state")],
            env=lambda place: env,
            files=lambda place: {},
            first=None,
        )
        self.work = folder / "work"
        self.work.mkdir()
        self.bus = Bus(binary, run, agent, types.SimpleNamespace(home=home), folder)
        self.raw = Raw(self.bus.address)
        self.raw.socket.settimeout(60)
        can = {"fs": {"readTextFile": True, "writeTextFile": True}}
        self.offers = self.raw.ask("initialize", {"protocolVersion": 1, "clientCapabilities": can})["result"]
        self.count, self.asked = 0, []
        self.open([])

    def open(self, mcp_servers):
        """A new session, which is the one that is talked to from now on."""
        self.opened = self.raw.ask("session/new", {"cwd": str(self.work), "mcpServers": mcp_servers})["result"]
        self.session = self.opened["sessionId"]

    def stop(self):
        self.raw.__exit__()
        self.bus.stop()

    def tell(self, method, **params):
        self.raw.send({"jsonrpc": "2.0", "method": method, "params": {"sessionId": self.session, **params}})

    def prompt(self, text, at_first_word=lambda: None):
        """One turn: (what was said, thoughts, all updates, the answer)."""
        self.count += 1
        prompt = [{"type": "text", "text": text}]
        self.raw.send(
            {"jsonrpc": "2.0", "id": self.count, "method": "session/prompt", "params": {"sessionId": self.session, "prompt": prompt}}
        )
        updates = []
        while True:
            message = self.raw.read()
            if message.get("method") == "session/update":
                update = message["params"]["update"]
                updates.append(update)
                if [one["sessionUpdate"] for one in updates].count("agent_message_chunk") == 1 and update is updates[-1]:
                    at_first_word()
            elif "method" in message:
                self.answer(message)
            elif message.get("id") == self.count:
                texts = lambda kind: "".join(one["content"]["text"] for one in updates if one["sessionUpdate"] == kind)
                return types.SimpleNamespace(
                    said=texts("agent_message_chunk"),
                    thought=texts("agent_thought_chunk"),
                    kinds=[one["sessionUpdate"] for one in updates],
                    updates=updates,
                    stop=message.get("result", {}).get("stopReason"),
                    usage=message.get("result", {}).get("usage"),
                    error=message.get("error"),
                )

    def answer(self, question):
        params = question["params"]
        self.asked.append(question["method"])
        match question["method"]:
            case "fs/read_text_file":
                try:
                    result = {"result": {"content": pathlib.Path(params["path"]).read_text()}}
                except OSError as fault:
                    result = {"error": {"code": -32002, "message": str(fault)}}
            case "fs/write_text_file":
                pathlib.Path(params["path"]).write_text(params["content"])
                result = {"result": {}}
            case "session/request_permission":
                result = {"result": {"outcome": {"outcome": "selected", "optionId": params["options"][0]["optionId"]}}}
            case _:
                result = {"error": {"code": -32601, "message": "not here"}}
        self.raw.send({"jsonrpc": "2.0", "id": question["id"], **result})

    def models(self):
        """The models to choose from, once they are known."""

        def seen():
            opened = self.raw.ask("session/new", {"cwd": str(self.work), "mcpServers": []})["result"]
            option = next(one for one in opened["configOptions"] if one["id"] == "model")
            self.listed = [one["value"] for one in option["options"]]
            return len(self.listed) > 1

        within(20, seen, "a list of models")
        return self.listed


class TlsDoor:
    """TLS in front of a server: a relay with a certificate that only the file `ca` vouches for."""

    def __init__(self, port, folder):
        python = str(install.pip("trustme") / "python")
        subprocess.run([python, "-m", "trustme", "-q", "-d", str(folder)], check=True)
        self.ca, self.port = folder / "client.pem", port
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "server.pem", folder / "server.key")
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"https://localhost:{self.listener.getsockname()[1]}/v1"
        self.door = context.wrap_socket(self.listener, server_side=True)
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                one, _ = self.door.accept()
            except ssl.SSLError:
                continue  # A client that does not trust the certificate, as some checks want it.
            except OSError:
                return
            other = socket.create_connection(("127.0.0.1", self.port))
            for source, sink in ((one, other), (other, one)):
                threading.Thread(target=self.pump, args=(source, sink), daemon=True).start()

    @staticmethod
    def pump(source, sink):
        try:
            while chunk := source.recv(65536):
                sink.sendall(chunk)
            sink.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # Either side may leave.


@contextlib.contextmanager
def listening(command, run, folder):
    """A server that listens at the port of its environment: its origin."""
    port = free_port()
    with open(folder / f"{port}.log", "w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env={**environment(run), "PORT": str(port)})
        try:

            def is_there():
                with socket.socket() as one:
                    return one.connect_ex(("127.0.0.1", port)) == 0

            within(60, is_there, f"{command[-1]} to listen, see {log.name}")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait()


class Server:
    """A server process on a free port, ready when its port answers."""

    key, model = "sk-good", "gpt-4o"

    def start(self, command, run, folder, path="/v1", **more):
        self.log = open(folder / "server.log", "w")
        env = {**environment(run), "PYTHONDONTWRITEBYTECODE": "1", **more}
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=self.log, stderr=subprocess.STDOUT, env=env)
        self.origin = f"http://127.0.0.1:{self.port}"
        self.url = self.origin + path
        within(90, self.answers, f"{self.name} to answer, see {folder}/server.log")

    def answers(self):
        if self.process.poll() is not None:
            raise Failed(f"{self.name} ended with {self.process.returncode}")
        try:
            return self.fetch(self.url + "/models") is not None
        except OSError:
            return False

    def fetch(self, url):
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {self.key}"})
        return json.load(urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10))

    def stop(self):
        self.process.terminate()
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Aimock(Server):
    name = "aimock"

    def __init__(self, run, folder):
        self.port = free_port()
        self.run, self.folder = run, folder
        fixtures = folder / "fixtures.json"
        fixtures.write_text(json.dumps({"fixtures": list(self.fixtures())}, indent=1))
        program = str(install.npm("aimock") / ".bin" / "llmock")
        command = [program, "--port", str(self.port), "--fixtures", str(fixtures), "--strict", "--validate-on-load"]
        node = f"{install.node_folder()}:{os.environ['PATH']}"
        self.start(command, run, folder, PATH=node, AIMOCK_API_KEYS=self.key)
        self.tls = TlsDoor(self.port, folder)

    @staticmethod
    def fixtures():
        def one(text, response, match=None, **more):
            return {"match": {"userMessage": text, **(match or {})}, "response": response, **more}

        def failure(status, message):
            return {"error": {"message": message, "type": "server_error"}, "status": status}

        def call(name, **arguments):
            return {"toolCalls": [{"name": name, "arguments": json.dumps(arguments)}]}

        yield one("hello", {"content": "Hello from aimock, a third party server."})
        yield one("think", {"content": "The answer is 42.", "reasoning": "Let me reason about this."})
        yield one("look", call("read_file", path="note.txt"), {"hasToolResult": False})
        yield one("look", {"content": "I have read it."}, {"hasToolResult": True})
        yield one("write", call("write_file", path="new.txt", content="written by a model"), {"hasToolResult": False})
        yield one("write", {"content": "It is written."}, {"hasToolResult": True})
        yield one("busy", failure(429, "slow down"), {"sequenceIndex": 0})
        yield one("busy", {"content": "Now I have time."})
        yield one("broken", failure(500, "it burns"))
        yield one("short", {"content": "This was cut", "finishReason": "length"})
        for name in ("npm", "web", "old"):
            yield one(f"mcp {name}", call(f"{name}__echo", message=f"by {name}"), {"hasToolResult": False})
            yield one(f"mcp {name}", {"content": f"I have heard {name}."}, {"hasToolResult": True})
        noon = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}
        yield one("mcp clock", call("clock__convert_time", **noon), {"hasToolResult": False})
        yield one("mcp clock", {"content": "I have seen the clock."}, {"hasToolResult": True})
        yield one("slow", {"content": "word " * 400}, latency=50, chunkSize=5)
        yield one("lost", {"content": "this stream is cut " * 20}, latency=20, chunkSize=5, disconnectAfterMs=200)

    def requests(self):
        """How many chat requests it has seen."""
        return sum("/chat/completions" in entry["path"] for entry in self.fetch(self.origin + "/__aimock/journal"))

    def text(self, talk):
        """a text is streamed, with its usage"""
        turn = talk.prompt("hello")
        expect((turn.said, turn.stop) == ("Hello from aimock, a third party server.", "end_turn"), str(turn))
        expect(turn.usage["totalTokens"] > 0 and "usage_update" in turn.kinds, str(turn))
        expect(talk.prompt("hello").stop == "end_turn", "the second turn")

    def reasoning(self, talk):
        """reasoning is heard as thoughts, from a model that was set"""
        talk.raw.ask("session/set_model", {"sessionId": talk.session, "modelId": "o3"})
        turn = talk.prompt("think")
        expect((turn.thought, turn.said) == ("Let me reason about this.", "The answer is 42."), str(turn))

    def tool(self, talk):
        """a tool call reads a file without asking, and writes one after asking"""
        (talk.work / "note.txt").write_text("a note")
        turn = talk.prompt("look")
        expect((turn.said, talk.asked) == ("I have read it.", ["fs/read_text_file"]), f"{turn} {talk.asked}")
        turn = talk.prompt("write")
        expect(turn.said == "It is written." and "session/request_permission" in talk.asked, f"{turn} {talk.asked}")
        expect((talk.work / "new.txt").read_text() == "written by a model", "the file")
        expect(turn.kinds.count("tool_call") == 1 and turn.kinds.count("tool_call_update") >= 2, str(turn.kinds))

    def mcp(self, talk):
        """tools of MCP servers are offered, asked for and called: of npm over stdio, HTTP and SSE, and of PyPI over stdio"""
        node = str(install.node_folder() / "node")
        everything = str(install.npm("mcp-everything") / "@modelcontextprotocol/server-everything/dist/index.js")
        clock = str(install.pip("mcp-time") / "mcp-server-time")
        web = listening([node, everything, "streamableHttp"], self.run, self.folder)
        old = listening([node, everything, "sse"], self.run, self.folder)
        with web as web_url, old as old_url:
            stdio = lambda name, command, *args: {"name": name, "command": command, "args": args, "env": []}
            talk.open(
                [
                    stdio("npm", node, everything, "stdio"),
                    {"type": "http", "name": "web", "url": f"{web_url}/mcp", "headers": []},
                    {"type": "sse", "name": "old", "url": f"{old_url}/sse", "headers": []},
                    stdio("clock", clock, "--local-timezone", "UTC"),
                    stdio("missing", "/no/such/server"),
                ]
            )
            for name, said, shown in [
                ("npm", "I have heard npm.", "by npm"),
                ("web", "I have heard web.", "by web"),
                ("old", "I have heard old.", "by old"),
                ("clock", "I have seen the clock.", "+9.0h"),
            ]:
                asked = len(talk.asked)
                turn = talk.prompt(f"mcp {name}")
                expect(turn.said == said, str(turn))
                expect(talk.asked[asked:] == ["session/request_permission"], str(talk.asked))
                states = [one for one in turn.updates if one["sessionUpdate"].startswith("tool_call")]
                expect([one.get("status") for one in states] == ["pending", "in_progress", "completed"], str(states))
                expect(shown in str(states[-1]["content"]), str(states))
                is_told = "The MCP server missing is not used" in turn.thought
                expect(is_told == (name == "npm"), turn.thought)
            talk.raw.ask("session/close", {"sessionId": talk.session})

    @with_env(lambda server: {"OPENAI_API_KEY": "sk-bad-key"})
    def bad_key(self, talk):
        """401: the user is told to check the key, which is in no log"""
        turn = talk.prompt("hello")
        text = f"Authentication error (HTTP 401) calling {self.url}/chat/completions. Check your OPENAI_API_KEY."
        expect(turn.said.startswith(text) and turn.stop == "end_turn", str(turn))
        log = (talk.bus.folder / "bus.log").read_text()
        expect("HTTP 401" in log and "sk-bad-key" not in log, "the log")

    def rate_limit(self, talk):
        """429 with Retry-After: waited for, then answered"""
        began, before = time.monotonic(), self.requests()
        turn = talk.prompt("busy")
        expect(turn.said == "Now I have time.", str(turn))
        expect(self.requests() - before == 2, "two requests")
        expect(time.monotonic() - began >= 1, "a second of patience, as the server wished")

    @with_env(lambda server: {"OPENAI_MAX_RETRIES": "1"})
    def server_error(self, talk):
        """500: tried again, then told with the server's own words"""
        before = self.requests()
        turn = talk.prompt("broken")
        expect(turn.said == f"Server error (HTTP 500) from {self.url}/chat/completions.\nit burns", str(turn))
        expect(self.requests() - before == 2, "two requests")

    def length(self, talk):
        """finish_reason length is max_tokens"""
        turn = talk.prompt("short")
        expect((turn.said, turn.stop) == ("This was cut", "max_tokens"), str(turn))

    def disconnect(self, talk):
        """a stream that is cut off is told as a failure, and the session goes on"""
        turn = talk.prompt("lost")
        expect("this " in turn.said and "broke off" in turn.said and turn.stop == "end_turn", str(turn))
        expect(talk.prompt("hello").said.startswith("Hello"), "the next turn")

    def cancel(self, talk):
        """a slow stream is cancelled at once, and the session goes on"""
        turn = talk.prompt("slow", at_first_word=lambda: talk.tell("session/cancel"))
        expect(turn.stop == "cancelled" and len(turn.said) < 400, f"{turn.stop} after {len(turn.said)} letters")
        expect(talk.prompt("hello").said.startswith("Hello"), "the next turn")

    def listed(self, talk):
        """its models can be chosen"""
        expect("gpt-4o" in talk.models(), str(talk.listed))

    @with_env(azure_env)
    def azure(self, talk):
        """the URL, the version and the key as Azure wants them"""
        turn = talk.prompt("hello")
        expect(turn.said.startswith("Hello from aimock"), str(turn))

    @with_env(lambda server: {"OPENAI_BASE_URL": server.tls.url, "SSL_CERT_FILE": str(server.tls.ca)})
    def trusted(self, talk):
        """TLS with a certificate of a root that is trusted"""
        for _ in range(2):
            turn = talk.prompt("hello")
            expect(turn.said.startswith("Hello from aimock"), str(turn))
        turn = talk.prompt("slow", at_first_word=lambda: talk.tell("session/cancel"))
        expect(turn.stop == "cancelled", str(turn.stop))

    @with_env(lambda server: {"OPENAI_BASE_URL": server.tls.url})
    def not_trusted(self, talk):
        """TLS with a certificate of nobody known is refused and named"""
        turn = talk.prompt("hello")
        expect(turn.said.startswith("Network error connecting to https://") and "certificate" in turn.said, str(turn))

    checks = [text, reasoning, tool, mcp, bad_key, rate_limit, server_error, length, disconnect, cancel, listed, azure, trusted, not_trusted]


class Llama(Server):
    name, key, model = "llama.cpp", "none", "tiny"

    def __init__(self, run, folder):
        self.port = free_port()
        python = str(install.pip("llama.cpp") / "python")
        command = [python, str(HERE / "llama_server.py"), str(folder), str(self.port), LLAMA_TEXT]
        self.start(command, run, folder)

    def text(self, talk):
        """a real inference server is understood: its text, its usage, its second turn"""
        turn = talk.prompt("hi")
        expect((turn.said.split(), turn.stop) == (LLAMA_TEXT.split(), "end_turn"), str(turn))
        expect(turn.usage["outputTokens"] > 5, str(turn.usage))
        expect(talk.prompt("again").said.split() == LLAMA_TEXT.split(), "the second turn")

    @with_env(lambda server: {"OPENAI_THINK_TAGS": "on"})
    def think(self, talk):
        """thoughts that it leaves in its text are taken out where that is wanted"""
        turn = talk.prompt("hi")
        thought, said = LLAMA_TEXT.removeprefix("<think>").split("</think>")
        expect((turn.thought.split(), turn.said.split()) == (thought.split(), said.split()), str(turn))

    def window(self, talk):
        """a conversation longer than its window goes on without the oldest turns, and what is too long alone is taken back"""
        turns = [talk.prompt(f"{number} " + "words " * 80) for number in range(6)]
        expect(all(turn.said.split() == LLAMA_TEXT.split() for turn in turns), str(turns))
        told = "".join(turn.thought for turn in turns)
        expect("(2048 tokens)" in told and "not sent any more" in told, told)
        turn = talk.prompt("words " * 800)
        expect(turn.said.startswith("HTTP error (400)") and turn.stop == "end_turn", str(turn))
        expect(talk.prompt("again").said.split() == LLAMA_TEXT.split(), "the next turn")

    checks = [text, think, window]


class Litellm(Server):
    name, key, model = "litellm", "sk-master", "mock-hello"

    def __init__(self, run, folder):
        self.port = free_port()
        mocks = {
            "mock-hello": "Hello from the litellm mock. It streams several words.",
            "mock-busy": "litellm.RateLimitError",
            "mock-full": "litellm.ContextWindowExceededError",
        }
        entry = lambda name, text: {
            "model_name": name,
            "litellm_params": {"model": f"openai/{name}", "api_key": "sk-none", "mock_response": text},
        }
        models = [entry(name, text) for name, text in mocks.items()]
        config = {"model_list": models, "litellm_settings": {"telemetry": False}, "general_settings": {"master_key": self.key}}
        # JSON is YAML.
        (folder / "config.yaml").write_text(json.dumps(config))
        program = str(install.pip("litellm") / "litellm")
        command = [program, "--config", str(folder / "config.yaml"), "--host", "127.0.0.1", "--port", str(self.port)]
        self.start(command, run, folder, LITELLM_LOCAL_MODEL_COST_MAP="True")

    def text(self, talk):
        """a text is streamed, with its usage"""
        turn = talk.prompt("hi")
        expect((turn.said, turn.stop) == ("Hello from the litellm mock. It streams several words.", "end_turn"), str(turn))
        expect(turn.usage["outputTokens"] > 0, str(turn.usage))

    @with_env(lambda server: {"OPENAI_MAX_RETRIES": "0"})
    def failures(self, talk):
        """its models are listed and chosen, and its failures told in its own words"""
        expect({"mock-busy", "mock-full"} <= set(talk.models()), str(talk.listed))
        for model, begins, words in [
            ("mock-busy", "Rate limit exceeded (HTTP 429)", "mock rate limit error"),
            ("mock-full", "HTTP error (400)", "context window exceeded"),
        ]:
            params = {"sessionId": talk.session, "configId": "model", "value": model}
            answer = talk.raw.ask("session/set_config_option", params)
            expect("result" in answer, str(answer))
            turn = talk.prompt("hi")
            expect(turn.said.startswith(begins) and words in turn.said, str(turn))

    checks = [text, failures]
