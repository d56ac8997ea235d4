"""A context over any Jupyter kernel: this program stands between the agent and the kernel, and translates.

    python jupyter.py <kernel name>

It runs in the template's environment, whose jupyter_client knows how to start the kernel and how to talk to it. A kernel that dies
takes this program with it: the agent tells its client, and starts both anew.
"""

from __future__ import annotations

import base64
import contextlib
import importlib
import json
import os
import queue
import re
import shutil
import signal
import socket
import sys
import tempfile
import time
from typing import Any

if __name__ == "__main__":  # run as a file: nothing has put our own package on the path
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))  # noqa: PTH100, PTH120

from belljar.wire import pipe

READY_DEADLINE_S = 100.0
CHECK_EVERY_S = 1.0
INPUT_EVERY_S = 0.05
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
STREAMS = {"stdout": 1, "stderr": 2}


class Bridge:
    def __init__(self, name: str, control: socket.socket, folder: str) -> None:
        manager = importlib.import_module("jupyter_client.manager").KernelManager
        self._control = control
        self._decoder = pipe.Decoder()
        self._interrupted = False
        # Sockets in a folder: no port of the sandbox is taken, and only this user can open them.
        self._manager = manager(kernel_name=name, transport="ipc", ip=os.path.join(folder, "kernel"))  # noqa: PTH118
        signal.signal(signal.SIGINT, self._on_interrupt)
        self._manager.start_kernel()
        self._client = self._manager.blocking_client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=READY_DEADLINE_S)
        about = self._client.kernel_info(reply=True, timeout=READY_DEADLINE_S)["content"]["language_info"]
        self._language = str(about.get("name"))
        self._send({"ev": "ready", "language": self._language, "version": str(about.get("version"))})

    def serve(self) -> None:
        while data := self._control.recv(256 * 1024):
            for message, blob in self._decoder.feed(data):
                if message.get("do") == "run":
                    self._interrupted = False
                    self._run(message, blob.decode("utf-8", "replace") if message["code"] is None else message["code"])
                elif message.get("do") == "env":
                    self._set_environment(message)

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._client.stop_channels()
            self._manager.shutdown_kernel(now=True)

    def _send(self, message: dict[str, Any], blob: bytes = b"") -> None:
        self._control.sendall(pipe.encode(message, blob))

    def _on_interrupt(self, number: int, frame: object) -> None:
        self._interrupted = True

    # -- cells

    def _set_environment(self, message: dict[str, Any]) -> None:
        """A running kernel's can only be changed from inside, which we know how to do in Python alone."""
        if self._language == "python":
            code = f"import os as _os; _os.environ.update({message['set']!r})"
            if message["cwd"]:
                code += f"; _os.path.isdir({message['cwd']!r}) and _os.chdir({message['cwd']!r})"
            self._client.execute(f"{code}; del _os", silent=True, store_history=False)

    def _run(self, message: dict[str, Any], code: str) -> None:
        number, started = message["n"], time.perf_counter()
        lines = None if message["stdin"] is None else message["stdin"].splitlines()
        request = self._client.execute(code, allow_stdin=lines is not None, store_history=message.get("count", True))
        patience_s = CHECK_EVERY_S if lines is None else INPUT_EVERY_S
        count = None
        idle = replied = False
        while not (idle and replied):
            if self._interrupted:
                self._interrupted = False
                self._manager.interrupt_kernel()
            event = self._next(self._client.iopub_channel, 0.0 if idle else patience_s)
            if event is not None and event["parent_header"].get("msg_id") == request:
                idle = event["msg_type"] == "status" and event["content"].get("execution_state") == "idle"
                self._relay(number, event["msg_type"], event["content"])
            if lines is not None and self._next(self._client.stdin_channel, 0.0) is not None:
                self._client.input(lines.pop(0) if lines else "\x04")
            reply = self._next(self._client.shell_channel, CHECK_EVERY_S if idle else 0.0)
            if reply is not None and reply["parent_header"].get("msg_id") == request:
                replied = True
                count = reply["content"].get("execution_count")
            if event is None and reply is None and not self._manager.is_alive():
                sys.exit("the Jupyter kernel has ended")
        duration = time.perf_counter() - started
        count = count if isinstance(count, int) and message.get("count", True) else None
        self._send({"ev": "done", "n": number, "count": count, "duration_s": duration, "changes": None})

    def _next(self, channel: Any, timeout_s: float) -> dict[str, Any] | None:
        """Waits in short steps, so that an interrupt is not kept waiting."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                found: dict[str, Any] = channel.get_msg(timeout=min(0.1, timeout_s))
                return found
            except queue.Empty:
                if time.monotonic() >= deadline or self._interrupted:
                    return None

    def _relay(self, number: int, kind: str, content: dict[str, Any]) -> None:
        if kind == "stream":
            _write(STREAMS.get(content["name"], 1), content["text"].encode("utf-8", "replace"))
        elif kind in ("display_data", "execute_result", "update_display_data"):
            self._show(number, kind, content)
        elif kind == "clear_output":
            self._send({"ev": "clear", "n": number, "wait": bool(content.get("wait"))})
        elif kind == "error":
            lines = [line for text in content["traceback"] for line in ESCAPES.sub("", text).split("\n")]
            event = {"ev": "error", "n": number, "name": content["ename"], "value": content["evalue"], "traceback": lines[:2000]}
            self._send(event)

    def _show(self, number: int, kind: str, content: dict[str, Any]) -> None:
        parts, blobs = [], []
        for mime, value in content["data"].items():
            form, data = _encode(mime, value)
            parts.append({"mime": mime, "size": len(data), "kind": form})
            blobs.append(data)
        event = {
            "ev": "output",
            "n": number,
            "main": kind == "execute_result",
            "parts": parts,
            "metadata": content.get("metadata") or {},
            "display_id": (content.get("transient") or {}).get("display_id"),
            "update": kind == "update_display_data",
        }
        try:
            self._send(event, b"".join(blobs))
        except ValueError as error:
            _write(2, f"[a result cannot be shown: {error}]\n".encode())


def _encode(mime: str, value: Any) -> tuple[str, bytes]:
    if not isinstance(value, str):
        return "json", json.dumps(value).encode()
    if (mime.startswith("image/") and mime != "image/svg+xml") or mime == "application/pdf":
        with contextlib.suppress(ValueError):
            return "binary", base64.b64decode(value)
    return "json" if mime.endswith(("/json", "+json")) else "text", value.encode("utf-8", "replace")


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def main() -> None:
    control = socket.socket(fileno=int(os.environ.pop("BELLJAR_CONTROL_FD")))
    control.set_inheritable(False)
    folder = tempfile.mkdtemp(prefix="jupyter-")
    bridge = None
    try:
        bridge = Bridge(sys.argv[1], control, folder)
        bridge.serve()
    finally:
        if bridge is not None:
            bridge.close()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
