"""What the tests of Belljar's own routes share: server-sent events as pairs, and terminals over WebSockets."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import requests
from websockets.sync.client import ClientConnection, connect

from tests.server.conftest import Api

Event = tuple[str, dict[str, Any]]


def events(answer: requests.Response) -> Iterator[Event]:
    """Comments are left out."""
    name = ""
    for line in answer.iter_lines(chunk_size=1):
        if line.startswith(b"event: "):
            name = line[7:].decode()
        elif line.startswith(b"data: "):
            yield name, json.loads(line[6:])


@contextmanager
def streaming(api: Api, method: str, path: str, **options: Any) -> Iterator[Iterator[Event]]:
    """A stream that is left with the block, and with it the connection. A failure of the request fails the test."""
    with api(method, path, stream=True, **options) as answer:
        assert answer.status_code == 200, answer.text
        yield events(answer)


def output(found: list[Event], stream: str = "stdout") -> bytes:
    return b"".join(base64.b64decode(data["data"]) for name, data in found if name == stream)


@contextmanager
def websocket(api: Api, path: str, token: str | None = None) -> Iterator[ClientConnection]:
    headers = {"Authorization": f"Bearer {token or api.token}"}
    url = api.url.replace("http://", "ws://") + path
    with connect(url, additional_headers=headers, open_timeout=60, close_timeout=10, max_size=None) as connection:
        yield connection


def read_until(connection: ClientConnection, wanted: bytes) -> bytes:
    """Bytes up to and including `wanted`."""
    seen = b""
    while wanted not in seen:
        message = connection.recv(timeout=60)
        assert isinstance(message, bytes), f"{message!r} came before {wanted!r}, after {seen!r}"
        seen += message
    return seen


def read_to_end(connection: ClientConnection) -> tuple[bytes, dict[str, Any]]:
    """Everything that comes, and the last word."""
    seen = b""
    while True:
        message = connection.recv(timeout=60)
        if isinstance(message, str):
            return seen, json.loads(message)
        seen += message
