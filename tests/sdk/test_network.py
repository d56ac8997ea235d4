"""What the SDK asks for when it is about a sandbox's network; the answers are a script's."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection
from websockets.sync.server import serve as serve_websockets

import belljar
from belljar import errors
from tests.sdk.raw_server import RawServer, Script, reply


@contextmanager
def scripted(*scripts: Script) -> Iterator[tuple[belljar.Sandbox, RawServer]]:
    server = RawServer(*scripts)
    with belljar.Client(server.url, "pds_1") as client:
        yield belljar.Sandbox(id="sb-1", client=client), server
    server.close()


def asked(server: RawServer) -> list[tuple[str, Any]]:
    """Method, path and body of every request."""
    parts = [request.partition("\r\n\r\n") for request in server.requests]
    return [(head.split(" HTTP/")[0], json.loads(body) if body else None) for head, _, body in parts]


def test_egress() -> None:
    policy = {
        "mode": "allow-list",
        "allow": ["pypi.org"],
        "deny": [],
        "limits": {},
        "secrets": [],
        "counters": {},
        "connections": [],
    }
    with scripted(reply(200, policy), reply(200, policy), b"HTTP/1.1 204 X\r\n\r\n", b"HTTP/1.1 204 X\r\n\r\n") as (box, server):
        assert box.egress.get()["allow"] == ["pypi.org"]
        box.egress.set(mode="allow-list", allow=("pypi.org",), deny=[])
        box.egress.set_secret("api.example.com", "Authorization", "Bearer s")
        box.egress.remove_secret("api.example.com", "Authorization")
    assert asked(server) == [
        ("GET /v1/sandboxes/sb-1/egress", None),
        ("PATCH /v1/sandboxes/sb-1/egress", {"mode": "allow-list", "allow": ["pypi.org"], "deny": []}),
        ("PUT /v1/sandboxes/sb-1/egress/secrets", {"host": "api.example.com", "header": "Authorization", "value": "Bearer s"}),
        ("DELETE /v1/sandboxes/sb-1/egress/secrets?host=api.example.com&header=Authorization", None),
    ]


def test_a_create_says_what_may_be_reached() -> None:
    made = {"id": "sb-2", "template": "base", "status": "running"}
    with scripted(reply(201, made), reply(201, made), reply(201, made)) as (box, server):
        belljar.Sandbox("base", egress_allowlist=[], client=box.client)
        secret = {"host": "h", "header": "X", "value": "v"}
        box.client.sandboxes.create("base", egress={"mode": "off"}, egress_secrets=[secret])
        box.client.sandboxes.create("base", egress="off")
    assert asked(server) == [
        ("POST /v1/sandboxes", {"template": "base", "egress_allowlist": []}),
        ("POST /v1/sandboxes", {"template": "base", "egress": {"mode": "off"}, "egress_secrets": [secret]}),
        ("POST /v1/sandboxes", {"template": "base", "egress": "off"}),
    ]


def test_ports_and_previews() -> None:
    signed = {"url": "http://h/v1/p/t/", "token": "t"}
    scripts = [reply(200, [{"port": 8000, "process": "python3"}]), reply(200, [{"port": 8000}]), reply(201, {"port": 8000})]
    with scripted(*scripts, b"HTTP/1.1 204 X\r\n\r\n", reply(200, signed)) as (box, server):
        assert box.ports.list() == [{"port": 8000, "process": "python3"}]
        assert box.preview_urls() == {8000: f"http://8000-sb-1.localhost:{server.url.rpartition(':')[2]}"}
        box.ports.expose(8000, public=True, label="web")
        box.ports.hide(8000)
        assert box.signed_preview_url(8000, ttl_seconds=60, paths=["/a"]) == signed["url"]
    assert asked(server)[2:] == [
        ("POST /v1/sandboxes/sb-1/ports", {"port": 8000, "public": True, "label": "web"}),
        ("DELETE /v1/sandboxes/sb-1/ports/8000", None),
        ("POST /v1/sandboxes/sb-1/preview-token", {"port": 8000, "ttl_seconds": 60, "paths": ["/a"]}),
    ]


@contextmanager
def echo() -> Iterator[tuple[str, list[str]]]:
    """A WebSocket server that sends back what it gets once, ends that direction, and waits for the other to end."""
    seen: list[str] = []

    def answer(connection: ServerConnection) -> None:
        assert connection.request is not None
        seen.append(f"{connection.request.path} {connection.request.headers.get('Authorization')}")
        connection.send(connection.recv())
        connection.send('{"eof":true}')
        with suppress(ConnectionClosed):
            seen.append(str(connection.recv()))

    with serving(answer) as url:
        yield url, seen


@contextmanager
def serving(answer: Callable[[ServerConnection], None]) -> Iterator[str]:
    with serve_websockets(answer, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.socket.getsockname()[1]}"
        server.shutdown()
        thread.join()


def test_a_connection_to_a_port() -> None:
    with echo() as (url, seen), belljar.Client(url, "pds_1") as client:
        connection = belljar.Sandbox(id="sb-1", client=client).ports.connect(8000)
        connection.write(b"ping")
        assert (connection.read(timeout=30), connection.read(timeout=30), connection.read()) == (b"ping", b"", b"")
        connection.write_eof()
        connection.close()
    assert seen == ["/v1/sandboxes/sb-1/ports/8000/connect Bearer pds_1", '{"eof":true}']


async def test_the_same_awaited() -> None:
    with echo() as (url, _):
        client = belljar.AsyncClient(url)
        async with client, await belljar.AsyncSandbox(id="sb-1", client=client).ports.connect(8000) as connection:
            await connection.write(b"ping")
            assert [data async for data in connection] == [b"ping"]


def test_a_broken_connection_is_not_taken_for_its_end() -> None:
    def answer(connection: ServerConnection) -> None:
        connection.send(b"half")
        connection.close(1011)

    with serving(answer) as url, belljar.Client(url) as client:
        connection = belljar.Sandbox(id="sb-1", client=client).ports.connect(8000)
        assert connection.read(timeout=30) == b"half"
        with pytest.raises(errors.AnswerLost, match="broke"):
            connection.read(timeout=30)
        with pytest.raises(errors.AnswerLost, match="closed"):
            connection.write(b"more")


def test_one_text_is_no_list() -> None:
    with scripted() as (box, server):
        for call in (
            lambda: belljar.Sandbox("base", egress_allowlist="pypi.org", client=box.client),
            lambda: box.egress.set(allow="pypi.org"),
            lambda: box.signed_preview_url(8000, paths="/a"),
        ):
            with pytest.raises(errors.InvalidInput, match="must be a list of texts"):
                call()
    assert server.requests == []


def test_a_websocket_that_is_refused_is_the_same_error() -> None:
    refusal = reply(404, {"error": "no such sandbox", "code": "sandbox_not_found"})
    with scripted(refusal, reply(200, {}), None) as (box, _):
        with pytest.raises(errors.SandboxNotFound, match="no such sandbox"):
            box.ports.connect(8000)
        for _ in range(2):
            with pytest.raises(belljar.PandastackError):
                box.terminal()
    with pytest.raises(errors.ServerUnreachable, match="belljar serve --dev"):
        belljar.Sandbox(id="sb-1", client=belljar.Client("http://127.0.0.1:1")).terminal()
