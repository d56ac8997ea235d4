"""What sandboxes are measured against: a cold boot, a QEMU with nothing around it, and memory being copied."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from contextlib import ExitStack
from typing import BinaryIO

import numpy as np

from belljar.vm.argv import Descriptors, qemu_argv
from belljar.vm.link import Link
from belljar.vm.machine import Machine
from belljar.vm.memory import new_memory
from belljar.vm.qmp import Qmp
from belljar.vm.rundir import RunDir
from belljar.vm.sockets import listen_unix
from belljar.vm.spec import Boot
from bench.lab import Lab, milliseconds

BOOT_DEADLINE_S = 120.0
LOAD_DEADLINE_S = 30.0
_CHUNK = 1 << 20


async def cold_boot(lab: Lab) -> float:
    """Milliseconds from starting QEMU on kernel and root image to the first answer. Its empty disk is made before."""
    folder, parts = lab.parts("cold")
    memory = new_memory(parts.shape.memory_bytes)
    try:
        began = time.perf_counter()
        machine = await Machine.boot(RunDir(folder), parts, lab.facts, memory, Boot(lab.kernel.vmlinuz, lab.kernel.initrd))
        try:
            await machine.resume()
            link = await machine.link(BOOT_DEADLINE_S)
            await run_true(link)
            took = milliseconds(began)
            await link.aclose()
        finally:
            await machine.kill()
    finally:
        os.close(memory)
    return took


async def run_true(link: Link) -> None:
    request = {"argv": ["true"], "stdin": False, "background": False}
    async with asyncio.timeout(BOOT_DEADLINE_S), await link.open("process.start", request) as channel:
        async for _ in channel:
            pass


class BareQemu:
    """The same QEMU command line on the template's memory and device state, with no jail, no record and no session.

    The guest never runs, so one disk serves all samples.
    """

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._folder, self._parts = lab.parts("bare")

    async def start(self) -> float:
        """Milliseconds from starting the process until it has loaded the state."""
        lab, run = self._lab, RunDir(self._folder)
        with ExitStack() as stack, run.log.open("ab") as log:
            monitor, agent = (stack.enter_context(listen_unix(path)) for path in (run.monitor, run.agent))
            files = [(self._parts.root, os.O_RDONLY), (self._parts.disk, os.O_RDWR), (lab.template.devices, os.O_RDONLY)]
            root, disk, state = (os.open(path, flags | os.O_CLOEXEC) for path, flags in files)
            for fd in (root, disk, state):
                stack.callback(os.close, fd)
            fds = Descriptors(lab.image.fd, root, disk, monitor.fileno(), agent.fileno(), state=state)
            argv = qemu_argv("bare", self._parts.shape, lab.facts, fds)
            began = time.perf_counter()
            child = _spawn(argv, fds.numbers(), log)
            try:
                qmp = await Qmp.connect(run.monitor, lambda name, data: None, LOAD_DEADLINE_S)
                async with asyncio.timeout(LOAD_DEADLINE_S):
                    while (await qmp.run("query-status"))["status"] == "inmigrate":
                        pass
                took = milliseconds(began)
                await qmp.aclose()
            finally:
                child.kill()
                await asyncio.to_thread(child.wait)
        return took


def _spawn(argv: list[str], fds: list[int], log: BinaryIO) -> subprocess.Popen[bytes]:
    return subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=fds)


class Copies:
    """Copying some memory once, in the two ways that a capture could."""

    def __init__(self, size: int) -> None:
        self._source = np.random.default_rng(1).integers(0, 256, size, dtype=np.uint8)

    def into_array(self) -> float:
        """Into fresh anonymous memory, by one thread."""
        began = time.perf_counter()
        copy = self._source.copy()
        took = milliseconds(began)
        del copy
        return took

    def into_memfd(self) -> float:
        """Into a fresh memfd by pwrite, by one thread."""
        view = self._source.data
        fd = new_memory(len(view))
        try:
            began = time.perf_counter()
            for offset in range(0, len(view), _CHUNK):
                os.pwrite(fd, view[offset : offset + _CHUNK], offset)
            return milliseconds(began)
        finally:
            os.close(fd)
