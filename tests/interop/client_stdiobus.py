"""The published Python client of stdio_bus, unmodified, with this bus in the place of its own binary.

    PYTHONPATH=UNPACKED_SDIST client_stdiobus.py BUS CONFIG

It starts the bus with `--config CONFIG --stdio` and puts a `sessionId` of its own at the top of every message. Prints what it was
answered as one JSON object, for habits.py to judge.
"""

import asyncio
import json
import sys

from stdiobus import AsyncStdioBus, BackendMode, SubprocessOptions


async def main(bus_path, config_path):
    options = SubprocessOptions(binary_path=bus_path, start_timeout_sec=1.0)
    chunks, seen = [], {}
    async with AsyncStdioBus(config_path=config_path, backend=BackendMode.SUBPROCESS, subprocess=options) as bus:
        bus.on_notification(chunks.append)
        seen["echo"] = await bus.request("work", {"n": 1})
        seen["both"] = await asyncio.gather(
            *(bus.request("work", {"n": name}, session_id=name) for name in ("one", "two", "one"))
        )
        seen["stream"] = await bus.request("stream_echo", {"text": "a b c"})
        seen["session"] = bus.client_session_id
    seen["chunks"] = [chunk if isinstance(chunk, dict) else json.loads(chunk) for chunk in chunks]
    print(json.dumps(seen))


asyncio.run(main(*sys.argv[1:]))
