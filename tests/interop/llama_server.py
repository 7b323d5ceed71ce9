"""A real llama.cpp server with a tiny model, on a port of loopback. Runs in the venv that has `xllamacpp`; ends when its stdin ends.

    llama_server.py FOLDER PORT TEXT
"""

import os
import sys

import tiny_model
import xllamacpp

if __name__ == "__main__":
    folder, port, text = sys.argv[1:]
    path = os.path.join(folder, "tiny.gguf")
    tiny_model.write(path, text)
    settings = xllamacpp.CommonParams()
    settings.model.path = path
    settings.hostnames = ["127.0.0.1"]
    settings.port = int(port)
    settings.n_ctx = 2048
    settings.n_predict = 256
    settings.offline = True
    settings.warmup = False
    server = xllamacpp.Server(settings)
    sys.stdin.read()
    # The server's own threads would keep the process.
    os._exit(0)
