#!/usr/bin/env python3
"""A model server on loopback for real agents: OpenAI chat completions and responses, Anthropic messages, Gemini; streaming.

What it says depends only on the newest message of the user:

    TAG-name        the answer ends with that word, so that an answer shows whose question it was
    COUNT=N         the answer has N words before it, PACE_SECONDS apart
    USE_TOOL        the first answer is a call of the agent's shell tool, which writes proof.txt in the session's folder; an agent
                    that has no shell but a tool for files is asked to write it with that
    IN=FOLDER       where that tool is to write, for agents that do not know where a session is
    RECALL          the answer names every TAG of the whole conversation: proof that a session kept its history

The TAG of each question is printed on stderr, the port on stdout; ends when its stdin ends. Standard library only.
"""

import gzip
import json
import os
import re
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PACE_SECONDS = 0.015
COMMAND = "echo interop-proof > proof.txt"
SHELL_TOOLS = (
    "bash", "Bash", "run_shell_command", "exec_command", "shell_command", "shell", "Shell", "execute_command",
    "terminal", "execute", "local_shell",
)


class Conversation:
    """What an agent sent, in one form for all dialects: `said` is a list of (role, text, is_tool_result)."""

    def __init__(self, said, tools):
        self.said = said
        self.tools = tools

    def newest(self):
        """The newest message of the user that carries a TAG, and its place."""
        for place in range(len(self.said) - 1, -1, -1):
            role, text, _ = self.said[place]
            if role == "user" and "TAG-" in text:
                return place, text
        return -1, ""

    def reply(self):
        """("tool", name, arguments) or ("words", [..])."""
        place, text = self.newest()
        print(*re.findall(r"TAG-\w+", text)[-1:], file=sys.stderr, flush=True)
        if "USE_TOOL" in text and not any(result for _, _, result in self.said[place + 1 :]):
            tool = shell_tool(self.tools, (re.findall(r"IN=(\S+/)", text) or [""])[-1])
            if tool:
                return ("tool", *tool)
        # Some agents join a question that was cut short with the next one, so only what follows the last tag counts.
        count = int((re.findall(r"COUNT=(\d+)", text.rpartition("TAG-")[2]) or ["4"])[-1])
        words = [f"word{number} " for number in range(count)]
        if "RECALL" in text:
            tags = []
            for role, said, _ in self.said:
                tags += [tag for tag in re.findall(r"TAG-\w+", said) if role == "user" and tag not in tags]
        else:
            tags = re.findall(r"TAG-\w+", text)[-1:]
        return ("words", words + [tag + " " for tag in tags])


def shell_tool(tools, folder):
    by_name = dict(tools)
    names = [name for name in SHELL_TOOLS if name in by_name]
    names += [name for name in by_name if re.search(r"shell|bash|exec|terminal", name, re.I)]
    writers = [name for name in ("write_file", "write_text_file") if name in by_name]
    if not names and writers:
        return (writers[0], {"path": f"{folder}proof.txt", "content": "interop-proof\n"})
    return (names[0], arguments_for(by_name[names[0]] or {})) if names else None


def arguments_for(schema):
    arguments = {}
    for key, kind in (schema.get("properties") or {}).items():
        type_ = kind.get("type") or next((x.get("type") for x in kind.get("anyOf", []) if x.get("type")), "string")
        type_ = type_[0] if isinstance(type_, list) else type_
        if key in ("command", "cmd", "script", "code"):
            arguments[key] = ["bash", "-c", COMMAND] if type_.lower() == "array" else COMMAND
        elif key in (schema.get("required") or []):
            values = {"integer": 30, "number": 30, "boolean": False, "array": [], "object": {}}
            arguments[key] = kind["enum"][0] if kind.get("enum") else values.get(type_.lower(), "write a proof")
    return arguments


def text_of(content):
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return " ".join(text_of(part) for part in content)
    if isinstance(content, dict):
        return text_of(content.get("text") or content.get("content") or content.get("parts") or "")
    return ""


class Dialects(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        models = [{"id": "fake-model", "object": "model", "created": 1, "owned_by": "fake", "context_length": 128000}]
        self.whole({"object": "list", "data": models, "models": []})

    def do_POST(self):
        body = json.loads(self.body() or b"{}")
        path = self.path.split("?")[0]
        try:
            if path.endswith("/chat/completions"):
                self.answer_chat(body)
            elif path.endswith("/responses"):
                self.answer_responses(body)
            elif path.endswith("/messages/count_tokens") or path.endswith(":countTokens"):
                self.whole({"input_tokens": 10, "totalTokens": 10})
            elif path.endswith("/messages"):
                self.answer_messages(body)
            elif path.endswith(":streamGenerateContent"):
                self.answer_gemini(body, stream=True)
            elif path.endswith(":generateContent"):
                self.answer_gemini(body, stream=False)
            else:
                self.whole({})
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # The agent gave the turn up, as it should when it is cancelled.

    def body(self):
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            data = b""
            while size := int(self.rfile.readline().strip() or b"0", 16):
                data += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return gzip.decompress(data) if self.headers.get("Content-Encoding") == "gzip" else data

    def whole(self, answer):
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def begin_stream(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True

    def event(self, data, name=None):
        text = data if isinstance(data, str) else json.dumps(data)
        self.wfile.write(((f"event: {name}\n" if name else "") + f"data: {text}\n\n").encode())
        self.wfile.flush()
        time.sleep(PACE_SECONDS)

    def answer_chat(self, body):
        said = [(m["role"], text_of(m.get("content")), m["role"] == "tool") for m in body.get("messages", [])]
        tools = [(t["function"]["name"], t["function"].get("parameters")) for t in body.get("tools") or [] if "function" in t]
        kind, *reply = Conversation(said, tools).reply()
        call = None
        if kind == "tool":
            function = {"name": reply[0], "arguments": json.dumps(reply[1])}
            call = {"index": 0, "id": new_id("call"), "type": "function", "function": function}
        finish = "tool_calls" if call else "stop"
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        base = {"id": new_id("chatcmpl"), "created": int(time.time()), "model": body.get("model")}
        if not body.get("stream"):
            message = {"role": "assistant", "content": None if call else "".join(reply[0])}
            message |= {"tool_calls": [call]} if call else {}
            choice = {"index": 0, "message": message, "finish_reason": finish}
            return self.whole({**base, "object": "chat.completion", "choices": [choice], "usage": usage})
        self.begin_stream()

        def say(delta, reason=None):
            choice = {"index": 0, "delta": delta, "finish_reason": reason}
            self.event({**base, "object": "chat.completion.chunk", "choices": [choice]})

        say({"role": "assistant", "content": ""})
        if call:
            say({"tool_calls": [call]})
        else:
            for word in reply[0]:
                say({"content": word})
        say({}, finish)
        self.event({**base, "object": "chat.completion.chunk", "choices": [], "usage": usage})
        self.event("[DONE]")

    def answer_responses(self, body):
        given = body.get("input", [])
        given = [{"role": "user", "content": given}] if isinstance(given, str) else given
        said = [(m.get("role"), text_of(m.get("content")), "output" in m.get("type", "")) for m in given]
        tools = [(t["name"], t.get("parameters")) for t in body.get("tools") or [] if t.get("type") == "function"]
        kind, *reply = Conversation(said, tools).reply()
        if kind == "tool":
            item = {"type": "function_call", "id": new_id("fc"), "call_id": new_id("call"), "name": reply[0]}
            item |= {"arguments": json.dumps(reply[1]), "status": "completed"}
        else:
            text = {"type": "output_text", "text": "".join(reply[0]), "annotations": []}
            item = {"type": "message", "id": new_id("msg"), "role": "assistant", "status": "completed", "content": [text]}
        usage = {"input_tokens": 10, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 5}
        usage |= {"output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 15}
        whole = {"id": new_id("resp"), "object": "response", "created_at": int(time.time()), "status": "completed"}
        whole |= {"model": body.get("model"), "output": [item], "usage": usage}
        if not body.get("stream"):
            return self.whole(whole)
        self.begin_stream()
        self.event({"type": "response.created", "response": {**whole, "status": "in_progress", "output": []}}, "response.created")
        at = {"output_index": 0, "item_id": item["id"]}
        started = {**item, "status": "in_progress"} | ({"content": []} if kind == "words" else {"arguments": ""})
        self.event({"type": "response.output_item.added", **at, "item": started}, "response.output_item.added")
        if kind == "words":
            for word in reply[0]:
                delta = {"type": "response.output_text.delta", **at, "content_index": 0, "delta": word}
                self.event(delta, "response.output_text.delta")
        self.event({"type": "response.output_item.done", **at, "item": item}, "response.output_item.done")
        self.event({"type": "response.completed", "response": whole}, "response.completed")

    def answer_messages(self, body):
        def is_result(content):
            return isinstance(content, list) and any(part.get("type") == "tool_result" for part in content)

        said = [(m["role"], text_of(m.get("content")), is_result(m.get("content"))) for m in body.get("messages", [])]
        tools = [(t["name"], t.get("input_schema")) for t in body.get("tools") or []]
        kind, *reply = Conversation(said, tools).reply()
        if kind == "tool":
            block, reason = {"type": "tool_use", "id": new_id("toolu"), "name": reply[0], "input": reply[1]}, "tool_use"
        else:
            block, reason = {"type": "text", "text": "".join(reply[0])}, "end_turn"
        usage = {"input_tokens": 10, "output_tokens": 5, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
        whole = {"id": new_id("msg"), "type": "message", "role": "assistant", "model": body.get("model")}
        whole |= {"content": [block], "stop_reason": reason, "stop_sequence": None, "usage": usage}
        if not body.get("stream"):
            return self.whole(whole)
        self.begin_stream()

        def say(type_, **fields):
            self.event({"type": type_, **fields}, type_)

        say("message_start", message={**whole, "content": [], "stop_reason": None})
        if kind == "tool":
            say("content_block_start", index=0, content_block={**block, "input": {}})
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
            say("content_block_delta", index=0, delta=delta)
        else:
            say("content_block_start", index=0, content_block={"type": "text", "text": ""})
            for word in reply[0]:
                say("content_block_delta", index=0, delta={"type": "text_delta", "text": word})
        say("content_block_stop", index=0)
        say("message_delta", delta={"stop_reason": reason, "stop_sequence": None}, usage={"output_tokens": 5})
        say("message_stop")

    def answer_gemini(self, body, stream):
        said = []
        for message in body.get("contents", []):
            parts = message.get("parts", [])
            text = " ".join(part.get("text") or "" for part in parts)
            said.append((message.get("role"), text, any("functionResponse" in part for part in parts)))
        tools = [
            (function["name"], function.get("parametersJsonSchema") or function.get("parameters"))
            for tool in body.get("tools") or []
            for function in tool.get("functionDeclarations", [])
        ]
        kind, *reply = Conversation(said, tools).reply()
        usage = {"promptTokenCount": 10, "candidatesTokenCount": 5, "totalTokenCount": 15}

        def candidate(part, last):
            finish = {"finishReason": "STOP"} if last else {}
            content = {"role": "model", "parts": [part]}
            return {"candidates": [{"content": content, "index": 0, **finish}], "usageMetadata": usage}

        if not stream:
            # Gemini asks a small model which model to use and who speaks next, and wants JSON for an answer.
            form = {"reasoning": "x", "model_choice": "flash", "next_speaker": "user", "complexity_score": 1}
            return self.whole(candidate({"text": json.dumps({**form, "complexity_reasoning": "x"})}, True))
        self.begin_stream()
        if kind == "tool":
            return self.event(candidate({"functionCall": {"name": reply[0], "args": reply[1]}}, True))
        for place, word in enumerate(reply[0]):
            self.event(candidate({"text": word}, place + 1 == len(reply[0])))


def new_id(prefix, counter=iter(range(1, 1 << 60))):
    return f"{prefix}_{os.getpid()}_{next(counter)}"


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Dialects)
    server.daemon_threads = True
    print(server.server_address[1], flush=True)
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    server.serve_forever()
