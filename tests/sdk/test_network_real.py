"""The SDK's network calls against a real server and a real sandbox: what it may reach, and who may reach it."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
import pytest

import belljar
from belljar import AsyncClient, AsyncSandbox, Client, Sandbox, errors
from belljar.settings import Settings
from tests.conftest import borrowed_home
from tests.egress.dns_server import DnsServer
from tests.egress.servers import TestAuthority
from tests.egress.web import Web
from tests.server.conftest import Server

WEB_PORT, ECHO_PORT, NOBODYS_PORT = 8000, 9000, 9999
DEADLINE_S = 120
SHOUT = f"""
import socket, threading
listener = socket.create_server(("127.0.0.1", {ECHO_PORT}))
def answer(peer):
    with peer:
        while data := peer.recv(65536):
            peer.sendall(data.upper())
while True:
    threading.Thread(target=answer, args=(listener.accept()[0],)).start()
"""


@dataclass
class World:
    """A server whose sandboxes may reach 127.0.0.1, and one of them, which may reach `good.test` and `api.test` alone."""

    server: Server
    box: Sandbox
    web: Web
    api: Web

    @property
    def key(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.server.token}"}

    @property
    def secret_host(self) -> str:
        return f"api.test:{self.api.port}"

    def fetch(self, url: str) -> belljar.ExecResult:
        return self.box.exec(f"curl -sS -m 90 {url}", timeout_seconds=100)


@contextmanager
def names() -> Iterator[DnsServer]:
    """A DNS server in a thread, so that tests may wait for what looks names up."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    dns = asyncio.run_coroutine_threadsafe(DnsServer().start(), loop).result(30)
    for name in ("good.test", "bad.test", "api.test"):
        dns.names[name] = [("A", "127.0.0.1")]
    yield dns
    loop.call_soon_threadsafe(dns.stop)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(30)
    loop.close()


@pytest.fixture(scope="module")
def world(own_settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder, authority = tmp_path_factory.mktemp("web"), TestAuthority(tmp_path_factory.mktemp("authority"))
    (folder / "file.txt").write_text("from outside")
    web, api = Web(folder), Web(folder, authority.context("api.test"))
    with names() as dns, borrowed_home(own_settings) as home:
        server = Server(
            home,
            BELLJAR_EGRESS_DNS=dns.address,
            BELLJAR_EGRESS_ALLOW_PRIVATE="127.0.0.1",
            BELLJAR_EGRESS_CA_FILE=str(authority.file),
        )
        with Client(server.url, server.token) as client:
            secret = {"host": f"api.test:{api.port}", "header": "X-Key", "value": "given-at-create"}
            allowed = ["good.test", "api.test"]
            with Sandbox("base", egress_allowlist=allowed, egress_secrets=[secret], client=client) as box:
                box.filesystem.write("/workspace/site/index.html", "<h1>seen</h1>")
                box.filesystem.write("/workspace/site/more/page.html", "below")
                box.filesystem.write("/workspace/shout.py", SHOUT)
                box.processes.start(f"cd /workspace/site && exec python3 -m http.server {WEB_PORT}")
                box.processes.start("exec python3 /workspace/shout.py")
                eventually(lambda: {WEB_PORT, ECHO_PORT} <= listening(box), "both servers listen")
                yield World(server, box, web, api)
        server.stop()
    web.stop()
    api.stop()


def eventually(done: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + DEADLINE_S
    while not done():
        assert time.monotonic() < end, f"never: {what}"
        time.sleep(0.2)


def listening(box: Sandbox) -> set[int]:
    return {port["port"] for port in box.ports.list() if port["listening"]}


# -- out ----------------------------------------------------------------------------------------------------------------------


def test_what_is_not_on_the_list_is_refused_and_told(world: World) -> None:
    assert world.fetch(f"http://good.test:{world.web.port}/file.txt").stdout == "from outside"
    refused = world.box.contexts.run("import urllib.request\nurllib.request.urlopen('http://bad.test/')", timeout_seconds=100)
    assert refused.error is not None and refused.error.name == "URLError"
    assert refused.notes[0].startswith("network: bad.test was refused: not on the allow list"), refused.notes
    seen = world.box.egress.get()
    assert (seen["mode"], seen["allow"]) == ("allow-list", ["good.test", "api.test"])
    assert seen["counters"]["refused"] >= 1 and seen["counters"]["allowed"] >= 1
    assert {("good.test", "allowed"), ("bad.test", "refused")} <= {(each["name"], each["verdict"]) for each in seen["connections"]}

    def told() -> bool:
        return any(event.type == "egress.denied" and event.payload["name"] == "bad.test" for event in world.box.events())

    eventually(told, "the refusal is among the events")


def test_a_policy_is_changed_while_it_runs(world: World) -> None:
    url = f"http://bad.test:{world.web.port}/file.txt"
    assert world.fetch(url).exit_code != 0
    changed = world.box.egress.set(mode="open", deny=["good.test"], limits={"connections": 7})
    assert (changed["mode"], changed["deny"], changed["limits"]["connections"]) == ("open", ["good.test"], 7)
    assert world.fetch(url).stdout == "from outside"
    back = world.box.egress.set(allow=["good.test", "api.test"], deny=(), limits={})
    assert (back["mode"], back["allow"], back["deny"], back["limits"]["connections"]) == (
        "allow-list",
        ["good.test", "api.test"],
        [],
        256,
    )
    with pytest.raises(errors.InvalidInput, match="mode"):
        world.box.egress.set(mode="shut")


def test_secrets_are_added_outside_and_never_shown(world: World) -> None:
    url = f"https://{world.secret_host}/echo"
    assert world.fetch(url).exit_code == 0
    assert world.api.requests[-1]["headers"]["x-key"] == "given-at-create"
    world.box.egress.set_secret(world.secret_host, "Authorization", "Bearer never-shown")
    answer = world.fetch(url)
    assert world.api.requests[-1]["headers"]["authorization"] == "Bearer never-shown"
    egress = world.box.egress.get()
    assert {secret["header"] for secret in egress["secrets"]} == {"X-Key", "Authorization"}
    everything = f"{egress} {answer} {list(world.box.events())} {world.box.refresh().data}"
    assert "never-shown" not in everything and "given-at-create" not in everything
    world.box.egress.remove_secret(world.secret_host, "Authorization")
    assert [secret["header"] for secret in world.box.egress.get()["secrets"]] == ["X-Key"]
    with pytest.raises(belljar.NotFoundError):
        world.box.egress.remove_secret(world.secret_host, "Authorization")


# -- in -----------------------------------------------------------------------------------------------------------------------


def test_ports_are_found_shared_and_hidden(world: World) -> None:
    found = {port["port"]: port for port in world.box.ports.list()}
    assert found[WEB_PORT]["process"] == "python3" and found[WEB_PORT]["source"] == "detected"
    assert world.box.preview_urls()[WEB_PORT] == world.box.preview_url(WEB_PORT) == found[WEB_PORT]["url"].rstrip("/")
    host = {"Host": world.box.preview_url(WEB_PORT).removeprefix("http://")}
    assert httpx.get(world.server.url, headers=host).status_code == 401
    assert httpx.get(world.server.url, headers={**host, **world.key}).text == "<h1>seen</h1>"
    shared = world.box.ports.expose(WEB_PORT, public=True, label="site")
    assert (shared["public"], shared["label"], shared["listening"]) == (True, "site", True)
    assert httpx.get(world.server.url, headers=host).text == "<h1>seen</h1>"
    world.box.ports.hide(WEB_PORT)
    assert httpx.get(world.server.url, headers=host).status_code == 401


def test_a_signed_link_needs_no_key(world: World) -> None:
    link = world.box.signed_preview_url(WEB_PORT, ttl_seconds=600)
    assert httpx.get(link).text == "<h1>seen</h1>" and httpx.get(f"{link}more/page.html").text == "below"
    part = world.box.signed_preview_url(WEB_PORT, paths=["/more"])
    assert httpx.get(f"{part}/page.html").text == "below"
    assert httpx.get(part.removesuffix("more") + "index.html").status_code == 403
    world.box.ports.hide(WEB_PORT)
    assert httpx.get(link).status_code == 401


def test_bytes_to_a_port(world: World) -> None:
    with world.box.ports.connect(ECHO_PORT) as connection:
        connection.write(b"hello")
        assert connection.read(timeout=DEADLINE_S) == b"HELLO"
        with pytest.raises(TimeoutError):
            connection.read(timeout=0.2)
        connection.write_eof()
        assert connection.read(timeout=DEADLINE_S) == b""
    with pytest.raises(errors.AnswerLost):
        connection.write(b"late")
    with pytest.raises(errors.PortClosed):
        world.box.ports.connect(NOBODYS_PORT)
    world.box.hibernate()
    with world.box.ports.connect(ECHO_PORT) as connection:
        connection.write(b"awake")
        assert connection.read(timeout=DEADLINE_S) == b"AWAKE"


def test_a_connection_that_breaks_says_so(world: World) -> None:
    """The program dies with bytes unread: that is no end of its data."""
    program = world.box.processes.start(
        "exec python3 -c \"import socket; s = socket.create_server(('', 9100)); p = s.accept()[0]; p.recv(1); p.sendall(b'x'); "
        "p.setsockopt(1, 13, b'\\1\\0\\0\\0\\0\\0\\0\\0'); input()\"",
        stdin=True,
    )
    eventually(lambda: 9100 in listening(world.box), "it listens")
    with world.box.ports.connect(9100) as connection:
        connection.write(b"y")
        assert connection.read(timeout=DEADLINE_S) == b"x"
        program.write("\n", eof=True)
        with pytest.raises(errors.AnswerLost, match="broke"):
            connection.read(timeout=DEADLINE_S)


async def test_bytes_to_a_port_awaited(world: World) -> None:
    data = os.urandom(3_000_000)
    async with AsyncClient(world.server.url, world.server.token) as client:
        box = AsyncSandbox(id=world.box.id, client=client)

        async def send() -> None:
            await connection.write(data)
            await connection.write_eof()

        async with asyncio.timeout(DEADLINE_S), await box.ports.connect(ECHO_PORT) as connection:
            sending = asyncio.create_task(send())
            assert b"".join([piece async for piece in connection]) == data.upper()
            await sending


def exchange(port: int, data: bytes) -> bytes:
    """All of it out and back, through a plain socket."""
    with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as plain:
        sending = threading.Thread(target=lambda: (plain.sendall(data), plain.shutdown(socket.SHUT_WR)))
        sending.start()
        found = b"".join(iter(lambda: plain.recv(65536), b""))
        sending.join(DEADLINE_S)
        return found


def test_a_local_port_leads_to_one_of_the_sandbox(world: World) -> None:
    data = os.urandom(1_000_000)
    with world.box.ports.forward(ECHO_PORT) as port:
        assert exchange(port, data) == data.upper()
        still_open = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S)
        still_open.sendall(b"a")
        assert still_open.recv(1) == b"A"
    with still_open, pytest.raises(ConnectionResetError):
        still_open.recv(1)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S)
    with world.box.ports.forward(NOBODYS_PORT) as port, pytest.raises(ConnectionResetError):
        exchange(port, b"")
    with pytest.raises(errors.SandboxNotFound), Sandbox(id="sb-none", client=world.box.client).ports.forward(ECHO_PORT):
        pass


async def test_a_local_port_awaited(world: World) -> None:
    async with AsyncClient(world.server.url, world.server.token) as client:
        async with AsyncSandbox(id=world.box.id, client=client).ports.forward(WEB_PORT) as port:
            answers = await asyncio.gather(*(asyncio.to_thread(httpx.get, f"http://127.0.0.1:{port}/") for _ in range(5)))
        assert [answer.text for answer in answers] == ["<h1>seen</h1>"] * 5
