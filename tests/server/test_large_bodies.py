"""Large files pass through the server piece by piece: its memory does not grow with them, nor with clients that stall or vanish."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pandastack
import pytest

from tests.server.conftest import Api, Server, eventually

MIB = 1 << 20
SIZE = 200 * MIB
MAY_GROW = 32 * MIB
STALLED = 8
PIECE = os.urandom(MIB)


class Memory:
    """The resident memory of the server's process, and how far it went up since a moment."""

    def __init__(self, server: Server) -> None:
        self._of = Path("/proc") / str(server.process.pid)
        (self._of / "clear_refs").write_text("5")  # the peak is counted anew from here
        self.before = self._field("VmRSS")

    def grown(self) -> int:
        return self._field("VmHWM") - self.before

    def _field(self, name: str) -> int:
        return int((self._of / "status").read_text().partition(f"{name}:")[2].split()[0]) * 1024


def pieces(count: int) -> Iterator[bytes]:
    for number in range(count):
        yield number.to_bytes(8, "big") + PIECE[8:]


@pytest.fixture(scope="module")
def holder(client: pandastack.Client) -> Iterator[pandastack.Sandbox]:
    """A sandbox with a large file, put there and fetched once, so that the server has seen one."""
    with client.sandboxes.create("base") as made:
        made.exec("head -c 209715200 /dev/zero > /tmp/zeros", timeout_seconds=120)
        made.filesystem.write("/tmp/small", PIECE * 4)
        assert len(made.filesystem.read("/tmp/small")) == 4 * MIB
        yield made


def test_an_upload_and_a_download_do_not_grow_the_server(server: Server, api: Api, holder: pandastack.Sandbox) -> None:
    at = f"/v1/sandboxes/{holder.id}/fs"
    memory = Memory(server)
    put = api("PUT", at, params={"path": "/tmp/large"}, data=pieces(SIZE // MIB))
    assert (put.status_code, put.json()["bytes"]) == (200, SIZE)
    up = memory.grown()
    sent = hashlib.sha256()
    for piece in pieces(SIZE // MIB):
        sent.update(piece)
    memory = Memory(server)
    got, length = hashlib.sha256(), 0
    with api("GET", at, params={"path": "/tmp/large"}, stream=True) as answer:
        for chunk in answer.iter_content(MIB):
            got.update(chunk)
            length += len(chunk)
    assert (length, got.digest()) == (SIZE, sent.digest())
    down = memory.grown()
    holder.exec("rm /tmp/large")
    print(f"the server grew by {up / MIB:.1f} MiB for an upload, by {down / MIB:.1f} MiB for a download")
    assert max(up, down) <= MAY_GROW, f"{up} bytes more for an upload, {down} for a download"


def open_request(server: Server, head: str) -> socket.socket:
    at = urlsplit(server.url)
    connection = socket.create_connection((at.hostname, at.port), timeout=60)
    connection.sendall(f"{head}\r\nHost: here\r\n".encode())
    return connection


def in_flight(api: Api, sandbox: pandastack.Sandbox) -> int:
    life = api("GET", f"/v1/sandboxes/{sandbox.id}/lifecycle").json()
    return int(life["calls_in_flight"]) + int(life["open_streams"])


def test_readers_that_stall_cost_nothing(server: Server, api: Api, holder: pandastack.Sandbox) -> None:
    memory = Memory(server)
    readers = []
    for _ in range(STALLED):
        reader = open_request(server, f"GET /v1/sandboxes/{holder.id}/fs?path=/tmp/zeros HTTP/1.1")
        reader.sendall(f"Authorization: Bearer {api.token}\r\n\r\n".encode())
        assert reader.recv(12) == b"HTTP/1.1 200"
        readers.append(reader)
    for _ in range(20):  # others are served meanwhile, also by the same sandbox
        assert holder.exec("echo on").stdout == "on\n"
    assert in_flight(api, holder) == STALLED
    assert memory.grown() <= MAY_GROW, f"{STALLED} readers that take nothing cost {memory.grown()} bytes"
    for reader in readers:
        reader.close()
    eventually(lambda: in_flight(api, holder) == 0, "an end of the reads that nobody waits for")


def test_a_writer_that_vanishes_leaves_nothing(server: Server, api: Api, holder: pandastack.Sandbox) -> None:
    holder.filesystem.write("/tmp/kept/file", "before")
    memory = Memory(server)
    writer = open_request(server, f"PUT /v1/sandboxes/{holder.id}/fs?path=/tmp/kept/file HTTP/1.1")
    writer.sendall(f"Authorization: Bearer {api.token}\r\nContent-Length: {SIZE}\r\n\r\n".encode())
    for piece in pieces(8):
        writer.sendall(piece)
    eventually(lambda: in_flight(api, holder) == 1, "the write")
    writer.close()
    eventually(lambda: in_flight(api, holder) == 0, "an end of the write that nobody goes on with")
    assert holder.filesystem.read("/tmp/kept/file") == b"before"
    assert holder.exec("ls -A /tmp/kept").stdout == "file\n"
    assert memory.grown() <= MAY_GROW
