"""Connections of a program in the guest to a server on this machine's loopback, beside the bare serial channel underneath them."""

from __future__ import annotations

import asyncio
import json
import struct
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import cast

import dns.message
import dns.rrset

from belljar.fleet.sandbox import Sandbox
from belljar.fleet.sandboxes import Fleet
from bench.lab import Lab, milliseconds, say
from bench.raw import RawChannel
from bench.results import Result, Series

NAME = "bench.test"
_REQUEST = struct.Struct(">cQ")
_PIECE = bytes(256 << 10)
_READ = 256 << 10
DEADLINE_S = 600.0

TRANSFER = """
import socket, struct, sys
kind, size = sys.argv[2].encode(), int(sys.argv[3])
s = socket.create_connection((sys.argv[1].split(":")[0], int(sys.argv[1].split(":")[1])))
s.sendall(struct.pack(">cQ", kind, size))
buffer = memoryview(bytearray(262144))
if kind == b"I":
    while size: size -= s.recv_into(buffer[:min(size, 262144)])
    s.sendall(b"K")
else:
    while size: size -= s.send(buffer[:min(size, 262144)])
    s.recv(1)
"""
CONNECT = """
import json, socket, sys, time
host, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
times = []
for _ in range(count):
    began = time.perf_counter()
    try: socket.create_connection((host, port)).close()
    except OSError: pass
    times.append((time.perf_counter() - began) * 1000)
print(json.dumps(times))
"""


async def networking(lab: Lab) -> Result:
    size, rounds, connections = lab.count(128, 32) << 20, lab.count(3, 2), lab.count(100, 20)
    mib = size >> 20
    raw_in = Series(f"raw channel, host → guest, {mib} MiB", "MB/s", [])
    raw_out = Series(f"raw channel, guest → host, {mib} MiB", "MB/s", [])
    down = Series(f"download of {mib} MiB by a program", "MB/s", [])
    up = Series(f"upload of {mib} MiB by a program", "MB/s", [])
    raw_turn = Series("raw channel, one byte and its answer", "ms", [])
    opened = Series("connect() to a name, with its lookup", "ms", [])
    refused = Series("connect() to an address that is refused", "ms", [])
    async with _Target() as target, _sandbox(lab, target) as sandbox, RawChannel.boot(lab) as raw:
        for number in range(rounds):
            raw_in.samples.append(size / 1e6 / await raw.send(size))
            raw_out.samples.append(size / 1e6 / await raw.receive(size))
            down.samples.append(size / 1e6 / await target.measure(sandbox, "I", size))
            up.samples.append(size / 1e6 / await target.measure(sandbox, "O", size))
            figures = ", ".join(f"{series.samples[-1]:.0f}" for series in (raw_in, raw_out, down, up))
            say(f"  round {number + 1}: raw in, raw out, download, upload: {figures} MB/s")
        for _ in range(connections):
            began = time.perf_counter()
            await raw.send(1)
            raw_turn.samples.append(milliseconds(began))
        opened.samples.extend(await _connect_times(sandbox, NAME, target.port, connections))
        refused.samples.extend(await _connect_times(sandbox, "10.0.0.1", target.port, connections))
    result = Result("Connections through the wire", [raw_in, raw_out, down, up, raw_turn, opened, refused])
    result.ratio("download, raw channel into the guest against it", raw_in, down)
    result.ratio("upload, raw channel out of the guest against it", raw_out, up)
    result.ratio("connect() to a name, against one turn of the raw channel", opened, raw_turn)
    result.notes.append(
        "The program is Python in the guest; the server is in the benchmark's own process, which also is the gateway. Times of "
        "connect() are taken in the guest, and the host looks the name up again for each. Raw: as for large files."
    )
    return result


class _Target:
    """A server for bytes both ways, and a name server that knows one name."""

    async def __aenter__(self) -> _Target:
        loop = asyncio.get_running_loop()
        self._done: asyncio.Future[float] = loop.create_future()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 20)
        self.port: int = self._server.sockets[0].getsockname()[1]
        self._names, _ = await loop.create_datagram_endpoint(_Names, local_addr=("127.0.0.1", 0))
        self.name_server = f"127.0.0.1:{self._names.get_extra_info('sockname')[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self._names.close()

    async def measure(self, sandbox: Sandbox, kind: str, size: int) -> float:
        """Seconds from the request of a program in the guest to the last byte of the transfer."""
        self._done = asyncio.get_running_loop().create_future()
        command = ["python3", "-c", TRANSFER, f"{NAME}:{self.port}", kind, str(size)]
        result = await sandbox.processes.run(command, timeout_s=DEADLINE_S)
        assert result.exit_code == 0, result
        return await self._done

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            kind, size = _REQUEST.unpack(await reader.readexactly(_REQUEST.size))
        except asyncio.IncompleteReadError:  # one of those that only connect
            writer.close()
            return
        began = time.perf_counter()
        if kind == b"I":
            for start in range(0, size, len(_PIECE)):
                writer.write(_PIECE[: size - start])
                await writer.drain()
            await reader.readexactly(1)
        else:
            while size:
                size -= len(await reader.read(min(size, _READ)))
            writer.write(b"K")
        self._done.set_result(time.perf_counter() - began)
        writer.close()


class _Names(asyncio.DatagramProtocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        query = dns.message.from_wire(data)
        reply = dns.message.make_response(query)
        # Without a time to live, so that every connection pays for its own lookup.
        reply.answer.append(dns.rrset.from_text(query.question[0].name, 0, "IN", "A", "127.0.0.1"))
        self._transport.sendto(reply.to_wire(), addr)


@asynccontextmanager
async def _sandbox(lab: Lab, target: _Target) -> AsyncIterator[Sandbox]:
    settings = replace(lab.settings, pool_size=0, egress="open", egress_dns=target.name_server, egress_allow_private="127.0.0.1")
    async with await Fleet.open(settings, maintain=False) as fleet:
        sandbox = await lab.create(fleet)
        try:
            yield sandbox
        finally:
            await sandbox.kill()


async def _connect_times(sandbox: Sandbox, host: str, port: int, count: int) -> list[float]:
    result = await sandbox.processes.run(["python3", "-c", CONNECT, host, str(port), str(count)], timeout_s=DEADLINE_S)
    assert result.exit_code == 0, result
    times: list[float] = json.loads(result.stdout)
    return times
