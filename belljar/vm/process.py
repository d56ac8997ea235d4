"""One QEMU process: started into its jail, watched by pidfd, ended by SIGKILL.

It is in a session of its own and nobody's dependent: it goes on when whoever started it is gone, and another process can adopt it
by pid. A pid is only trusted together with the start time that the kernel gives it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

from belljar.errors import HostError, HostSetup, SandboxError, SandboxGone
from belljar.vm.host import HostFacts
from belljar.vm.jail import jailed

_ENV = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C"}
_MAX_FILES = 256


@dataclass(frozen=True)
class Identity:
    """A pid that cannot be mistaken for a later process of the same number."""

    pid: int
    started: int


def start_time(pid: int) -> int | None:
    """When the kernel started that process, in clock ticks since boot; None if it is gone or a zombie."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if after_name[0] in "ZX" else int(after_name[19])

# QEMU says it of every device state that it loads. As the last words of one that was killed it would be taken for the reason.
SAID_BY_ALL = "Expected vmdescription section, but got 0"


def find_vmms(log_name: str, folders: Path) -> dict[str, list[Identity]]:
    """Processes by the folder whose log they write to. It also finds those that nobody had the time to write down.

    Blocks; run it in a thread.
    """
    root = os.path.realpath(folders)
    found: dict[str, list[Identity]] = {}
    for entry in Path("/proc").iterdir():
        try:
            log = (entry / "fd" / "1").readlink() if entry.name.isdigit() else None
        except OSError:
            continue  # it has ended, or belongs to someone else
        if log and log.name == log_name and str(log.parent.parent) == root:
            pid = int(entry.name)
            if (started := start_time(pid)) is not None:
                found.setdefault(log.parent.name, []).append(Identity(pid, started))
    return found


class Vmm:
    """A running QEMU. `ended` is set when the process is gone."""

    def __init__(self, identity: Identity, pidfd: int, child: subprocess.Popen[bytes] | None = None) -> None:
        self.identity = identity
        self._pidfd = pidfd
        self._child = child
        self.ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(pidfd, self._on_exit)

    @property
    def pid(self) -> int:
        return self.identity.pid

    def _on_exit(self) -> None:
        self.release()
        self.ended.set()

    def release(self) -> None:
        """Stop watching; the process is left as it is."""
        if self._pidfd >= 0:
            asyncio.get_running_loop().remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1

    async def kill(self, deadline_s: float = 10) -> None:
        """End the process and wait until the kernel has."""
        if self._pidfd >= 0:
            try:
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            except ProcessLookupError:
                pass
            try:
                async with asyncio.timeout(deadline_s):
                    await self.ended.wait()
            except TimeoutError:
                raise SandboxError(f"process {self.pid} did not end within {deadline_s:g} s of SIGKILL") from None
        if self._child:
            try:
                await asyncio.to_thread(self._child.wait, deadline_s)
            except subprocess.TimeoutExpired:
                raise SandboxError(f"process {self._child.pid} did not end within {deadline_s:g} s of its machine") from None


def adopt_vmm(identity: Identity) -> Vmm:
    """Watch a QEMU that another process started."""
    try:
        pidfd = os.pidfd_open(identity.pid)
    except OSError as problem:
        raise SandboxGone(f"the machine's process {identity.pid} has ended") from problem
    if start_time(identity.pid) != identity.started:
        os.close(pidfd)
        raise SandboxGone(f"the machine's process {identity.pid} has ended")
    return Vmm(identity, pidfd)


async def start_vmm(
    argv: list[str],
    fds: list[int],
    facts: HostFacts,
    *,
    log: Path,
    uid: int | None,
    max_file_bytes: int,
    root: Path | None,
) -> Vmm:
    """Start QEMU with these descriptors and nothing else; as root under `uid`, in its jail where the host can."""
    # A VMM that was taken over must not fill the host's disk through its own disk image or log.
    limits = ["prlimit", f"--fsize={max_file_bytes}", f"--nofile={_MAX_FILES}", "--core=0", "--"]
    spawning = asyncio.ensure_future(asyncio.to_thread(_spawn, limits, argv, fds, facts, log, uid, root))
    try:
        child, pid = await asyncio.shield(spawning)
    except asyncio.CancelledError:
        await _end_spawned(spawning)  # the thread cannot be called back, and nobody else would know of what it started
        raise
    started = start_time(pid)
    if started is None:
        raise SandboxError(f"QEMU ended at once: {tail(log)}")
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        raise SandboxError(f"QEMU ended at once: {tail(log)}") from None
    except OSError as problem:  # no descriptor left to watch it with: nobody would ever end it
        await _end_spawned(spawning)
        raise HostError(f"QEMU cannot be watched: {problem.strerror}") from problem
    return Vmm(Identity(pid, started), pidfd, child)


async def _end_spawned(spawning: asyncio.Future[tuple[subprocess.Popen[bytes], int]]) -> None:
    try:
        child, pid = await asyncio.shield(spawning)
    except Exception:
        return  # it did not come to that
    for each in (pid, child.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)
    await asyncio.to_thread(child.wait)


def _spawn(
    limits: list[str], argv: list[str], fds: list[int], facts: HostFacts, log: Path, uid: int | None, root: Path | None
) -> tuple[subprocess.Popen[bytes], int]:
    info_read, info_write = os.pipe2(os.O_CLOEXEC)
    groups = [facts.kvm_gid] if facts.accelerator == "kvm" and facts.kvm_gid is not None else []
    who = {"user": uid, "group": uid, "extra_groups": groups} if uid is not None else {}
    try:
        if facts.jail:
            argv = jailed(argv, info_fd=info_write, kvm=facts.accelerator == "kvm", root=root)
            fds = [*fds, info_write]
        with log.open("ab") as output:
            child = subprocess.Popen(
                [*limits, *argv],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=fds,
                env=_ENV,
                cwd="/",
                start_new_session=True,
                **who,  # type: ignore[call-overload]
            )
        os.close(info_write)
        info_write = -1
        return child, _jailed_pid(info_read, log) if facts.jail else child.pid
    except OSError as problem:
        raise HostSetup(f"QEMU could not be started: {problem}") from problem
    finally:
        os.close(info_read)
        if info_write >= 0:
            os.close(info_write)


def _jailed_pid(info: int, log: Path) -> int:
    said = b""
    while b"}" not in said:
        part = os.read(info, 4096)  # ends when bubblewrap ends, so it cannot wait for ever
        if not part:
            raise SandboxError(f"the jail could not be made: {tail(log)}")
        said += part
    return int(json.loads(said)["child-pid"])


def tail(log: Path, limit: int = 2000) -> str:
    """The last words in a log file."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - limit))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return "(no log)"
    return "\n".join(line for line in lines if SAID_BY_ALL not in line).strip() or "(nothing was logged)"
