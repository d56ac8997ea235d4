"""A kernel for tests, started in the place of the Python of a sandbox's environment. Its cells are Python, and can misbehave.

A cell finds `send(message, blob)`, `mark(file)`, `n`, and `state`, which lives as long as the kernel. As a zygote it forks others.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import time
from typing import Any

from belljar.wire import pipe


def mark(name: str) -> None:
    """Say by a file that the cell has got this far. Not by a file object: an interrupt in its destructor would be ignored."""
    fd = os.open(name, os.O_WRONLY | os.O_CREAT)
    os.write(fd, b"x")
    os.close(fd)


def run_kernel(control: socket.socket) -> None:
    decoder = pipe.Decoder()
    state: dict[str, Any] = {"reseeded": 0}

    def send(message: dict[str, Any], blob: bytes = b"") -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        control.sendall(pipe.encode(message, blob))

    def reseed(number: int, frame: object) -> None:
        state["reseeded"] += 1

    def handle(message: dict[str, Any], blob: bytes) -> None:
        if message["do"] == "env":
            os.environ.update(message["set"])
            if message["cwd"]:
                os.chdir(message["cwd"])
            if "ready" not in state:
                state["ready"] = True
                send({"ev": "ready", "language": "fake", "version": "1"})
        elif message["do"] == "variables":
            var = {"type": "int", "shape": None, "size_bytes": 1, "preview": "p" * 200}
            send({"ev": "variables", "variables": [{"name": f"v{i}", **var} for i in range(state.get("variables", 1))]})
        elif message["do"] == "run":
            run(message, message["code"] if message["code"] is not None else blob.decode())

    def run(message: dict[str, Any], code: str) -> None:
        n = message["n"]
        scope = {"send": send, "n": n, "state": state, "message": message, "time": time, "os": os, "sys": sys, "mark": mark}
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            exec(code, scope)
        except BaseException as error:
            send({"ev": "error", "n": n, "name": type(error).__name__, "value": str(error), "traceback": ["a", "b"]})
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        send({"ev": "done", "n": n, "count": None, "duration_s": 0.5, "changes": None})

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, reseed)
    while data := control.recv(65536):
        for message, blob in decoder.feed(data):
            handle(message, blob)


def run_zygote(sock: socket.socket, preload: list[str]) -> None:
    children: dict[int, tuple[str, int]] = {}

    def say(**message: Any) -> None:
        sock.send(json.dumps(message).encode())

    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    say(ev="warm", version="3.x", failed=[name for name in preload if name.startswith("no_")])
    while True:
        ready, _, _ = select.select([sock, *children], [], [])
        for fd in ready:
            if fd is not sock:
                name, pid = children.pop(fd)
                say(ev="exited", id=name, pid=pid, status=os.waitpid(pid, 0)[1])
                continue
            data, fds, _, _ = socket.recv_fds(sock, 65536, 3)
            if not data:
                return
            request = json.loads(data)
            pid = os.fork()
            if pid == 0:
                os.setsid()
                sock.close()
                os.dup2(fds[1], 1)
                os.dup2(fds[2], 2)
                os.close(fds[1])
                os.close(fds[2])
                os.chdir(request["cwd"])
                run_kernel(socket.socket(fileno=fds[0]))
                os._exit(0)
            for passed in fds:
                os.close(passed)
            children[os.pidfd_open(pid)] = (request["id"], pid)
            say(ev="forked", id=request["id"], pid=pid)


def main() -> None:
    if sys.argv[1].endswith("zygote.py"):
        run_zygote(socket.socket(fileno=int(sys.argv[2])), json.loads(sys.argv[3]))
    elif sys.argv[2] == "broken":
        sys.exit("this kernel is broken")
    elif sys.argv[2] == "slow":
        time.sleep(600)
    else:
        run_kernel(socket.socket(fileno=int(os.environ["BELLJAR_CONTROL_FD"])))


if __name__ == "__main__":
    main()
