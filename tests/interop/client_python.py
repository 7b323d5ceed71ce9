"""The official Python SDK as a client, told what to do line by line on stdin.

    client_python.py --tcp HOST:PORT        over a socket
    client_python.py -- COMMAND ARGS..      over a command's stdio, as an IDE does it
    client_python.py --web URL TOKEN        through the web door, ws:// or http://

Orders: {"n": 1, "do": "initialize" | "new" | "load" | "prompt" | "cancel" | "close" | "hold", ..}; each is answered {"n": 1, "ok": ..} or
{"n": 1, "error": {"code": .., "message": .., "data": ..}}. What the agent says or asks meanwhile is printed as {"event": ..}.
After `hold` no permission is answered any more. Only the SDK speaks the protocol here; client_typescript.mjs takes the same orders.
"""

import asyncio
import json
import os
import pathlib
import sys

from acp import PROTOCOL_VERSION, Client, RequestError, connect_to_agent, text_block
from acp.schema import (
    AllowedOutcome,
    ClientCapabilities,
    FileSystemCapabilities,
    Implementation,
    ReadTextFileResponse,
    RequestPermissionResponse,
    WriteTextFileResponse,
)

LINE_LIMIT_BYTES = 64 * 1024 * 1024


def say(**message):
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


class Editor(Client):
    """An editor that allows everything and has the files it is asked for."""

    holds = False

    async def request_permission(self, session_id, tool_call, options, **_):
        say(event="permission", session=session_id, options=[option.kind for option in options])
        if Editor.holds:
            await asyncio.Event().wait()
        chosen = next(option for option in options if option.kind.startswith("allow"))
        return RequestPermissionResponse(outcome=AllowedOutcome(outcome="selected", option_id=chosen.option_id))

    async def session_update(self, session_id, update, **_):
        content = getattr(update, "content", None)
        say(
            event="update",
            session=session_id,
            kind=update.session_update,
            text=getattr(content, "text", None),
            status=getattr(update, "status", None),
        )

    async def read_text_file(self, session_id, path, line=None, limit=None, **_):
        say(event="read", session=session_id, path=path)
        return ReadTextFileResponse(content=pathlib.Path(path).read_text())

    async def write_text_file(self, session_id, path, content, **_):
        say(event="write", session=session_id, path=path)
        pathlib.Path(path).write_text(content)
        return WriteTextFileResponse()

    async def ext_method(self, method, params):
        say(event="ext", method=method)
        raise RequestError.method_not_found(method)

    async def ext_notification(self, method, params):
        say(event="ext", method=method)


async def obey(agent, order):
    match order["do"]:
        case "initialize":
            answer = await agent.initialize(
                protocol_version=PROTOCOL_VERSION,
                client_capabilities=ClientCapabilities(fs=FileSystemCapabilities(read_text_file=True, write_text_file=True)),
                client_info=Implementation(name="interop-python", version="1.0.0"),
            )
            info = answer.agent_info
            return {"version": answer.protocol_version, "agent": f"{info.name} {info.version}" if info else None}
        case "new":
            return {"session": (await agent.new_session(cwd=order["cwd"], mcp_servers=[])).session_id}
        case "load":
            await agent.load_session(session_id=order["session"], cwd=order["cwd"], mcp_servers=[])
            return {}
        case "prompt":
            answer = await agent.prompt(session_id=order["session"], prompt=[text_block(order["text"])])
            return {"stop": answer.stop_reason}
        case "cancel":
            return await agent.cancel(session_id=order["session"])
        case "hold":
            Editor.holds = True
        case "close":
            return await agent.close_session(session_id=order["session"]) and {}


async def answer(agent, order):
    try:
        say(n=order["n"], ok=await obey(agent, order))
    except RequestError as fault:
        say(n=order["n"], error={"code": fault.code, "message": str(fault), "data": fault.data})
    except Exception as fault:  # The SDK's own trouble is a finding too, so it is told, not swallowed.
        say(n=order["n"], error={"code": None, "message": repr(fault), "data": None})


async def through_the_door(url, token):
    """A transport of the SDK, which needs its extra `http`."""
    headers = {"Authorization": f"Bearer {token}"}
    if url.startswith("ws"):
        from acp.ws import create_websocket_stream

        return await create_websocket_stream(url, headers=headers)
    from acp.http import create_http_stream

    return create_http_stream(url, headers=headers)


async def main(arguments):
    child, writer = None, None
    if arguments[0] == "--web":
        transport = await through_the_door(*arguments[1:])
    elif arguments[0] == "--tcp":
        host, port = arguments[1].rsplit(":", 1)
        reader, writer = await asyncio.open_connection(host, int(port), limit=LINE_LIMIT_BYTES)
    else:
        pipe = asyncio.subprocess.PIPE
        child = await asyncio.create_subprocess_exec(*arguments[1:], stdin=pipe, stdout=pipe, limit=LINE_LIMIT_BYTES)
        reader, writer = child.stdout, child.stdin
    agent = connect_to_agent(Editor(), writer, reader) if writer else connect_to_agent(Editor(), transport)
    orders = asyncio.StreamReader(limit=LINE_LIMIT_BYTES)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    running = set()
    while line := await orders.readline():
        task = asyncio.create_task(answer(agent, json.loads(line)))
        running.add(task)
        task.add_done_callback(running.discard)
    if writer:
        writer.close()
    else:
        await transport.close()
    if child:
        say(event="exit", code=await child.wait())
    os._exit(0)


asyncio.run(main(sys.argv[1:]))
