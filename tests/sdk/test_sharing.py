"""One client in many hands: threads, forked and other processes, event loops, and nobody who closes it."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import pickle
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

import belljar
from tests.sdk.raw_server import reply

ROOT = Path(__file__).parent.parent.parent


class Parrot:
    """A server that says who asked, on as many connections as there are."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.connections += 1
                threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        held = b""
        with connection, suppress(OSError):
            while piece := connection.recv(65536):
                held += piece
                while found := re.match(rb"GET /v1/snapshots/(\S+) .*?\r\n\r\n", held, re.DOTALL):
                    held = held[found.end() :]
                    connection.sendall(reply(200, {"id": found.group(1).decode()}))

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def parrot() -> Iterator[Parrot]:
    made = Parrot()
    yield made
    made.close()


def asks(client: belljar.Client, who: str) -> bool:
    """Whether it got its own answers and nobody else's."""
    wanted = [f"{who}-{n}" for n in range(20)]
    return [client.snapshots.get(word)["id"] for word in wanted] == wanted


async def test_calls_that_take_long_do_not_keep_others_from_being_sent() -> None:
    """Nobody is answered before all have asked."""
    calls = 300
    all_here = asyncio.Barrier(calls)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await all_here.wait()
        writer.write(reply(200, {"id": "x"}, "Connection: close"))
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with belljar.AsyncClient(url, timeout=60) as client:
            found = await asyncio.gather(*(client.snapshots.get("x") for _ in range(calls)))
    assert len(found) == calls


def test_threads_share_one_client(parrot: Parrot) -> None:
    with belljar.Client(parrot.url) as client, ThreadPoolExecutor(8) as pool:
        assert all(pool.map(lambda who: asks(client, f"t{who}"), range(8)))


def test_a_forked_process_uses_no_connection_of_its_parent(parrot: Parrot) -> None:
    with belljar.Client(parrot.url) as client:
        assert asks(client, "parent")
        context = multiprocessing.get_context("fork")
        with context.Pool(4) as pool:
            children = pool.starmap_async(asks, [(client, f"c{who}") for who in range(4)])
            assert asks(client, "parent") and all(children.get(60))
        ours, theirs = context.Pipe()
        process = context.Process(target=lambda: theirs.send(asks(client, "inherited")))
        process.start()
        assert ours.poll(60) and ours.recv() and asks(client, "parent")
        process.join()


def test_handles_can_be_sent_to_other_processes() -> None:
    client = belljar.Client("http://127.0.0.1:1", "pds_1", timeout=7, max_create_retry_seconds=3, preview_host="p.example")
    box = belljar.Sandbox(id="sb-1", client=client, metadata={"a": "b"})
    again, other = pickle.loads(pickle.dumps(box)), pickle.loads(pickle.dumps(belljar.AsyncClient("http://127.0.0.1:1", "")))
    assert (again.id, again.metadata, again.client.api_key, again.client.timeout) == ("sb-1", {"a": "b"}, "pds_1", 7)
    assert (again.client.max_create_retry_seconds, again.client.preview_host) == (3, "p.example") and other.api_key is None
    assert again.preview_url(80) == box.preview_url(80) and again.contexts.default().id == "default"


def test_an_async_client_outlives_its_loops(parrot: Parrot) -> None:
    client = belljar.AsyncClient(parrot.url)

    async def ask() -> str:
        return str((await client.snapshots.get("x"))["id"])

    asyncio.run(ask())
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    assert [asyncio.run(ask()) for _ in range(20)] == ["x"] * 20
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before + 2, "connections of loops that are over are still open"  # noqa: PTH208


def test_a_client_that_nobody_closed_is_closed_at_the_end(parrot: Parrot) -> None:
    """With the warnings of a developer."""
    code = "import sys, belljar\nkept = belljar.Client(sys.argv[1])\nfor made in (kept, belljar.Client(sys.argv[1])):\n"
    code += "    made.snapshots.get('x')\ndel made"
    ran = subprocess.run(
        [sys.executable, "-X", "dev", "-c", code, parrot.url], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert (ran.returncode, ran.stderr) == (0, "")


def test_a_closed_client_begins_again_when_it_is_used(parrot: Parrot) -> None:
    client = belljar.Client(parrot.url)
    for _ in range(2):
        assert asks(client, "again")
        client.close()
    client.close()
    assert parrot.connections == 2
