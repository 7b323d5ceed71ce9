#!/usr/bin/env python3
"""Records what passes between two programs, line by line, and changes nothing.

    tee.py LOG -- COMMAND ARGS..    runs the command; its stdin and stdout pass through (`in` is what it was told)
    tee.py LOG --to HOST:PORT       prints a port of its own; each connection to it is carried to HOST:PORT
                                    (`in` is what the far side was told), each with its own LOG.N

LOG holds one JSON object a line: {"at": seconds, "dir": "in" | "out" | "start" | "end", "line": text}. `start` names the pid
of the command. The command's death is passed on as it was: same exit code, or the same signal. Standard library only.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time


class Log:
    """An append-only file of lines, shared by the two directions."""

    def __init__(self, path):
        self.file = open(path, "a", encoding="utf-8", buffering=1)
        self.lock = threading.Lock()

    def write(self, direction, line):
        entry = json.dumps({"at": round(time.time(), 4), "dir": direction, "line": line}, ensure_ascii=False)
        with self.lock:
            self.file.write(entry + "\n")


def carry(read, write, close, log, direction):
    """Carries bytes until the source ends; whole lines are logged just before they are passed on."""
    rest = b""
    while True:
        try:
            chunk = read()
        except OSError:
            chunk = b""
        if not chunk:
            break
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            log.write(direction, line.decode("utf-8", "replace"))
        try:
            write(chunk)
        except OSError:
            break
    if rest:
        log.write(direction, rest.decode("utf-8", "replace"))
    close()


def around_command(path, command):
    log = Log(f"{path}.{os.getpid()}")
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    log.write("start", str(child.pid))
    # A terminal's or a supervisor's signal is meant for the command; we end when it ends.
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda number, _frame: child.send_signal(number))

    def write_all(fd, data):
        while data:
            data = data[os.write(fd, data) :]

    def start(*arguments):
        thread = threading.Thread(target=carry, args=arguments, daemon=True)
        thread.start()
        return thread

    told = lambda: os.read(0, 65536)
    said = lambda: os.read(child.stdout.fileno(), 65536)
    start(told, lambda data: write_all(child.stdin.fileno(), data), child.stdin.close, log, "in")
    out = start(said, lambda data: write_all(1, data), lambda: None, log, "out")
    code = child.wait()
    # A grandchild may hold stdout open for ever; what the command itself wrote is read by then.
    out.join(0.3)
    log.write("end", str(code))
    if code >= 0:
        os._exit(code)
    if -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)


def around_port(path, address):
    host, port = address.rsplit(":", 1)
    door = socket.create_server(("127.0.0.1", 0))
    print(door.getsockname()[1], flush=True)
    # Ends with whoever started it.
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    number = 0
    while True:
        near, _ = door.accept()
        number += 1
        log = Log(f"{path}.{number}")
        try:
            far = socket.create_connection((host, int(port)))
        except OSError as fault:
            log.write("end", str(fault))
            near.close()
            continue
        for read_from, write_to, direction in ((near, far, "in"), (far, near, "out")):
            threading.Thread(
                target=carry,
                args=(
                    lambda source=read_from: source.recv(65536),
                    write_to.sendall,
                    lambda target=write_to: shut(target),
                    log,
                    direction,
                ),
                daemon=True,
            ).start()


def shut(target):
    try:
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass


if __name__ == "__main__":
    if len(sys.argv) > 3 and sys.argv[2] == "--":
        around_command(sys.argv[1], sys.argv[3:])
    elif len(sys.argv) == 4 and sys.argv[2] == "--to":
        around_port(sys.argv[1], sys.argv[3])
    else:
        sys.exit(__doc__)
