#!/usr/bin/env python3
"""An agent that a test plays by hand: what it is told goes to the test, and what the test says it says.

    puppet.py SOCKET    carries its stdin to the Unix socket of the test, and what comes from there to its stdout

It ends when its stdin does, as an agent must, or when the test closes the socket. Standard library only.
"""

import os
import socket
import sys
import threading


def main(path):
    link = socket.socket(socket.AF_UNIX)
    link.connect(path)
    threading.Thread(target=carry_to_stdout, args=(link,), daemon=True).start()
    while chunk := os.read(0, 65536):
        link.sendall(chunk)


def carry_to_stdout(link):
    while chunk := link.recv(65536):
        while chunk:
            chunk = chunk[os.write(1, chunk) :]
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
