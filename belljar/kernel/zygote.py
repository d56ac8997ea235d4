"""The warm process that Python contexts are forked from: IPython and the template's libraries are imported once.

    python zygote.py <fd> <JSON list of modules to import>

The socket of that number is a SOCK_SEQPACKET and carries one JSON object per packet:

    agent   {"do": "fork", "id", "cwd", "env"} with three fds: control socket, stdout, stderr
    zygote  {"ev": "warm", "version", "failed": [modules]}   once, when everything is imported
            {"ev": "forked", "id", "pid"}
            {"ev": "exited", "id", "pid", "status"}          as waitpid gives it; pid 0 and a "message" if the fork failed
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys


def main() -> None:
    # Ours come last on the path and this file's own folder not at all: no module of the user's is to be hidden.
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
    others = [entry for entry in sys.path if entry and os.path.abspath(entry) != here]  # noqa: PTH100
    sys.path[:] = ["", *others, os.path.dirname(os.path.dirname(here))]  # noqa: PTH120
    fd, preload = int(sys.argv[1]), json.loads(sys.argv[2])
    sys.argv[:] = [""]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.setdefault("MPLBACKEND", "agg")  # or it tries one after another what needs a screen
    from belljar.kernel.forking import Zygote

    sock = socket.socket(fileno=fd)
    sock.set_inheritable(False)
    Zygote(sock).serve(preload)


if __name__ == "__main__":
    main()
