"""A server that answers with whatever bytes a test wants, one script per request."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from typing import Any

# Bytes to send; None closes the connection at once. A function gets the connection to do as it likes.
Script = bytes | None | Callable[[socket.socket], None]


def reply(status: int, body: Any, *headers: str) -> bytes:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(raw)}", "Content-Type: application/json", *headers, "", ""]
    return "\r\n".join(lines).encode() + raw


class RawServer:
    """Listens on loopback until it is closed. `requests` are the heads of what came, in order."""

    def __init__(self, *scripts: Script) -> None:
        self._scripts = list(scripts)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(60)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.requests: list[str] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while self._scripts:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(60)
                self._talk(connection)

    def _talk(self, connection: socket.socket) -> None:
        while self._scripts and (head := self._read(connection)):
            self.requests.append(head)
            script = self._scripts.pop(0)
            if script is None:
                return
            if callable(script):
                script(connection)
                return
            connection.sendall(script)
            if b"Connection: close" in script:
                return

    def _read(self, connection: socket.socket) -> str:
        held = b""
        try:
            while b"\r\n\r\n" not in held:
                if not (piece := connection.recv(65536)):
                    return ""
                held += piece
            head, _, body = held.partition(b"\r\n\r\n")
            wanted = next(
                (int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")), 0
            )
            while len(body) < wanted and (piece := connection.recv(65536)):
                body += piece
        except OSError:
            return ""
        return f"{head.decode()}\r\n\r\n{body.decode(errors='replace')}"

    def close(self) -> None:
        self._listener.close()
