"""Bytes that no well-behaved client sends: each is answered with a clear 4xx in the shape of every error."""

from __future__ import annotations

import json
import socket
from urllib.parse import urlsplit

import pytest

from tests.server.conftest import Api, Server

WEBSOCKET = "Connection: Upgrade\r\nUpgrade: websocket\r\n"
KEY, VERSION = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n", "Sec-WebSocket-Version: 13\r\n"


def head(line: str, *headers: str, host: str = "Host: here\r\n") -> bytes:
    """With a token, and on a connection of its own."""
    return (f"{line} HTTP/1.1\r\n{host}TOKEN\r\n" + "".join(headers) + "\r\n").encode("latin-1")


def body(content: bytes, *headers: str) -> bytes:
    return head("POST /v1/me/tokens", f"Content-Length: {len(content)}\r\n", *headers) + content


CHUNK = b"100000\r\n" + b"x" * 0x100000 + b"\r\n"
REFUSED = {
    "no HTTP": (b"\x00\xff\xfe what is this\r\n\r\n", 400),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200) + b"\r\n\r\n", 400),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "a version of tomorrow": (b"GET /v1/me HTTP/3.7\r\nHost: here\r\n\r\n", 400),
    "no host": (head("GET /v1/me", host=""), 400),
    "two hosts": (head("GET /v1/me", "Host: there\r\n"), 400),
    "a host that is no address": (head("GET /v1/nowhere", host="Host: [::1\r\n"), 404),
    "a space in a header's name": (head("GET /v1/me", "X Y: 1\r\n"), 400),
    "NUL in a header": (head("GET /v1/me", "X-API-Key: a\0b\r\n"), 400),
    "a header that is too long": (head("GET /v1/me", f"X: {'x' * 100_000}\r\n"), 431),
    "too many headers": (head("GET /v1/me", *(f"X-{number}: 1\r\n" for number in range(5000))), 431),
    "a line that is too long": (b"GET /" + b"x" * 200_000 + b" HTTP/1.1\r\n\r\n", 431),
    "two lengths": (head("POST /v1/me/tokens", "Content-Length: 5\r\n", "Content-Length: 6\r\n") + b"12345", 400),
    "a negative length": (head("POST /v1/me/tokens", "Content-Length: -1\r\n"), 400),
    "an endless length": (head("POST /v1/me/tokens", f"Content-Length: {'9' * 40}\r\n"), 400),
    "length and chunks": (
        head("POST /v1/me/tokens", "Content-Length: 5\r\n", "Transfer-Encoding: chunked\r\n") + b"0\r\n\r\n",
        400,
    ),
    "an unknown coding": (head("POST /v1/me/tokens", "Transfer-Encoding: gzip\r\n"), 400),
    "a chunk without a length": (head("POST /v1/me/tokens", "Transfer-Encoding: chunked\r\n") + b"zz\r\nhello\r\n", 400),
    "chunks without end": (
        head("POST /v1/me/tokens", "Transfer-Encoding: chunked\r\n") + CHUNK * 2,
        413,
    ),
    "bytes that are no text in the path": (b"GET /v1/sandboxes/\xff HTTP/1.1\r\nHost: here\r\n\r\n", 400),
    "an encoded byte that is no text": (head("GET /v1/sandboxes/%ff%fe"), 404),
    "half an escape": (head("GET /v1/sandboxes/%zz"), 404),
    "an encoded slash": (head("POST /v1/sandboxes/x%2Fpause"), 400),
    "an encoded NUL": (head("GET /v1/sandboxes/%00"), 400),
    "an encoded line break": (head("GET /v1/me%0a"), 400),
    "an encoded way up": (head("GET /v1/sandboxes/..%5c..%5cetc"), 400),
    "a way up": (head("GET /v1/../v1/me"), 404),
    "two slashes": (head("GET //v1//me"), 404),
    "a fragment": (head("GET /v1/me#here"), 404),
    "no slash": (head("GET v1/me"), 404),
    "everything": (head("OPTIONS *"), 404),
    "a proxy's method": (head("CONNECT there:443"), 404),
    "a method that is not for this": (head("TRACE /v1/me"), 405),
    "a method in lower case": (head("get /v1/me"), 405),
    "a method that is long": (head("X" * 5000 + " /v1/me"), 405),
    "a method that is not for this, at the root": (head("DELETE /healthz"), 405),
    "a parameter twice": (head("GET /v1/events?tail=1&tail=2"), 400),
    "a thousand parameters": (head("GET /v1/events?" + "&".join(f"x{number}=1" for number in range(1000))), 400),
    "a WebSocket where there is none": (head("GET /v1/me", WEBSOCKET, KEY, VERSION), 404),
    "a WebSocket where there is nothing": (head("GET /nowhere", WEBSOCKET, KEY, VERSION), 404),
    "a WebSocket of nobody": (head("GET /v1/sandboxes/sb-none/exec/pty", WEBSOCKET, KEY, VERSION), 404),
    "a WebSocket without a token": (head("GET /v1/sandboxes/x/exec/pty", WEBSOCKET, KEY, VERSION).replace(b"TOKEN\r\n", b""), 401),
    "a WebSocket with a wrong parameter": (head("GET /v1/sandboxes/x/exec/pty?rows=0", WEBSOCKET, KEY, VERSION), 400),
    "a WebSocket without a key": (head("GET /v1/sandboxes/x/exec/pty", WEBSOCKET, VERSION), 400),
    "a WebSocket of another version": (head("GET /v1/sandboxes/x/exec/pty", WEBSOCKET, KEY, "Sec-WebSocket-Version: 7\r\n"), 400),
    "a WebSocket by POST": (head("POST /v1/sandboxes/x/exec/pty", WEBSOCKET, KEY, VERSION), 400),
    "no WebSocket where there is one": (head("GET /v1/sandboxes/x/exec/pty"), 426),
    "a byte order mark": (body(b"\xef\xbb\xbf{}"), 400),
    "another encoding": (body('{"label": "x"}'.encode("utf-16")), 400),
    "a field twice": (body(b'{"label": "x", "label": "y"}'), 400),
    "a field twice, inside": (body(b'{"label": "x", "name": {"a": 1, "a": 2}}'), 400),
    "half a character": (body(b'{"label": "\\ud800"}'), 400),
    "two documents": (body(b"{} {}"), 400),
    "a form": (body(b"label=x", "Content-Type: application/x-www-form-urlencoded\r\n"), 400),
    "a hundred thousand lists": (body(b'{"label": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"), 400),
    "a number of a thousand digits": (body(b'{"label": "x", "expires_in_days": ' + b"9" * 1000 + b"}"), 400),
    "a number without end": (body(b'{"label": "x", "expires_in_days": 1e999}'), 400),
    "a packed body": (body(b"{}", "Content-Encoding: gzip\r\n"), 415),
    "a second token": (head("GET /v1/me", "Authorization: Bearer pds_0\r\n"), 400),
    "another's word in the log": (head("GET /v1/sandboxes/x%1b[2J%0d%0aroot:"), 400),
}


def talk(server: Server, sent: bytes, token: str) -> bytes:
    """Everything that comes back until the server says no more, or nothing for a second."""
    port = urlsplit(server.url).port
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(sent.replace(b"TOKEN", f"Authorization: Bearer {token}".encode()))
        connection.settimeout(30)
        answer = b""
        while b"\r\n\r\n" not in answer or len(answer.partition(b"\r\n\r\n")[2]) < length_of(answer):
            piece = connection.recv(65536)
            if not piece:
                break
            answer += piece
    return answer


def length_of(answer: bytes) -> int:
    if answer.startswith(b"HTTP/1.1 100 "):
        return 0
    for line in answer.partition(b"\r\n\r\n")[0].split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 1 << 40  # until the end


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_read_is_refused(server: Server, api: Api, admin_token: str, what: str) -> None:
    sent, status = REFUSED[what]
    tokens = api("GET", "/v1/me/tokens").json()
    answer = talk(server, sent, admin_token)
    top, _, said = answer.partition(b"\r\n\r\n")
    assert top.startswith(f"HTTP/1.1 {status} ".encode()), answer[:500]
    error = json.loads(said)["error"]
    assert isinstance(error, str) and 0 < len(error) < 1000
    assert admin_token not in answer.decode("latin-1"), "a refusal repeats the token"
    assert api("GET", "/v1/me/tokens").json() == tokens


def test_requests_one_after_the_other_on_one_connection(server: Server, admin_token: str) -> None:
    port = urlsplit(server.url).port
    sent = head("GET /v1/me") * 3 + head("GET /v1/nowhere") + head("GET /v1/me", "Connection: close\r\n")
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(sent.replace(b"TOKEN", f"Authorization: Bearer {admin_token}".encode()))
        answers = b"".join(iter(lambda: connection.recv(65536), b""))
    assert [answers[found + 9 : found + 12] for found in _places(answers, b"HTTP/1.1 ")] == [b"200", b"200", b"200", b"404", b"200"]


def _places(text: bytes, word: bytes) -> list[int]:
    return [place for place in range(len(text)) if text.startswith(word, place)]


def test_old_and_absolute_requests_are_answered(server: Server, admin_token: str) -> None:
    old = head("GET /v1/me", host="").replace(b"HTTP/1.1", b"HTTP/1.0")
    for sent in (old, head("GET http://somewhere.example/v1/me", "Connection: close\r\n")):
        assert b'"workspace":"default"' in talk(server, sent, admin_token)


def test_a_body_is_asked_for_when_it_is_wanted_and_only_then(server: Server, admin_token: str) -> None:
    asking = head("POST /v1/me/tokens", "Content-Length: 100\r\n", "Expect: 100-continue\r\n")
    assert talk(server, asking, admin_token).startswith(b"HTTP/1.1 100 ")
    refused = talk(server, asking, "pds_" + "0" * 32)
    assert refused.startswith(b"HTTP/1.1 401 ") and b"connection: close" in refused.lower()
