"""The agent's side of a zygote and its contexts, over real sockets and pipes, without a machine around it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from belljar.wire import pipe

ZYGOTE = Path(__file__).parents[2] / "belljar" / "kernel" / "zygote.py"
DEADLINE_S = 120.0


@dataclass
class Ran:
    """What came of one cell."""

    outputs: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    error: dict[str, Any] | None = None
    done: dict[str, Any] = field(default_factory=dict)
    stdout: str = ""
    stderr: str = ""

    @property
    def text(self) -> str:
        return str(next(output["data"]["text/plain"] for output in self.outputs if output["main"]))


class Zygote:
    def __init__(self, preload: list[str], home: Path) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        argv = [sys.executable, str(ZYGOTE), str(theirs.fileno()), json.dumps(preload)]
        env = {**os.environ, "HOME": str(home), "IPYTHONDIR": str(home / ".ipython")}
        self.process = subprocess.Popen(argv, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env=env)
        theirs.close()
        ours.settimeout(DEADLINE_S)
        self._socket = ours
        self.exited: list[dict[str, Any]] = []
        self.warm = self.receive("warm")

    def receive(self, event: str) -> dict[str, Any]:
        while True:
            if event == "exited" and self.exited:
                return self.exited.pop(0)
            message: dict[str, Any] = json.loads(self._socket.recv(64 * 1024))
            if message["ev"] == event:
                return message
            self.exited.append(message)

    def fork(self, cwd: Path, name: str = "one") -> Context:
        control, theirs = socket.socketpair()
        stdout, stdout_end = os.pipe()
        stderr, stderr_end = os.pipe()
        request = json.dumps({"do": "fork", "id": name, "cwd": str(cwd), "env": {"MADE_FOR": name}}).encode()
        socket.send_fds(self._socket, [request], [theirs.fileno(), stdout_end, stderr_end])
        theirs.close()
        os.close(stdout_end)
        os.close(stderr_end)
        return Context(self.receive("forked")["pid"], control, stdout, stderr)

    def close(self) -> None:
        self._socket.close()
        self.process.wait(DEADLINE_S)


class Context:
    def __init__(self, pid: int, control: socket.socket, stdout: int, stderr: int) -> None:
        self.pid = pid
        self.control = control
        self._streams = {stdout: "stdout", stderr: "stderr"}
        self._decoder = pipe.Decoder()
        self._received: list[tuple[dict[str, Any], bytes]] = []
        self._n = 0
        self.printed = {"stdout": b"", "stderr": b""}
        for fd in self._streams:
            os.set_blocking(fd, False)

    def send(self, blob: bytes = b"", **message: Any) -> None:
        self.control.sendall(pipe.encode(message, blob))

    def start(self, code: str | None, blob: bytes = b"", **more: Any) -> None:
        self._n += 1
        self.printed = {"stdout": b"", "stderr": b""}
        self.send(blob, **{"do": "run", "n": self._n, "code": code, "stdin": None, "changes": False, **more})

    def finish(self) -> Ran:
        ran = Ran()
        while not ran.done:
            event = self.receive()
            assert event["n"] == self._n
            ran.events.append(event)
            if event["ev"] == "output":
                ran.outputs.append(event)
            elif event["ev"] == "error":
                assert ran.error is None
                ran.error = event
            elif event["ev"] == "done":
                ran.done = event
        ran.stdout, ran.stderr = (self.printed[name].decode() for name in ("stdout", "stderr"))
        return ran

    def run(self, code: str | None, blob: bytes = b"", **more: Any) -> Ran:
        self.start(code, blob, **more)
        return self.finish()

    def interrupt(self) -> None:
        os.killpg(self.pid, signal.SIGINT)

    def wait_printed(self, text: bytes) -> None:
        """Until the running cell has said so: then it is where the test wants it."""
        deadline = time.monotonic() + DEADLINE_S
        while text not in self.printed["stdout"]:
            assert time.monotonic() < deadline
            select.select(list(self._streams), [], [], 1)
            self._drain()

    def receive(self) -> dict[str, Any]:
        deadline = time.monotonic() + DEADLINE_S
        while not self._received:
            assert time.monotonic() < deadline
            readable, _, _ = select.select([self.control.fileno(), *self._streams], [], [], 1)
            self._drain()
            if self.control.fileno() in readable:
                data = self.control.recv(1 << 20)
                if not data:
                    raise EOFError
                self._received += self._decoder.feed(data)
        self._drain()
        event, blob = self._received.pop(0)
        if event["ev"] == "output":
            event["data"] = _unpack(event["parts"], blob)
        return event

    def _drain(self) -> None:
        for fd, name in self._streams.items():
            with contextlib.suppress(BlockingIOError):
                while data := os.read(fd, 1 << 16):
                    self.printed[name] += data

    def close(self) -> None:
        self.control.close()
        for fd in self._streams:
            os.close(fd)
        self._streams = {}


_READERS: dict[str, Callable[[bytes], Any]] = {"binary": bytes, "text": bytes.decode, "json": json.loads}


def _unpack(parts: list[dict[str, Any]], blob: bytes) -> dict[str, Any]:
    data, at = {}, 0
    for part in parts:
        content = blob[at : at + part["size"]]
        at += part["size"]
        data[part["mime"]] = _READERS[part["kind"]](content)
    assert at == len(blob)
    return data
