"""One exchange over a scripted port: what a real server does too seldom to wait for."""

from __future__ import annotations

import asyncio
import random
from typing import Any, cast

import h11
import pytest

from belljar.errors import BelljarError, DeadlineExceeded, SandboxError
from belljar.server.previews import exchange as module
from belljar.server.previews.exchange import exchange
from belljar.server.previews.target import Target
from belljar.server.protocol import HANG_UP


class Port:
    """A guest's server that says its lines, whatever it is asked."""

    def __init__(self, *lines: bytes | Exception, deaf: bool = False) -> None:
        self._lines = list(lines)
        self._deaf = deaf
        self.heard = b""

    async def read(self) -> bytes:
        await asyncio.sleep(0)
        if not self._lines:
            return b""
        line = self._lines.pop(0)
        if isinstance(line, Exception):
            raise line
        return line

    async def write(self, data: bytes) -> None:
        if self._deaf and self.heard:
            raise SandboxError("it does not read")
        self.heard += data


class Client:
    """The ASGI server's side: what was sent to the client, and whether it was hung up on."""

    def __init__(self, *body: bytes, headers: dict[str, str] | None = None, method: str = "GET") -> None:
        self.messages: list[Any] = [{"type": "http.request", "body": piece, "more_body": True} for piece in body]
        if self.messages:
            self.messages[-1]["more_body"] = False
        else:
            self.messages = [{"type": "http.request", "body": b"", "more_body": False}]
        self.sent: list[Any] = []
        self.gone = asyncio.Event()
        raw = [(name.lower().encode(), value.encode()) for name, value in {"Host": "1-a.localhost", **(headers or {})}.items()]
        self.scope: Any = {"type": "http", "method": method, "headers": raw, "scheme": "http", "client": ("127.0.0.1", 1)}
        self.scope |= {"path": "/", "query_string": b"", "server": ("127.0.0.1", 1), "extensions": {HANG_UP: self.gone.set}}

    async def receive(self) -> Any:
        if self.messages:
            return self.messages.pop(0)
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.sent.append(message)

    async def get(self, port: Port) -> bytes:
        target = Target(cast(Any, None), "sb-1", 3000, b"/x?y")
        async with asyncio.timeout(30):
            await exchange(target, cast(Any, port), self.scope, self.receive, self.send)
        return b"".join(message.get("body", b"") for message in self.sent)


async def test_an_answer_in_any_pieces_is_the_same() -> None:
    answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\nX: 1\r\n\r\n"
    for size in (1, 2, 7, 1000):
        client = Client()
        assert await client.get(Port(*(answer[start : start + size] for start in range(0, len(answer), size)))) == b"abcde"
        assert client.sent[0]["status"] == 200 and client.sent[-1]["more_body"] is False


async def test_the_request_is_framed_as_it_came() -> None:
    ok = b"HTTP/1.1 204 No Content\r\n\r\n"
    port = Port(ok)
    await Client(b"ab", b"c", headers={"Content-Length": "3"}, method="POST").get(port)
    assert port.heard.startswith(b"POST /x?y HTTP/1.1\r\nhost: 1-a.localhost\r\n") and port.heard.endswith(b"\r\n\r\nabc")
    port = Port(ok)
    await Client(b"ab", b"c", headers={"Content-Length": "9", "Transfer-Encoding": "chunked"}, method="POST").get(port)
    head, _, body = port.heard.partition(b"\r\n\r\n")
    assert body == b"2\r\nab\r\n1\r\nc\r\n0\r\n\r\n" and b"content-length" not in head.lower()


@pytest.mark.parametrize(
    "answer",
    [
        b"", b"HTTP/1.1 200", b"SSH-2.0-x\r\n", b"HTTP/1.1 101 Switching\r\n\r\n", b"HTTP/1.1 700 What\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000, b"HTTP/1.1 100 Continue\r\n\r\n" * 1000, b"\x16\x03\x01\x00",
    ],
    ids=lambda answer: repr(answer[:30]),
)  # fmt: skip
async def test_what_is_no_answer_is_told_before_anything_was_sent(answer: bytes) -> None:
    client = Client()
    with pytest.raises(BelljarError) as problem:
        await client.get(Port(answer))
    assert problem.value.status == 502 and "web server" in problem.value.message and client.sent == []


@pytest.mark.parametrize(
    "lines",
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf",), (b"HTTP/1.1 200 OK\r\n\r\nhalf", SandboxError("reset")),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\nzzz\r\n",),
    ],
)  # fmt: skip
async def test_an_answer_that_breaks_off_hangs_up(lines: tuple[Any, ...]) -> None:
    client = Client()
    assert await client.get(Port(*lines)) == b"half"
    assert client.gone.is_set() and client.sent[-1].get("more_body", True)


async def test_a_server_that_stops_reading_may_still_answer() -> None:
    client = Client(b"x" * 10, b"y" * 10, headers={"Content-Length": "20"}, method="POST")
    assert await client.get(Port(b"HTTP/1.1 413 No\r\nContent-Length: 2\r\n\r\nno", deaf=True)) == b"no"


async def test_a_client_that_leaves_its_request_unfinished_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SILENT_S", 0.05)

    class Silent(Port):
        async def read(self) -> bytes:
            return await asyncio.Event().wait()  # type: ignore[return-value]

    client = Client(b"x", headers={"Content-Length": "20"}, method="POST")
    client.messages[0]["more_body"] = True
    with pytest.raises(DeadlineExceeded, match="body"):
        await client.get(Silent())


ANSWERS = (
    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nSet-Cookie: a=1; Domain=x; Path=/\r\nX-A: b\r\n\r\nhello",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: x-a, close\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    b"HTTP/1.0 304 Not Modified\r\nLocation: http://localhost:3000/\r\n\r\n",
)


class StrictClient(Client):
    """Checks what is sent as the server's own HTTP would."""

    def __init__(self) -> None:
        super().__init__()
        self._http = h11.Connection(h11.SERVER)
        self._http.receive_data(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert [type(self._http.next_event()) for _ in range(2)] == [h11.Request, h11.EndOfMessage]

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self._http.send(h11.Response(status_code=message["status"], headers=message["headers"]))
        elif message["body"]:
            self._http.send(h11.Data(data=message["body"]))
        await super().send(message)


async def test_damaged_answers_are_answers_or_errors_and_nothing_else() -> None:
    draw, seen = random.Random(1), set()
    for _ in range(1500):
        answer = bytearray(draw.choice(ANSWERS))
        for _ in range(draw.randint(1, 6)):
            place = draw.randrange(len(answer) + 1)
            noise = bytes(draw.choice(b" \t\r\n;,:=abc\x00\xff") for _ in range(draw.randint(0, 6)))
            answer[place : place + draw.randint(0, 8)] = noise
        try:
            await StrictClient().get(Port(bytes(answer)))
            seen.add("answered")
        except BelljarError as problem:
            seen.add(problem.code)
    assert seen == {"answered", "sandbox_error"}
