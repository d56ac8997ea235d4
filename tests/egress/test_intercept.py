"""Secrets that the host adds: TLS ends at the host for exactly those hosts, and the guest never sees a value."""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path

import h11
import pytest
from websockets.asyncio.server import ServerConnection
from websockets.asyncio.server import serve as serve_websockets
from websockets.client import ClientProtocol
from websockets.uri import parse_uri

from belljar.egress.authority import Authority
from belljar.egress.outlet import Ground, Outlet
from belljar.egress.policy import parse_policy
from belljar.egress.secrets import Secrets, parse_secrets
from belljar.egress.tls import TlsStream
from belljar.errors import InvalidInput, NotFound
from tests.egress.conftest import MakeGuest
from tests.egress.dns_server import DnsServer
from tests.egress.net_guest import Connected, NetGuest
from tests.egress.servers import Servers, TestAuthority

VALUE = "Bearer s3cr3t-value-that-nobody-sees"
DEADLINE_S = 30


class GuestStream:
    """A program's connection in the guest, as a stream."""

    def __init__(self, connection: Connected) -> None:
        self._connection = connection

    async def read(self, size: int = 65536) -> bytes:
        while not self._connection.channel.received and not self._connection.over:
            self._connection.channel.news.clear()
            await self._connection.channel.news.wait()
        return await self._connection.read(len(self._connection.channel.received))

    async def write(self, data: bytes) -> None:
        await self._connection.write(data)

    async def end(self) -> None:
        self._connection.end()

    async def abort(self) -> None:
        self._connection.channel.reset("cancelled", "gone")


class Api:
    """An HTTPS server that remembers what it was asked."""

    def __init__(self) -> None:
        self.requests: list[tuple[h11.Request, bytes]] = []
        self.connections = 0
        self.answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        http = h11.Connection(h11.SERVER)
        body = b""
        while True:
            event = http.next_event()
            if event is h11.NEED_DATA:
                http.receive_data(await reader.read(65536))
            elif isinstance(event, h11.Request):
                request, body = event, b""
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                self.requests.append((request, body))
                writer.write(self.answer)
                await writer.drain()
                if b"connection: close" in self.answer.lower() or b"content-length" not in self.answer.lower():
                    return
                http = h11.Connection(h11.SERVER)
            else:
                return

    def header(self, name: bytes, place: int = -1) -> list[bytes]:
        return [value for key, value in self.requests[place][0].headers if key == name]


class Lab:
    """An API behind a name, an outlet with a secret for it, and a guest that trusts the outlet's authority."""

    def __init__(self, guest: NetGuest, outlet: Outlet, api: Api, port: int) -> None:
        self.guest, self.outlet, self.api, self.port = guest, outlet, api, port

    async def open(self, host: str = "api.test", sni: str | None = None) -> TlsStream:
        assert self.outlet.authority is not None
        context = ssl.create_default_context(cadata=self.outlet.authority.certificate)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        stream = TlsStream(GuestStream(await self.guest.connected(host, self.port)), context, host=sni or host, server_side=False)
        async with asyncio.timeout(DEADLINE_S):
            await stream.handshake()
        return stream

    @property
    def host(self) -> str:
        return f"api.test:{self.port}"

    async def ask(self, stream: TlsStream, head: str, body: bytes = b"") -> tuple[int, bytes]:
        """One request as it is, and status and body of its answer."""
        await stream.write(head.replace("\n", "\r\n").encode() + b"\r\n\r\n" + body)
        return await self.answer(stream, head.split()[0])

    async def answer(self, stream: TlsStream, method: str = "GET") -> tuple[int, bytes]:
        http = h11.Connection(h11.CLIENT)
        http.send(h11.Request(method=method, target="/", headers=[("host", "x")]))
        http.send(h11.EndOfMessage())
        status, content = 0, b""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                event = http.next_event()
                if event is h11.NEED_DATA:
                    http.receive_data(await stream.read())
                elif isinstance(event, h11.Response):
                    status = event.status_code
                elif isinstance(event, h11.Data):
                    content += event.data
                elif isinstance(event, h11.EndOfMessage):
                    return status, content
                elif isinstance(event, h11.ConnectionClosed):
                    raise AssertionError("closed without an answer")


@pytest.fixture
def authority(tmp_path: Path) -> TestAuthority:
    return TestAuthority(tmp_path)


@pytest.fixture
async def lab(serve: MakeGuest, ground: Ground, dns: DnsServer, servers: Servers, authority: TestAuthority) -> Lab:
    ground.ca_file = authority.file
    dns.names |= {"api.test": [("A", "127.0.0.1")], "other.test": [("A", "127.0.0.1")]}
    api = Api()
    port = await servers.start(api.handle, authority.context("api.test"))
    secrets = parse_secrets([{"host": f"api.test:{port}", "header": "Authorization", "value": VALUE}])
    outlet = Outlet(ground, parse_policy("open"), secrets, Authority.create("sb-1"))
    return Lab(await serve(outlet), outlet, api, port)


async def test_every_request_of_a_connection_carries_the_header(lab: Lab) -> None:
    stream = await lab.open()
    for number in range(3):
        assert await lab.ask(stream, f"GET /{number} HTTP/1.1\nHost: {lab.host}\nX-Own: yes") == (200, b"ok")
        assert lab.api.header(b"authorization") == [VALUE.encode()]
        assert lab.api.header(b"x-own") == [b"yes"]
        assert lab.api.requests[-1][0].target == f"/{number}".encode()
    assert lab.api.connections == 1


async def test_the_guests_own_header_is_replaced(lab: Lab) -> None:
    stream = await lab.open()
    await lab.ask(stream, f"GET / HTTP/1.1\nHost: {lab.host}\nauthorization: mine\nAUTHORIZATION: too")
    assert lab.api.header(b"authorization") == [VALUE.encode()]


async def test_bodies_of_both_kinds_pass(lab: Lab) -> None:
    stream = await lab.open()
    large = bytes(range(256)) * 4096
    head = f"POST / HTTP/1.1\nHost: {lab.host}\nContent-Length: {len(large)}"
    assert await lab.ask(stream, head, large) == (200, b"ok")
    assert lab.api.requests[-1][1] == large
    chunked = f"POST / HTTP/1.1\nHost: {lab.host}\nTransfer-Encoding: chunked"
    assert await lab.ask(stream, chunked, b"5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n") == (200, b"ok")
    assert lab.api.requests[-1][1] == b"hello world"
    assert lab.api.header(b"authorization") == [VALUE.encode()]


async def test_answers_of_every_kind_pass(lab: Lab) -> None:
    stream = await lab.open()
    lab.api.answer = b"HTTP/1.1 204 No Content\r\ncontent-length: 0\r\n\r\n"
    assert await lab.ask(stream, f"DELETE / HTTP/1.1\nHost: {lab.host}") == (204, b"")
    lab.api.answer = b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n"
    assert await lab.ask(stream, f"HEAD / HTTP/1.1\nHost: {lab.host}") == (200, b"")
    lab.api.answer = b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
    assert await lab.ask(stream, f"GET / HTTP/1.1\nHost: {lab.host}") == (200, b"ok")
    lab.api.answer = b"HTTP/1.1 200 OK\r\n\r\nuntil the end"
    assert await lab.ask(stream, f"GET / HTTP/1.1\nHost: {lab.host}") == (200, b"until the end")
    assert await stream.read() == b""


async def test_an_answer_streams_as_it_comes(lab: Lab, servers: Servers, authority: TestAuthority) -> None:
    go_on = asyncio.Event()

    async def slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n")
        await asyncio.wait_for(go_on.wait(), DEADLINE_S)
        writer.write(b"6\r\nsecond\r\n0\r\n\r\n")
        await writer.drain()
        await reader.read()

    lab.port = await servers.start(slowly, authority.context("api.test"))
    lab.outlet.secrets = lab.outlet.secrets.with_secret(lab.host, "X-Key", "k")
    stream = await lab.open()
    await stream.write(f"GET / HTTP/1.1\r\nHost: {lab.host}\r\n\r\n".encode())
    seen = b""
    async with asyncio.timeout(DEADLINE_S):
        while b"first" not in seen:
            seen += await stream.read()
        assert b"second" not in seen
        go_on.set()
        while b"second" not in seen:
            seen += await stream.read()


async def test_a_body_waits_for_the_server_to_want_it(lab: Lab, servers: Servers, authority: TestAuthority) -> None:
    async def careful(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await reader.readexactly(5)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n" + body)
        await writer.drain()
        await reader.read()

    lab.port = await servers.start(careful, authority.context("api.test"))
    lab.outlet.secrets = lab.outlet.secrets.with_secret(lab.host, "X-Key", "k")
    stream = await lab.open()
    await stream.write(f"POST / HTTP/1.1\r\nHost: {lab.host}\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n".encode())
    async with asyncio.timeout(DEADLINE_S):
        assert b"100" in await stream.read()
    await stream.write(b"hello")
    assert await lab.answer(stream) == (200, b"hello")


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("GET / HTTP/1.1\nHost: other.test", 421),
        ("GET / HTTP/1.1\nHost: api.test.evil.test", 421),
        ("GET / HTTP/1.0", 421),
        ("GET https://other.test/ HTTP/1.1\nHost: HOST", 400),
        ("CONNECT other.test:443 HTTP/1.1\nHost: HOST", 405),
        ("TRACE / HTTP/1.1\nHost: HOST", 405),
        ("GET / HTTP/1.1\nHost: HOST\nHost: HOST", 400),
        ("GET / HTTP/1.1\nHost: HOST\nContent-Length: 5\nContent-Length: 6", 400),
        ("GET / HTTP/1.1\nHost: HOST\nTransfer-Encoding: gzip", 400),
        ("GET / HTTP/1.1\nHost: HOST\nBad Header: x", 400),
        ("nonsense", 400),
        ("GET / HTTP/1.1\nHost: HOST, other.test", 421),
        ("GET / HTTP/1.1\nHost: other.test@HOST", 421),
        ("GET / HTTP/1.1\nHost: HOST.", 421),
        ("GET / HTTP/1.1\nHost:", 421),
        ("GET / HTTP/1.1\nHost : HOST", 400),
        ("GET / HTTP/1.1\n Host: HOST", 400),
        ("GET / HTTP/1.1\nHost: HOST\nX: a\0b", 400),
        ("GET //other.test/ HTTP/1.1\nX-Forwarded-Host: other.test\nHost: other.test", 421),
        ("GET http://HOST/ HTTP/1.1\nHost: HOST", 400),
        ("GET / HTTP/1.1\nHost: HOST\nContent-Length: -1", 400),
        ("GET / HTTP/1.1\nHost: HOST\nContent-Length: +1", 400),
        ("GET / HTTP/1.1\nHost: HOST\nContent-Length: 1, 2", 400),
        ("GET / HTTP/1.1\nHost: HOST\nTransfer-Encoding: chunked, identity", 400),
        ("GET / HTTP/1.1\nHost: HOST\nTransfer-Encoding: xchunked", 400),
        ("GET / HTTP/1.1\nHost: HOST\nTransfer-Encoding: chunked\nTransfer-Encoding: chunked", 400),
        ("GET * HTTP/1.1\nHost: HOST", 400),
        ("PRI * HTTP/2.0\nHost: HOST", 505),
        ("GET / HTTP/9.9\nHost: HOST", 505),
    ],
)
async def test_what_is_not_for_this_host_gets_no_secret(lab: Lab, head: str, status: int) -> None:
    stream = await lab.open()
    got, _ = await lab.ask(stream, head.replace("HOST", lab.host))
    assert got == status
    assert not lab.api.requests


async def test_nothing_can_be_smuggled_behind_a_request(lab: Lab) -> None:
    """Both a length and chunks: one reading ends before the hidden request, the other has it as its body."""
    stream = await lab.open()
    hidden = b"GET /hidden HTTP/1.1\r\nHost: other.test\r\n\r\n"
    head = f"POST / HTTP/1.1\nHost: {lab.host}\nTransfer-Encoding: chunked\nContent-Length: 5"
    assert (await lab.ask(stream, head, b"0\r\n\r\n" + hidden))[0] == 400
    assert not lab.api.requests
    # Two in one go are two requests, and the second is judged like the first.
    stream = await lab.open()
    first = f"GET /first HTTP/1.1\r\nHost: {lab.host}\r\n\r\n".encode()
    await stream.write(first + hidden)
    seen = b""
    async with asyncio.timeout(DEADLINE_S):
        while data := await stream.read():
            seen += data
    assert b" 200 " in seen and b" 421 " in seen
    assert [request.target for request, _ in lab.api.requests] == [b"/first"]


async def test_lines_that_are_folded_and_trailers_bring_no_header_of_their_own(lab: Lab) -> None:
    stream = await lab.open()
    folded = f"POST / HTTP/1.1\nHost: {lab.host}\nX-Own: a\n Authorization: mine\n\tHost: other.test\nTransfer-Encoding: chunked"
    body = b'2;ext="\\r"\r\nhi\r\n0\r\nAuthorization: mine\r\nHost: other.test\r\nContent-Length: 9\r\n\r\n'
    assert await lab.ask(stream, folded, body) == (200, b"ok")
    request, content = lab.api.requests[-1]
    assert content == b"hi" and lab.api.header(b"host") == [lab.host.encode()]
    assert lab.api.header(b"authorization") == [VALUE.encode()] and not lab.api.header(b"content-length")
    assert b"mine" in lab.api.header(b"x-own")[0] and len(request.headers) == 4


async def test_after_an_upgrade_nothing_gets_the_header_any_more(lab: Lab, servers: Servers, authority: TestAuthority) -> None:
    """What comes then is not looked into, and so it must not be helped either: HTTP/2 over h2c, a proxy behind a proxy."""
    seen = bytearray()

    async def switch(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.extend(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n")
        seen.extend(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"heard")
        await writer.drain()

    lab.port = await servers.start(switch, authority.context("api.test"))
    lab.outlet.secrets = lab.outlet.secrets.with_secret(lab.host, "Authorization", VALUE)
    stream = await lab.open()
    await stream.write(f"GET / HTTP/1.1\r\nHost: {lab.host}\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n".encode())
    got = b""
    async with asyncio.timeout(DEADLINE_S):
        while b"\r\n\r\n" not in got:
            got += await stream.read()
        await stream.write(b"GET /2 HTTP/1.1\r\nHost: other.test\r\n\r\n")
        while b"heard" not in got:
            got += await stream.read()
    assert seen.count(VALUE.encode()) == 1 and seen.endswith(b"GET /2 HTTP/1.1\r\nHost: other.test\r\n\r\n")


async def test_an_upgrade_that_nobody_asked_for_is_no_upgrade(lab: Lab) -> None:
    lab.api.answer = b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n"
    stream = await lab.open()
    status, body = await lab.ask(stream, f"GET / HTTP/1.1\nHost: {lab.host}")
    assert status == 502 and VALUE.encode() not in body


async def test_another_name_inside_tls_changes_nothing(lab: Lab) -> None:
    """The connection was granted for one host, and that is the one that answers, whatever the guest calls it in its greeting."""
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        await lab.open("api.test", sni="other.test")
    assert not lab.api.requests


async def test_our_own_refusals_do_not_say_the_secret(lab: Lab) -> None:
    stream = await lab.open()
    head = f"GET /{'x' * 200_000} HTTP/1.1\nHost: {lab.host}"
    status, body = await lab.ask(stream, head)
    assert status == 400 and b"s3cr3t" not in body
    lab.api.answer = b"\0nonsense" + VALUE.encode()
    stream = await lab.open()
    status, body = await lab.ask(stream, f"GET / HTTP/1.1\nHost: {lab.host}")
    assert status == 502 and b"s3cr3t" not in body


async def test_a_websocket_passes(lab: Lab, authority: TestAuthority) -> None:
    seen: list[str | None] = []

    async def shout(connection: ServerConnection) -> None:
        assert connection.request is not None
        seen.append(connection.request.headers.get("Authorization"))
        async for message in connection:
            await connection.send(str(message).upper())

    async with serve_websockets(shout, "127.0.0.1", 0, ssl=authority.context("api.test")) as server:
        lab.port = next(iter(server.sockets)).getsockname()[1]
        lab.outlet.secrets = lab.outlet.secrets.with_secret(lab.host, "Authorization", VALUE)
        stream = await lab.open()
        client = ClientProtocol(parse_uri(f"wss://{lab.host}/"))
        client.send_request(client.connect())
        received: list[str] = []
        async with asyncio.timeout(DEADLINE_S):
            while not received:
                for data in client.data_to_send():
                    await stream.write(data)
                client.receive_data(await stream.read())
                for event in client.events_received():
                    if hasattr(event, "status_code"):
                        assert event.status_code == 101
                        client.send_text(b"hello")
                    else:
                        received.append(event.data.decode())
        assert received == ["HELLO"] and seen == [VALUE]
        await stream.abort()


async def test_a_server_with_a_wrong_certificate_gets_nothing(lab: Lab, servers: Servers, authority: TestAuthority) -> None:
    lab.port = await servers.start(lab.api.handle, authority.context("other.test"))
    lab.outlet.secrets = lab.outlet.secrets.with_secret(lab.host, "Authorization", VALUE)
    answer = await lab.guest.refused("api.test", lab.port)
    assert answer["verdict"] == "failed" and "certificate" in answer["reason"]
    assert not lab.api.requests


async def test_only_the_named_host_and_port_are_intercepted(lab: Lab, servers: Servers, authority: TestAuthority) -> None:
    """Others speak TLS with the server itself, whose certificate the guest's own authority did not make."""
    for host, port in (("other.test", lab.port), ("api.test", await servers.start(lab.api.handle, authority.context("api.test")))):
        context = ssl.create_default_context(cafile=str(authority.file))
        stream = TlsStream(GuestStream(await lab.guest.connected(host, port)), context, host="api.test", server_side=False)
        await stream.handshake()
        await lab.ask(stream, f"GET / HTTP/1.1\nHost: {host}")
        assert lab.api.header(b"authorization") == []
        await stream.abort()


async def test_a_server_that_closes_between_requests_closes_the_guests_side(lab: Lab) -> None:
    lab.api.answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok"
    stream = await lab.open()
    assert await lab.ask(stream, f"GET / HTTP/1.1\nHost: {lab.host}") == (200, b"ok")
    async with asyncio.timeout(DEADLINE_S):
        assert await stream.read() == b""
    (connection,) = lab.guest._accepted.values()
    await asyncio.sleep(0.3)
    assert not connection.was_reset.is_set(), "a reset would take away what the program has not read yet"
    connection.end()
    async with asyncio.timeout(DEADLINE_S):
        while lab.outlet.open:
            await asyncio.sleep(0.01)


async def test_plain_text_where_tls_is_expected_ends_the_connection(lab: Lab) -> None:
    connection = await lab.guest.connected("api.test", lab.port)
    await connection.write(f"GET / HTTP/1.1\r\nHost: {lab.host}\r\n\r\n".encode())
    async with asyncio.timeout(DEADLINE_S):
        await connection.read_all()
    assert not lab.api.requests


async def test_values_are_nowhere_to_be_seen(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    stream = await lab.open()
    await lab.ask(stream, f"GET / HTTP/1.1\nHost: {lab.host}")
    with pytest.raises(InvalidInput) as caught:
        lab.outlet.secrets.with_secret("api.test", "Authorization", VALUE + "\n")
    shown = [repr(lab.outlet.secrets), str(lab.outlet.secrets.shown()), str(lab.outlet.log.lines()), caplog.text, str(caught.value)]
    assert not any("s3cr3t" in text for text in shown)


# -- what is a secret ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["", "*.test", "1.2.3.4", "a.test:0", "a.test:x", "a.test:443:1", "https://a.test", 7, "127.1"])
def test_hosts_that_cannot_have_secrets(host: object) -> None:
    with pytest.raises(InvalidInput):
        Secrets().with_secret(host, "X-Key", "v")


@pytest.mark.parametrize(
    "header", ["", "a b", "a:b", "Host", "content-length", "Transfer-Encoding", "CONNECTION", "x" * 200, 7, "ü"]
)
def test_headers_that_cannot_be_set(header: object) -> None:
    with pytest.raises(InvalidInput):
        Secrets().with_secret("a.test", header, "v")


@pytest.mark.parametrize("value", ["", "a\nb", "a\r\nX: y", "a\0b", " a", "a ", "ü", "x" * 9000, 7, None])
def test_values_that_no_header_can_carry(value: object) -> None:
    with pytest.raises(InvalidInput):
        Secrets().with_secret("a.test", "X-Key", value)


def test_secrets_are_set_changed_removed_and_kept() -> None:
    secrets = parse_secrets(
        [{"host": "A.test", "header": "X-Key", "value": "1"}, {"host": "a.test:8443", "header": "X-Key", "value": "2"}]
    )
    secrets = secrets.with_secret("a.test", "x-key", "3")
    assert secrets.headers("a.test", 443) == {"x-key": "3"} and secrets.headers("a.test", 8443) == {"X-Key": "2"}
    assert secrets.shown() == [{"host": "a.test", "header": "x-key"}, {"host": "a.test:8443", "header": "X-Key"}]
    assert Secrets(secrets.to_json()).headers("a.test", 443) == {"x-key": "3"}
    assert not secrets.without("a.test", "X-KEY").headers("a.test", 443)
    with pytest.raises(NotFound):
        secrets.without("b.test", "X-Key")
    with pytest.raises(InvalidInput):
        for number in range(100):
            secrets = secrets.with_secret("a.test", f"X-{number}", "v")


@pytest.mark.parametrize(
    "values", ["x", 7, [7], [{"host": "a.test"}], {"host": "a.test"}, [{"host": "a", "header": "b", "value": "c", "d": 1}]]
)
def test_what_is_no_list_of_secrets(values: object) -> None:
    with pytest.raises(InvalidInput):
        parse_secrets(values)


def test_an_authority_survives_being_written_down() -> None:
    made = Authority.create("sb-1")
    again = Authority.load(made.save())
    assert again.certificate == made.certificate and "PRIVATE" not in made.certificate
    assert Authority.create("sb-1").certificate != made.certificate
    again.server_context("a" * 60 + ".example-with-a-long-name.test")
