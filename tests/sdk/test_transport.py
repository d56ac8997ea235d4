"""What can go wrong between client and server, with a server that does all of it. Both kinds of client, the same outcome."""

from __future__ import annotations

import asyncio
import base64
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import belljar
from belljar import errors
from belljar.sdk import retrying
from belljar.sdk.errors import Lost
from tests.sdk.raw_server import RawServer, Script, reply

SANDBOX = {"id": "sb-1", "template": "base", "cpu": 1, "memory_mb": 512, "status": "running", "run": "shell", "persistent": False}
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
Serve = Callable[..., RawServer]


@pytest.fixture
def serve() -> Iterator[Serve]:
    running: list[RawServer] = []

    def start(*scripts: Script) -> RawServer:
        running.append(RawServer(*scripts))
        return running[-1]

    yield start
    for server in running:
        server.close()


class Plain:
    """The calls of a test, made without async."""

    def __call__(self, url: str, work: Callable[[Any], Any], **options: Any) -> Any:
        with belljar.Client(url, **options) as client:
            return work(client)


class Waiting:
    """The same calls, awaited."""

    def __call__(self, url: str, work: Callable[[Any], Any], **options: Any) -> Any:
        async def main() -> Any:
            async with belljar.AsyncClient(url, **options) as client:
                return await work(client)

        return asyncio.run(main())


@pytest.fixture(params=[Plain(), Waiting()], ids=["sync", "async"])
def ask(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_no_server_is_said_with_the_address_and_what_to_do(ask: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(belljar.APIConnectionError) as caught:
        ask(f"http://127.0.0.1:{port}", lambda client: client.sandboxes.list())
    assert f"http://127.0.0.1:{port}" in str(caught.value) and "belljar serve --dev" in str(caught.value)
    assert isinstance(caught.value, errors.ServerUnreachable) and caught.value.retry == "yes"


@pytest.mark.parametrize(
    "script",
    [
        None,
        b"garbage\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n[",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nabcd",
        reply(200, b"<html>a router</html>"),
        reply(200, b"[" * 100_000),
    ],
    ids=["dropped", "garbage", "cut", "bad chunk", "bad gzip", "no json", "deep json"],
)
def test_an_answer_that_cannot_be_read_is_one_that_was_lost(ask: Any, serve: Serve, script: bytes | None) -> None:
    with pytest.raises(belljar.ConnectionError) as caught:
        ask(serve(script).url, lambda client: client.sandboxes.list())
    assert isinstance(caught.value, errors.AnswerLost) and caught.value.retry == "unknown"


@pytest.mark.parametrize("body", [[1], "text", 7, None, {"unexpected": True}])
def test_an_answer_of_another_shape_is_lost_too(ask: Any, serve: Serve, body: Any) -> None:
    with pytest.raises(errors.AnswerLost):
        ask(serve(reply(201, body)).url, lambda client: client.sandboxes.create("base"))
    with pytest.raises(errors.AnswerLost):
        ask(serve(reply(200, body)).url, lambda client: client.sandboxes.get("sb-1"))


def test_silence_has_an_end(ask: Any, serve: Serve) -> None:
    over = threading.Event()
    server = serve(lambda connection: over.wait(60))
    with pytest.raises(errors.AnswerLost, match="in time"):
        ask(server.url, lambda client: client.me(), timeout=0.3)
    over.set()


def test_keys_and_who_asks(ask: Any, serve: Serve) -> None:
    server = serve(reply(200, {}), reply(401, {"error": "missing token", "code": "unauthorized"}))
    ask(server.url, lambda client: client.me(), api_key="pds_1")
    with pytest.raises(belljar.AuthError, match="BELLJAR_API_KEY"):
        ask(server.url, lambda client: client.me(), api_key="")
    first, second = (request.lower() for request in server.requests)
    assert "authorization: bearer pds_1" in first and "user-agent: belljar-py/" in first
    assert "authorization" not in second


def test_request_details_are_in_the_error(ask: Any, serve: Serve) -> None:
    server = serve(reply(404, {"error": "none", "code": "snapshot_not_found"}, "X-Request-Id: req-7"))
    with pytest.raises(errors.SnapshotNotFound) as caught:
        ask(server.url, lambda client: client.snapshots.get("snap-1"))
    assert caught.value.details == {"method": "GET", "path": "/snapshots/snap-1", "request_id": "req-7"}


def test_a_redirect_is_not_followed(ask: Any, serve: Serve) -> None:
    server = serve(reply(302, b"", "Location: http://127.0.0.1:1/elsewhere"))
    with pytest.raises(belljar.PandastackError) as caught:
        ask(server.url, lambda client: client.me(), api_key="pds_secret")
    assert caught.value.details["location"] == "http://127.0.0.1:1/elsewhere"


@pytest.fixture
def no_jitter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrying, "FIRST_JITTER_S", 0.0)
    monkeypatch.setattr(retrying, "FLOOR_507_S", 0.01)


def test_a_create_that_does_not_fit_is_tried_again(ask: Any, serve: Serve, no_jitter: None) -> None:
    refusals = [
        reply(503, {"error": "busy", "code": "host_busy"}, "Retry-After: 0.01"),
        reply(507, {"error": "no memory", "code": "host_memory_short"}),
        reply(429, {"error": "slow down", "code": "rate_limited"}, "Retry-After: 0.01"),
    ]
    server, told = serve(*refusals, reply(201, SANDBOX)), list[belljar.CreateRetryEvent]()
    made = ask(server.url, lambda client: client.sandboxes.create("base"), on_create_retry=told.append)
    assert made.id == "sb-1"
    assert [(event.status_code, event.attempt, event.error) for event in told] == [
        (503, 1, "busy"),
        (507, 2, "no memory"),
        (429, 3, "slow down"),
    ]


@pytest.mark.parametrize("refusal", [reply(503, {"error": "x"}), reply(500, {"error": "x"}), reply(429, {"error": "x"}), None])
def test_what_may_have_been_done_is_not_tried_again(ask: Any, serve: Serve, refusal: bytes | None) -> None:
    server = serve(refusal, reply(201, SANDBOX))
    with pytest.raises(belljar.PandastackError):
        ask(server.url, lambda client: client.sandboxes.create("base"))
    assert len(server.requests) == 1


def test_the_last_refusal_is_raised_when_the_time_is_over(ask: Any, serve: Serve, no_jitter: None) -> None:
    server = serve(*[reply(507, {"error": "no memory", "code": "host_memory_short"})] * 500)
    with pytest.raises(errors.HostMemoryShort):
        ask(server.url, lambda client: client.sandboxes.create("base"), max_create_retry_seconds=0.3)
    assert len(server.requests) > 1
    before = len(server.requests)
    with pytest.raises(errors.HostMemoryShort):
        ask(server.url, lambda client: client.sandboxes.create("base"), max_create_retry_seconds=0)
    assert len(server.requests) == before + 1


def test_other_calls_wait_only_when_there_were_too_many(ask: Any, serve: Serve, no_jitter: None) -> None:
    slow = reply(429, {"error": "slow down", "code": "rate_limited"}, "Retry-After: 0.01")
    assert ask(serve(slow, reply(200, {"workspace": "w"})).url, lambda client: client.me()) == {"workspace": "w"}
    with pytest.raises(belljar.ServerError):
        ask(serve(reply(507, {"error": "x"}), reply(200, {})).url, lambda client: client.me())
    streamed = STREAM + b'event: exit\ndata: {"exit_code":7}\n\n'
    assert ask(serve(slow, streamed).url, lambda client: box(client).exec_stream("x")) == 7


def test_a_create_can_be_cancelled(serve: Serve) -> None:
    refused, cancel = reply(503, {"error": "busy"}, "Retry-After: 30"), threading.Event()
    server = serve(*[refused] * 5)
    client = belljar.Client(server.url, on_create_retry=lambda event: cancel.set())
    began = time.monotonic()
    with pytest.raises(belljar.CreateCancelled, match="busy") as caught:
        client.sandboxes.create("base", cancel=cancel)
    assert isinstance(caught.value.__cause__, belljar.ServerError) and time.monotonic() - began < 25
    with pytest.raises(belljar.CreateCancelled, match="before it was sent"):
        client.sandboxes.create("base", cancel=cancel)
    with pytest.raises(ValueError, match=r"threading\.Event"):
        client.sandboxes.create("base", cancel=asyncio.Event())  # type: ignore[arg-type]
    assert len(server.requests) == 1


async def test_an_awaited_create_can_be_cancelled_too(serve: Serve) -> None:
    server, cancel = serve(*[reply(503, {"error": "busy"}, "Retry-After: 30")] * 5), asyncio.Event()
    async with belljar.AsyncClient(server.url, on_create_retry=lambda event: cancel.set()) as client:
        with pytest.raises(belljar.CreateCancelled, match="busy"):
            await client.sandboxes.create("base", cancel=cancel)
        with pytest.raises(ValueError, match=r"asyncio\.Event"):
            await client.sandboxes.create("base", cancel=threading.Event())  # type: ignore[arg-type]


def box(client: Any) -> Any:
    kind = belljar.AsyncSandbox if isinstance(client, belljar.AsyncClient) else belljar.Sandbox
    return kind(id="sb-1", client=client)


def test_a_command_whose_stream_breaks_off_is_never_a_success(ask: Any, serve: Serve) -> None:
    server = serve(STREAM + b'event: stdout\ndata: {"chunk":"half"}\n\nevent: stderr\ndata: {"chunk":"e"}\n\n')
    with pytest.raises(belljar.ExecInterrupted) as caught:
        ask(server.url, lambda client: box(client).exec_stream("x"))
    assert (caught.value.partial_stdout, caught.value.partial_stderr) == ("half", "e")


def test_an_error_in_a_stream_is_raised(ask: Any, serve: Serve) -> None:
    late = STREAM + b'event: error\ndata: {"error":"command timeout after 1s","code":"deadline_exceeded"}\n\n'
    gone = STREAM + b'event: error\ndata: {"error":"it died","code":"sandbox_gone"}\n\n'
    server = serve(late, gone, reply(404, {"error": "none", "code": "sandbox_not_found"}))
    with pytest.raises(belljar.SandboxTimeout):
        ask(server.url, lambda client: box(client).exec_stream("x"))
    with pytest.raises(errors.SandboxGone, match="it died"):
        ask(server.url, lambda client: box(client).exec_stream("x"))
    with pytest.raises(belljar.NotFoundError):
        ask(server.url, lambda client: box(client).exec_stream("x"))


def test_a_process_whose_output_breaks_off_can_be_read_on(ask: Any, serve: Serve) -> None:
    def chunk(data: bytes, offset: int) -> bytes:
        return b'event: stdout\ndata: {"data":"%s","offset":%d}\n\n' % (base64.b64encode(data), offset)

    joined = b'event: attached\ndata: {"id":"p1","pid":7,"stdout_offset":0,"stderr_offset":0,"dropped":{"stdout":0,"stderr":0}}\n\n'
    server = serve(STREAM + joined + chunk(b"one", 0), STREAM + chunk(b"two", 3) + b'event: exit\ndata: {"exit_code":0}\n\n')

    def plain(client: Any) -> Any:
        process, seen = box(client).processes.attach("p1"), []
        with pytest.raises(errors.AnswerLost):
            for piece in process:
                seen.append(piece.data)
        return seen + [piece.data for piece in process], process

    async def waiting(client: Any) -> Any:
        process, seen = box(client).processes.attach("p1"), []
        with pytest.raises(errors.AnswerLost):
            async for piece in process:
                seen.append(piece.data)
        return seen + [piece.data async for piece in process], process

    seen, process = ask(server.url, plain if isinstance(ask, Plain) else waiting)
    assert (seen, process.exit.exit_code, process.pid) == ([b"one", b"two"], 0, 7)
    assert "stdout_offset=3" in server.requests[1]


def test_leaving_a_stream_closes_its_connection(ask: Any, serve: Serve) -> None:
    closed = threading.Event()

    def endless(connection: socket.socket) -> None:
        try:
            connection.sendall(STREAM)
            while True:
                connection.sendall(b'event: event\ndata: {"seq":1}\n\n')
                time.sleep(0.02)
        except OSError:
            closed.set()

    def plain(client: Any) -> None:
        with client.events(follow=True) as events:
            next(events)

    async def waiting(client: Any) -> None:
        async with client.events(follow=True) as events:
            await anext(events)

    server = serve(endless)
    ask(server.url, plain if isinstance(ask, Plain) else waiting)
    assert closed.wait(30), "the connection stayed open"


def test_pages_are_fetched_one_after_the_other(ask: Any, serve: Serve) -> None:
    server = serve(reply(200, [SANDBOX, {**SANDBOX, "id": "sb-2"}], "X-Next-Cursor: more"), reply(200, [{**SANDBOX, "id": "sb-3"}]))

    def plain(client: Any) -> list[str]:
        return [found.id for found in client.sandboxes.iterate(metadata={"team": "a b"}, status="running", page_size=2)]

    async def waiting(client: Any) -> list[str]:
        found = client.sandboxes.iterate(metadata={"team": "a b"}, status="running", page_size=2)
        return [sandbox.id async for sandbox in found]

    assert ask(server.url, plain if isinstance(ask, Plain) else waiting) == ["sb-1", "sb-2", "sb-3"]
    assert "metadata.team=a+b&status=running&limit=2" in server.requests[0].replace("%20", "+")
    assert "cursor=more" in server.requests[1]


def test_missing_parts_say_that_they_are_missing(ask: Any, serve: Serve) -> None:
    client = belljar.Client("http://127.0.0.1:1")
    for use in (
        lambda: client.volumes.create("v", 1),
        lambda: client.templates.build("x"),
        lambda: belljar.Volume.get_or_create(name="v"),
    ):
        with pytest.raises(errors.NotSupported, match="this version"):
            use()
    with pytest.raises(AttributeError):
        _ = client.templates.nothing


def test_a_sandbox_that_was_not_created_yet_says_so() -> None:
    idle = belljar.AsyncSandbox(template="base", client=belljar.AsyncClient("http://127.0.0.1:1"))
    with pytest.raises(ValueError, match="await"):
        asyncio.run(idle.exec("true"))


def test_a_default_client_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BELLJAR_API_URL", "http://127.0.0.1:9")
    belljar.set_default_client(None)
    made = belljar.get_default_client()
    assert made is belljar.get_default_client() and made.api_url == "http://127.0.0.1:9"
    other = belljar.Client("http://127.0.0.1:10")
    belljar.set_default_client(other)
    assert belljar.Sandbox(id="sb-1")._client is other
    belljar.set_default_client(None)


async def test_what_goes_wrong_inside_is_what_is_raised(caplog: pytest.LogCaptureFixture) -> None:
    """And not that the sandbox could not be ended then."""
    with pytest.raises(KeyError), belljar.Sandbox(id="sb-1", client=belljar.Client("http://127.0.0.1:1")):
        raise KeyError
    with pytest.raises(KeyError):
        async with belljar.AsyncClient("http://127.0.0.1:1") as client, belljar.AsyncSandbox(id="sb-1", client=client):
            raise KeyError
    assert [record.getMessage()[:30] for record in caplog.records] == ["sandbox sb-1 could not be ende"] * 2
    with pytest.raises(belljar.ConnectionError), belljar.Sandbox(id="sb-1", client=belljar.Client("http://127.0.0.1:1")):
        pass


def test_an_error_of_a_callback_is_its_own(ask: Any, serve: Serve) -> None:
    """Even one that looks like a lost connection."""
    server = serve(STREAM + b'event: stdout\ndata: {"chunk": "x"}\n\n')

    def fail(text: str) -> None:
        raise Lost("of another server")

    kind = belljar.Sandbox if isinstance(ask, Plain) else belljar.AsyncSandbox
    with pytest.raises(Lost, match=r"^of another server"):
        ask(server.url, lambda client: kind(id="sb-1", client=client).exec_stream("x", on_stdout=fail))


def test_following_a_sandbox_ends_when_it_is_deleted(ask: Any, serve: Serve) -> None:
    kinds = ("sandbox.created", "sandbox.deleted")
    events = b"".join(b'event: event\ndata: {"seq": 1, "type": "%s"}\n\n' % kind.encode() for kind in kinds)
    held = threading.Event()

    def stay(connection: socket.socket) -> None:
        connection.sendall(STREAM + events)
        held.wait(60)

    async def waiting(client: Any) -> list[str]:
        return [event.type async for event in belljar.AsyncSandbox(id="sb-1", client=client).events(follow=True)]

    def plain(client: Any) -> list[str]:
        return [event.type for event in belljar.Sandbox(id="sb-1", client=client).events(follow=True)]

    assert ask(serve(stay).url, plain if isinstance(ask, Plain) else waiting) == list(kinds)
    held.set()


def test_a_stream_that_is_being_read_cannot_be_closed_by_others(serve: Serve) -> None:
    held, reading = threading.Event(), threading.Event()

    def stay(connection: socket.socket) -> None:
        connection.sendall(STREAM + b": ping\n\n")
        reading.set()
        held.wait(60)

    with belljar.Client(serve(stay).url) as client:
        stream = client.events(follow=True)
        reader = threading.Thread(target=lambda: next(stream, None))
        reader.start()
        assert reading.wait(60)
        with pytest.raises(belljar.BadRequestError, match="being read"):
            stream.close()
        held.set()
        reader.join()


def test_a_stream_that_fails_tells_which_request_it_was(ask: Any, serve: Serve) -> None:
    head = STREAM.replace(b"\r\n\r\n", b"\r\nX-Request-Id: req-7\r\n\r\n")
    server = serve(head + b'event: failed\ndata: {"error": "gone", "code": "sandbox_gone"}\n\n')
    kind = belljar.Sandbox if isinstance(ask, Plain) else belljar.AsyncSandbox
    with pytest.raises(errors.SandboxGone) as caught:
        ask(server.url, lambda client: kind(id="sb-1", client=client).contexts.run("x"))
    assert caught.value.details["request_id"] == "req-7"
