"""The serial channel with nothing on it: a guest whose first and only program reads and writes the port in a loop.

It is booted from the template's root image, with this program in the place of the agent. A request is one letter and a count:
`I` takes that many bytes and answers with one, `O` sends that many.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from belljar.templates.kernel import kernel_files, make_initrd
from belljar.vm.machine import Machine
from belljar.vm.memory import new_memory
from belljar.vm.rundir import RunDir
from belljar.vm.sockets import connect_unix
from belljar.vm.spec import Boot
from bench.lab import Lab, say

DEADLINE_S = 300.0
_REQUEST = struct.Struct(">cQ")
_READ = 256 << 10
_PIECE = 256 << 10

GUEST = b"""
import glob, os, struct, time

def take(fd, count):
    data = b""
    while len(data) < count:
        part = os.read(fd, count - len(data))
        if not part:
            time.sleep(0.01)
        data += part
    return data

def main():
    fd = os.open(glob.glob("/dev/vport*")[0], os.O_RDWR)
    zeros = bytes(32768)
    while True:
        kind, left = struct.unpack(">cQ", take(fd, 9))
        if kind == b"O":
            while left:
                left -= os.write(fd, zeros[:left])
        else:
            while left:
                left -= len(os.read(fd, min(left, 65536)))
            os.write(fd, b"K")
"""


class RawChannel:
    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._loop = asyncio.get_running_loop()

    @classmethod
    @asynccontextmanager
    async def boot(cls, lab: Lab) -> AsyncIterator[RawChannel]:
        """Such a guest, up and answering."""
        folder, parts = lab.parts("raw")
        initrd = folder / "initrd"
        program = {f"belljar/{name}": b"" for name in ("__init__.py", "guest/__init__.py")} | {"belljar/guest/init.py": GUEST}
        initrd.write_bytes(make_initrd(kernel_files(lab.layout, say), program))
        memory = new_memory(parts.shape.memory_bytes)
        try:
            machine = await Machine.boot(RunDir(folder), parts, lab.facts, memory, Boot(lab.kernel.vmlinuz, initrd))
            try:
                await machine.resume()
                with await connect_unix(machine.run.agent) as sock:
                    raw = cls(sock)
                    await raw.send(1)
                    yield raw
            finally:
                await machine.kill()
        finally:
            os.close(memory)

    async def send(self, size: int) -> float:
        """Seconds until the guest has taken that many bytes."""
        began = time.perf_counter()
        async with asyncio.timeout(DEADLINE_S):
            await self._loop.sock_sendall(self._sock, _REQUEST.pack(b"I", size))
            piece = bytes(min(size, _PIECE))
            for start in range(0, size, _PIECE):
                await self._loop.sock_sendall(self._sock, piece[: size - start])
            assert await self._loop.sock_recv(self._sock, 1) == b"K"
        return time.perf_counter() - began

    async def receive(self, size: int) -> float:
        """Seconds until that many bytes have come out of the guest."""
        began = time.perf_counter()
        async with asyncio.timeout(DEADLINE_S):
            await self._loop.sock_sendall(self._sock, _REQUEST.pack(b"O", size))
            while size:
                size -= len(await self._loop.sock_recv(self._sock, min(size, _READ)))
        return time.perf_counter() - began
