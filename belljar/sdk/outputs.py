"""Processes as plain values: what they wrote, how they ended, how a list shows them."""

from __future__ import annotations

import base64
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from belljar.sdk.values import Fields


@dataclass(frozen=True)
class Chunk:
    """Bytes that a process wrote. `offset` counts from the first byte that it ever wrote to that stream."""

    stream: Literal["stdout", "stderr"]
    data: bytes
    offset: int = 0

    @classmethod
    def from_event(cls, stream: Literal["stdout", "stderr"], data: Fields) -> Chunk:
        return cls(stream, base64.b64decode(str(data.get("data") or "")), int(data.get("offset") or 0))

    @property
    def text(self) -> str:
        return self.data.decode("utf-8", "replace")


class Tail:
    """The last part of a text that has no end: at least `keep` characters of it, if there were as many."""

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._pieces: deque[str] = deque()
        self._size = 0

    def add(self, piece: str) -> None:
        self._pieces.append(piece)
        self._size += len(piece)
        while self._size - len(self._pieces[0]) >= self._keep:
            self._size -= len(self._pieces.popleft())

    @property
    def text(self) -> str:
        return "".join(self._pieces)


@dataclass(frozen=True)
class ProcessExit:
    """How a process ended: `exit_code`, or the `signal` that ended it. `dropped` counts bytes that can no longer be had."""

    exit_code: int | None
    signal: int | None = None
    timed_out: bool = False
    duration_seconds: float = 0.0
    dropped: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, data: Fields) -> ProcessExit:
        return cls(
            exit_code=data.get("exit_code"),
            signal=data.get("signal"),
            timed_out=bool(data.get("timed_out")),
            duration_seconds=float(data.get("duration_seconds") or 0.0),
            dropped=dict(data.get("dropped") or {}),
        )

    @property
    def shell_code(self) -> int:
        """One number, as a shell would say it: 128 + n for a signal, 124 for a timeout."""
        if self.timed_out:
            return 124
        return self.exit_code if self.exit_code is not None else 128 + (self.signal or 0)


@dataclass(frozen=True)
class ProcessResult:
    """A process that has ended, and what it wrote."""

    exit: ProcessExit
    stdout_bytes: bytes
    stderr_bytes: bytes

    @property
    def exit_code(self) -> int:
        return self.exit.shell_code

    @property
    def timed_out(self) -> bool:
        return self.exit.timed_out

    @property
    def stdout(self) -> str:
        return self.stdout_bytes.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        return self.stderr_bytes.decode("utf-8", "replace")


@dataclass(frozen=True)
class ProcessInfo:
    """A process as a list shows it; one that has ended keeps its place for a while."""

    id: str
    pid: int
    command: str
    running: bool
    background: bool
    pty: bool
    started_at: str | None
    exit_code: int | None
    signal: int | None
    user: str = ""
    cwd: str = ""

    @classmethod
    def from_dict(cls, data: Fields) -> ProcessInfo:
        return cls(
            id=str(data["id"]),
            pid=int(data.get("pid") or 0),
            command=str(data.get("command") or ""),
            running=bool(data.get("running")),
            background=bool(data.get("background")),
            pty=bool(data.get("pty")),
            started_at=data.get("started_at"),
            exit_code=data.get("exit_code"),
            signal=data.get("signal"),
            user=str(data.get("user") or ""),
            cwd=str(data.get("cwd") or ""),
        )
