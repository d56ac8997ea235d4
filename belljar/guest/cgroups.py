"""Process trees that can be killed as one.

In the guest each started process gets a control group of its own under `work`: whatever it forks, daemonizes or hides is in there,
and `cgroup.kill` ends all of it. Elsewhere (the agent under test on a host) its session has to do.
"""

# Paths stay strings: it is faster, and a Path would drop the final slash that the kernel must see.
# ruff: noqa: PTH102, PTH106, PTH123, PTH208

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path
from typing import Final, Protocol

_REMOVE_EVERY_S: Final = 0.1
_REMOVE_TRIES: Final = 100


class Group(Protocol):
    """Where one process and its children live."""

    join_fd: int  # a child writes "0" here to move in; -1 if there is nothing to join

    def joined(self, pid: int) -> None: ...
    def adopt(self, pid: int) -> None: ...
    def members(self) -> list[int]: ...
    def kill(self) -> None: ...
    def was_out_of_memory(self) -> bool: ...
    def peak_memory(self) -> int | None: ...
    def remove(self) -> bool: ...


def remove_when_empty(group: Group, tries: int = _REMOVE_TRIES) -> None:
    """Killed processes take a moment to be gone."""
    if not group.remove() and tries:
        asyncio.get_running_loop().call_later(_REMOVE_EVERY_S, remove_when_empty, group, tries - 1)


class Groups(Protocol):
    def make(self) -> Group: ...


class ControlGroup:
    """A leaf of the cgroup v2 tree."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        os.mkdir(self._path)
        self.join_fd = os.open(f"{self._path}/cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)

    def joined(self, pid: int) -> None:
        os.close(self.join_fd)
        self.join_fd = -1

    def adopt(self, pid: int) -> None:
        """Move in a process that somebody else has started."""
        os.write(self.join_fd, str(pid).encode())
        self.joined(pid)

    def members(self) -> list[int]:
        return [int(pid) for pid in self._read("cgroup.procs").split()]

    def kill(self) -> None:
        with contextlib.suppress(OSError), open(f"{self._path}/cgroup.kill", "w") as file:
            file.write("1")

    def was_out_of_memory(self) -> bool:
        counts = dict(line.split() for line in self._read("memory.events").splitlines())
        return counts.get("oom_kill", "0") != "0"

    def peak_memory(self) -> int | None:
        text = self._read("memory.peak").strip()
        return int(text) if text.isdecimal() else None

    def remove(self) -> bool:
        """False while something still lives in it."""
        if self.join_fd >= 0:
            self.joined(0)
        try:
            os.rmdir(self._path)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True

    def _read(self, name: str) -> str:
        try:
            with open(f"{self._path}/{name}") as file:
                return file.read()
        except OSError:
            return ""


class ControlGroups:
    """Leaves under one folder."""

    def __init__(self, work: Path) -> None:
        self._work = work
        self._made = 0
        self._clear()

    def _clear(self) -> None:
        """What an earlier agent ran is out of anybody's reach: end it, and take its names back."""
        with contextlib.suppress(OSError):
            (self._work / "cgroup.kill").write_text("1")
        for leaf in self._work.iterdir():
            if leaf.is_dir():
                with contextlib.suppress(OSError):
                    leaf.rmdir()

    def make(self) -> Group:
        while True:
            self._made += 1
            try:
                return ControlGroup(self._work / str(self._made))
            except FileExistsError:  # left by an earlier agent, its processes still dying
                continue


class SessionGroup:
    """The session that the child founds, and what else is in it."""

    join_fd = -1

    def __init__(self) -> None:
        self._session = 0

    def joined(self, pid: int) -> None:
        self._session = pid

    def adopt(self, pid: int) -> None:
        self._session = pid  # who started it made it the leader of a session

    def members(self) -> list[int]:
        return [int(entry) for entry in os.listdir("/proc") if entry.isdecimal() and self._holds(int(entry))]

    def _holds(self, pid: int) -> bool:
        try:
            return os.getsid(pid) == self._session
        except OSError:
            return False

    def kill(self) -> None:
        for pid in self.members():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)

    def was_out_of_memory(self) -> bool:
        return False

    def peak_memory(self) -> int | None:
        return None

    def remove(self) -> bool:
        return True


class SessionGroups:
    def make(self) -> Group:
        return SessionGroup()
