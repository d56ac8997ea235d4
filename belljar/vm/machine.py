"""One machine: boot, restore, adopt, pause, resume, capture, kill.

    (nothing) --boot----> booting --run--> running <--pause/resume--> paused
    (nothing) --restore--------------------------------------------> paused
    any state --kill, or the guest or QEMU ends--------------------> ended

A machine knows a run directory (its sockets, log and record) and descriptors. It knows nothing of templates, owners or databases.
What a later process needs to adopt it is in the run directory from the moment QEMU runs.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from belljar.errors import DeadlineExceeded, SandboxGone, WrongState
from belljar.vm.argv import Descriptors, qemu_argv
from belljar.vm.devicestate import save_devices, sealed_copy
from belljar.vm.finishing import in_thread
from belljar.vm.host import HostFacts
from belljar.vm.link import Link
from belljar.vm.memory import MemoryImage, RamMapping, find_ram
from belljar.vm.process import Vmm, adopt_vmm, start_vmm, tail
from belljar.vm.qmp import Qmp
from belljar.vm.rundir import MachineRecord, RunDir, read_record, write_record
from belljar.vm.sockets import listen_unix
from belljar.vm.spec import Boot, Shape

State = Literal["booting", "running", "paused", "ended"]
_MOVES: dict[str, tuple[set[State], State]] = {
    "resume": ({"paused", "booting"}, "running"),
    "pause": ({"running"}, "paused"),
}
MONITOR_DEADLINE_S = 30.0
_FILE_SLACK = 64 << 20


@dataclass(frozen=True)
class Parts:
    """What a machine is made of, besides its memory."""

    name: str
    shape: Shape
    root: Path
    disk: Path
    uid: int | None


class Machine:
    """A QEMU process with its monitor. Made by `boot`, `restore` and `adopt` only."""

    def __init__(self, run: RunDir, shape: Shape, vmm: Vmm, ram_fd: int, ram_identity: tuple[int, int], state: State) -> None:
        self.run = run
        self.shape = shape
        self.state: State = state
        self.ram_fd = ram_fd
        self.ram_identity = ram_identity
        self._vmm = vmm
        self._qmp: Qmp | None = None
        self._last_words = ""
        self._guest_ended = asyncio.Event()

    # -- making one ---------------------------------------------------------------------------------------------------------

    @classmethod
    async def boot(cls, run: RunDir, parts: Parts, facts: HostFacts, ram: int, boot: Boot) -> Machine:
        """Cold boot on a writable memfd, which the guest writes directly. Only templates are made this way."""
        with ExitStack() as stack:
            kernel, initrd = (_open(stack, path, os.O_RDONLY) for path in (boot.kernel, boot.initrd))
            return await cls._start(stack, run, parts, facts, ram, kernel=kernel, initrd=initrd, extra=boot.extra)

    @classmethod
    async def restore(cls, run: RunDir, parts: Parts, facts: HostFacts, image: MemoryImage, device_state: Path) -> Machine:
        """A machine on a private mapping of `image`, with the device state loaded, paused."""
        with ExitStack() as stack:
            state = await in_thread(sealed_copy, device_state, undo=os.close)
            stack.callback(os.close, state)
            return await cls._start(stack, run, parts, facts, image.fd, state=state)

    @classmethod
    async def _start(
        cls, stack: ExitStack, run: RunDir, parts: Parts, facts: HostFacts, ram: int, *, extra: str = "", **given: int
    ) -> Machine:
        monitor, agent = (stack.enter_context(listen_unix(path)) for path in (run.monitor, run.agent))
        by_path = facts.jail and not facts.is_root
        root = None if by_path else _open(stack, parts.root, os.O_RDONLY)
        disk = _open(stack, parts.disk, os.O_RDWR)
        fds = Descriptors(ram=ram, root=root, disk=disk, monitor=monitor.fileno(), agent=agent.fileno(), **given)
        argv = qemu_argv(parts.name, parts.shape, facts, fds, extra=extra)
        limit = parts.disk.stat().st_size + _FILE_SLACK
        vmm = await start_vmm(
            argv, fds.numbers(), facts, log=run.log, uid=parts.uid, max_file_bytes=limit, root=parts.root if by_path else None
        )
        status = os.fstat(ram)
        machine = cls(run, parts.shape, vmm, ram, (status.st_dev, status.st_ino), "booting" if "kernel" in given else "paused")
        try:
            machine._write_record()
            await machine.monitor()
        except BaseException as problem:
            await machine.kill()
            if isinstance(problem, SandboxGone):
                raise SandboxGone(f"QEMU ended before it was ready: {tail(run.log)}") from problem
            raise
        return machine

    @classmethod
    async def adopt(cls, run: RunDir) -> Machine:
        """Take over a machine whose former owner is gone. Raises SandboxGone if the machine is, too."""
        record = read_record(run.path)
        if record is None:
            raise SandboxGone("the machine left no readable record behind")
        vmm = adopt_vmm(record.identity)
        shape = Shape(record.vcpus, record.memory_mib)
        machine = cls(run, shape, vmm, record.ram_fd, record.ram_identity, "paused")
        try:
            status = await machine.vmm_status()
        except BaseException:
            await machine.release()
            raise
        if status in ("shutdown", "guest-panicked", "internal-error", "io-error"):
            await machine._note_end(f"the guest ended ({status})")
        else:
            machine.state = "running" if status == "running" else "paused"
        return machine

    def _write_record(self) -> None:
        identity, shape = self._vmm.identity, self.shape
        device, inode = self.ram_identity
        record = MachineRecord(identity.pid, identity.started, shape.vcpus, shape.memory_mib, self.ram_fd, device, inode)
        write_record(self.run, record)

    # -- talking to it ------------------------------------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        return self._vmm.pid

    @property
    def ended(self) -> bool:
        return self.state == "ended" or self._vmm.ended.is_set()

    async def wait_ended(self) -> str:
        """Wait until the guest or its process has ended; returns why, with the last words of whichever it was."""
        waits = [asyncio.create_task(event.wait()) for event in (self._guest_ended, self._vmm.ended)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return await self.post_mortem()

    async def ends_within(self, seconds: float) -> bool:
        """Whether its process has ended, or does in so short a time."""
        try:
            async with asyncio.timeout(seconds):
                await self._vmm.ended.wait()
        except TimeoutError:
            pass
        return self.ended

    async def monitor(self) -> Qmp:
        """The monitor connection, made on first use."""
        if self._qmp is None:
            self._qmp = await Qmp.connect(self.run.monitor, self._on_event, MONITOR_DEADLINE_S)
        return self._qmp

    async def dial(self) -> Link:
        """The same without waiting for the agent: what is asked for on it goes out with the hello."""
        return await Link.dial(self.run.agent)

    async def link(self, deadline_s: float) -> Link:
        """A new session with the agent; whatever session there was is over."""
        return await Link.connect(self.run.agent, deadline_s)

    def _on_event(self, name: str, data: dict[str, Any]) -> None:
        if name in ("SHUTDOWN", "GUEST_PANICKED"):
            self._last_words = f"the guest ended ({str(data.get('reason', name.lower()))[:100]})"
            self._guest_ended.set()

    async def vmm_status(self) -> str:
        reply = await (await self.monitor()).run("query-status", deadline_s=MONITOR_DEADLINE_S)
        return str(reply.get("status")) if isinstance(reply, dict) else "unknown"

    async def wait_loaded(self) -> None:
        """Wait until a restored machine has taken its device state. Raises if the state could not be loaded."""
        try:
            async with asyncio.timeout(MONITOR_DEADLINE_S):
                while await self.vmm_status() == "inmigrate":  # noqa: ASYNC110 (QEMU tells nobody)
                    await asyncio.sleep(0.002)
        except TimeoutError:
            raise DeadlineExceeded(f"the machine has not loaded its state within {MONITOR_DEADLINE_S:g} s") from None

    async def console(self) -> str:
        """What the guest's console said last."""
        try:
            arguments = {"device": "console", "size": 65536, "format": "utf8"}
            return str(await (await self.monitor()).run("ringbuf-read", arguments, deadline_s=5))
        except Exception:
            return "(the console could not be read)"

    # -- moving it ----------------------------------------------------------------------------------------------------------

    def _check_move(self, move: str) -> State:
        allowed, after = _MOVES[move]
        if self.ended:
            raise SandboxGone(f"the machine has ended: {self._last_words or tail(self.run.log)}")
        if self.state not in allowed:
            raise WrongState(f"cannot {move} a machine that is {self.state}")
        return after

    async def resume(self) -> None:
        """Let the guest run. One round trip; a machine whose state is still being loaded starts when that is done."""
        after = self._check_move("resume")
        await (await self.monitor()).run("cont")
        self.state = after

    async def pause(self) -> None:
        """Stop the guest between two instructions, with its disk I/O finished. One round trip."""
        after = self._check_move("pause")
        await (await self.monitor()).run("stop")
        self.state = after

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Pause for the length of a block, and leave the machine as it was found."""
        was_running = self.state == "running"
        if was_running:
            await self.pause()
        try:
            yield
        finally:
            if was_running and not self.ended:
                await self.resume()

    async def save_devices(self, target: Path) -> None:
        """The state of all devices, but no memory and no disks. The machine must be paused."""
        if self.state != "paused":
            raise WrongState(f"device state can only be saved while paused, not {self.state}")
        await save_devices(await self.monitor(), target)

    async def grow_disk(self, size: int) -> None:
        await (await self.monitor()).run("block_resize", {"node-name": "disk", "size": size})

    def ram(self) -> RamMapping:
        return find_ram(self.pid, self.shape.memory_bytes)

    # -- ending it ----------------------------------------------------------------------------------------------------------

    async def _note_end(self, reason: str) -> None:
        console = await self.console()
        self._last_words = f"{reason}; console: {console[-1500:].strip()}"
        self.state = "ended"

    async def post_mortem(self) -> str:
        """Why the machine is no more, with the last words of the guest or of QEMU."""
        if not self._vmm.ended.is_set() and self._last_words and self.state != "ended":
            await self._note_end(self._last_words)
        return self._last_words or f"QEMU ended: {tail(self.run.log)}"

    async def kill(self) -> None:
        """End the machine for good, in any state. Idempotent."""
        self.state = "ended"
        if self._qmp:
            await self._qmp.aclose()
            self._qmp = None
        await self._vmm.kill()

    async def release(self) -> None:
        """Let go of the machine; it lives on, and another process can adopt it."""
        if self._qmp:
            await self._qmp.aclose()
            self._qmp = None
        self._vmm.release()


def _open(stack: ExitStack, path: Path, flags: int) -> int:
    fd = os.open(path, flags | os.O_CLOEXEC)
    stack.callback(os.close, fd)
    return fd
