"""The state of a machine's devices, between its VMM and a file.

It goes through memory both ways: a VMM that was taken over may keep a descriptor, and must never have one of a saved file.
"""

from __future__ import annotations

import os
from pathlib import Path

from belljar.errors import SandboxError
from belljar.vm.finishing import in_thread
from belljar.vm.memory import seal, write_all
from belljar.vm.qmp import Qmp

MAX_DEVICE_STATE = 16 << 20


async def save_devices(qmp: Qmp, target: Path) -> None:
    """Have a paused machine's VMM save the state of all its devices, but no memory and no disks."""
    memory = os.memfd_create("belljar-state", os.MFD_CLOEXEC)
    try:
        writable = os.open(f"/proc/self/fd/{memory}", os.O_WRONLY | os.O_CLOEXEC)
        try:
            added = await qmp.run("add-fd", fd=writable)
        finally:
            os.close(writable)
        fdset = _fdset_of(added)
        try:
            await qmp.run("xen-save-devices-state", {"filename": f"/dev/fdset/{fdset}", "live": False})
        finally:
            await qmp.run("remove-fd", {"fdset-id": fdset})
        await in_thread(_copy_out, memory, target)
    finally:
        os.close(memory)


def _fdset_of(answer: object) -> int:
    if isinstance(answer, dict) and isinstance(number := answer.get("fdset-id"), int):
        return number
    raise SandboxError("the VMM answered add-fd with something else than a descriptor set")


def _copy_out(memory: int, target: Path) -> None:
    size = os.fstat(memory).st_size
    if size > MAX_DEVICE_STATE:
        raise SandboxError(f"the VMM's device state has {size} bytes, which no machine of ours has")
    target.touch(mode=0o600)
    target.write_bytes(os.pread(memory, size, 0))


def sealed_copy(device_state: Path) -> int:
    """Saved device state as a memfd of the machine's own. Blocks; run it in a thread."""
    fd = os.memfd_create("belljar-state", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    try:
        write_all(fd, device_state.read_bytes(), 0)
        return seal(fd)
    except BaseException:
        os.close(fd)
        raise
