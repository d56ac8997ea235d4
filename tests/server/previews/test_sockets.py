"""WebSockets of previews, and bytes to any port, with a real server in a real sandbox and a published client."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import pandastack
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from tests.server.conftest import Api, MakeBox, Server, eventually
from tests.server.previews.conftest import PORT, link, start_web

TIMEOUT_S = 60


def dial(server: Server, path: str, host: str | None = None, **options: object) -> ClientConnection:
    """A WebSocket whose name need not be known to a resolver."""
    address = urlsplit(server.url)
    connected = socket.create_connection((address.hostname, address.port), timeout=TIMEOUT_S)
    return connect(f"ws://{host or address.netloc}{path}", sock=connected, proxy=None, open_timeout=TIMEOUT_S, **options)  # type: ignore[arg-type]


@pytest.fixture
def host(server: Server, web: pandastack.Sandbox, public: object) -> str:
    """The name of the preview while it is public."""
    return f"{PORT}-{web.id}.localhost:{urlsplit(server.url).port}"


@pytest.fixture
def echo(server: Server, host: str) -> Iterator[ClientConnection]:
    with dial(server, "/ws?a=b", host, max_size=None) as opened:
        yield opened


def test_messages_of_all_kinds_pass_both_ways(echo: ClientConnection) -> None:
    json.loads(echo.recv(TIMEOUT_S))  # what the server said with its handshake
    for message in ("text", "grüße", "", b"bytes", b"", bytes(range(256)) * 256, "x" * 70_000, b"y" * 3_000_000):
        echo.send(message)
        assert echo.recv(TIMEOUT_S) == message
    echo.send("fragments")
    assert echo.recv(TIMEOUT_S) == "in pieces"
    echo.send("ping")
    assert echo.recv(TIMEOUT_S) == "pong are you there"
    assert echo.ping().wait(TIMEOUT_S)


def test_the_handshake_is_the_guests(server: Server, api: Api, host: str) -> None:
    sent = {"Cookie": "own=1; belljar_preview=x", "Authorization": f"Bearer {api.token}", "X-Own": "1"}
    with dial(server, "/ws", host, subprotocols=["first", "second"], origin=f"http://{host}", additional_headers=sent) as opened:
        assert opened.subprotocol == "second"
        assert opened.response is not None and opened.response.headers["Set-Cookie"] == "ws=1"
        headers = {name.lower(): value for name, value in json.loads(opened.recv(TIMEOUT_S))}
    assert headers["host"] == host and headers["origin"] == f"http://{host}" and headers["cookie"] == "own=1"
    assert headers["sec-websocket-protocol"] == "first, second" and headers["x-own"] == "1" and headers["x-forwarded-host"] == host
    assert "authorization" not in headers and "sec-websocket-extensions" not in headers


def test_a_refusal_of_the_guests_server_is_passed_on(server: Server, host: str) -> None:
    with pytest.raises(InvalidStatus) as refused:
        dial(server, "/ws/no", host)
    answer = refused.value.response
    assert (answer.status_code, answer.headers["X-Why"], answer.body) == (403, "closed", b"never")
    with pytest.raises(InvalidStatus) as no_websocket:
        dial(server, "/plain", host)
    assert no_websocket.value.response.status_code == 200
    with pytest.raises(InvalidStatus) as nonsense:
        dial(server, "/nonsense", host)
    assert nonsense.value.response.status_code == 502


@pytest.mark.parametrize(("code", "reason"), [(1000, "as asked"), (1001, "as asked"), (3456, "as asked"), (4999, "as asked")])
def test_the_guests_close_is_passed_on(echo: ClientConnection, code: int, reason: str) -> None:
    echo.recv(TIMEOUT_S)
    echo.send(f"close {code}")
    with pytest.raises(ConnectionClosed):
        echo.recv(TIMEOUT_S)
    assert (echo.close_code, echo.close_reason) == (code, reason)


@pytest.mark.parametrize(("order", "code"), [("vanish", 1011), ("bad text", 1007)])
def test_a_server_that_breaks_off_closes_with_a_reason(echo: ClientConnection, order: str, code: int) -> None:
    echo.recv(TIMEOUT_S)
    echo.send(order)
    with pytest.raises(ConnectionClosed):
        echo.recv(TIMEOUT_S)
    assert echo.close_code == code and echo.close_reason


def test_the_clients_close_is_passed_on(web: pandastack.Sandbox, echo: ClientConnection) -> None:
    web.exec("rm -f /tmp/closed-with")
    echo.recv(TIMEOUT_S)
    echo.close(4321, "bye")
    eventually(lambda: web.filesystem.exists("/tmp/closed-with"), "the close in the guest")
    assert web.filesystem.read("/tmp/closed-with") == (4321).to_bytes(2, "big") + b"bye"


def test_who_may_open_one(server: Server, api: Api, other: Api, web: pandastack.Sandbox) -> None:
    host = f"{PORT}-{web.id}.localhost:{urlsplit(server.url).port}"
    prefix = f"/v1/sandboxes/{web.id}/proxy/{PORT}"
    token, made = {"Authorization": f"Bearer {api.token}"}, link(api, web, paths=["/ws"])
    allowed: list[tuple[str, str | None, dict[str, str]]] = [
        ("/ws", host, token),
        (f"/ws?belljar_token={made['token']}", host, {}),
        ("/ws", host, {"Cookie": f"belljar_preview={made['token']}"}),
        (f"{prefix}/ws", None, token),
        (f"{prefix}/ws?access_token={api.token}", None, {}),
        (f"/v1/p/{made['token']}/ws", None, {}),
    ]
    for path, name, headers in allowed:
        with dial(server, path, name, additional_headers=headers) as opened:
            heard = opened.recv(TIMEOUT_S)
            assert api.token not in heard and (made["token"] not in heard or path.startswith("/v1/p/"))
    theirs = {"Authorization": f"Bearer {other.token}"}
    refused: list[tuple[str, str | None, dict[str, str], int]] = [
        ("/ws", host, {}, 401),
        ("/ws", host, theirs, 404),
        (f"/wsx?belljar_token={made['token']}", host, {}, 403),
        (f"{prefix}/ws", None, {}, 401),
        (f"{prefix}/ws", None, theirs, 404),
        (f"/v1/p/{made['token']}x/ws", None, {}, 401),
        (f"/v1/sandboxes/{web.id}/ports/{PORT}/connect", None, {}, 401),
        (f"/v1/sandboxes/{web.id}/ports/{PORT}/connect", None, theirs, 404),
    ]
    for path, name, headers, status in refused:
        with pytest.raises(InvalidStatus) as problem:
            dial(server, path, name, additional_headers=headers)
        assert problem.value.response.status_code == status, path


def listening(api: Api, box: pandastack.Sandbox) -> list[int]:
    return [each["port"] for each in api("GET", f"/v1/sandboxes/{box.id}/ports").json()]


def test_bytes_go_to_any_port_and_end_in_halves(server: Server, api: Api, web: pandastack.Sandbox) -> None:
    program = "import socket; s = socket.create_server(('127.0.0.1', 7000)); c = s.accept()[0]; n = 0\nc.sendall(b'hello')\n"
    program += "while d := c.recv(65536): n += len(d)\nc.sendall(b'got %d' % n); c.close()"
    web.filesystem.write("/tmp/count.py", program)
    web.exec("setsid nohup python3 /tmp/count.py >/tmp/count.log 2>&1 &")
    eventually(lambda: 7000 in listening(api, web), "the counting server")
    path, token = f"/v1/sandboxes/{web.id}/ports/7000/connect", {"Authorization": f"Bearer {api.token}"}
    with dial(server, path, additional_headers=token) as opened:
        assert opened.recv(TIMEOUT_S) == b"hello"
        for _ in range(30):
            opened.send(b"z" * 100_000)
        opened.send('{"eof":true}')
        heard = b""
        while isinstance(piece := opened.recv(TIMEOUT_S), bytes):
            heard += piece
        assert heard == b"got 3000000" and piece == '{"eof":true}'
        with pytest.raises(ConnectionClosed):
            opened.recv(TIMEOUT_S)
        assert opened.close_code == 1000
    eventually(lambda: 7000 not in listening(api, web), "the counting server's end")
    with pytest.raises(InvalidStatus) as closed:
        dial(server, path, additional_headers=token)
    assert closed.value.response.status_code == 502 and b"port_closed" in (closed.value.response.body or b"")
    with dial(server, f"/v1/sandboxes/{web.id}/ports/{PORT}/connect", additional_headers=token) as nonsense:
        nonsense.send("what?")
        with pytest.raises(ConnectionClosed):
            nonsense.recv(TIMEOUT_S)
        assert nonsense.close_code == 1003


def test_an_open_websocket_keeps_its_sandbox_awake(server: Server, api: Api, make: MakeBox) -> None:
    box = make(persistent=True)
    start_web(box)
    token = {"Authorization": f"Bearer {api.token}"}
    box.hibernate()
    with dial(server, f"/v1/sandboxes/{box.id}/proxy/{PORT}/ws", additional_headers=token) as opened:
        opened.recv(TIMEOUT_S)
        assert api("GET", f"/v1/sandboxes/{box.id}/lifecycle").json()["open_streams"] == 1
    eventually(lambda: api("GET", f"/v1/sandboxes/{box.id}/lifecycle").json()["open_streams"] == 0, "the end of the use")
