"""The log of each sandbox: the newest lines that its commands, cells and background processes wrote.

Whoever passes output on tells a writer of it. That is cheap and never waits: lines gather in memory and go to the sandbox's
folder a moment later, from a thread. Readers first see to it that everything gathered is there. What one sandbox may gather
is bounded; more than that replaces the oldest.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal

from belljar.store.layout import Layout
from belljar.store.outputs import FILE_BYTES, POSITION, STDERR, STDOUT, OutputLog

log = logging.getLogger(__name__)

Stream = Literal["stdout", "stderr"]

WRITE_AFTER_S = 0.05
GATHER_BYTES = FILE_BYTES
LINE_COSTS_BYTES = 48
# A line that is longer goes down in pieces: nobody has promised that it will ever end.
MAX_LINE_BYTES = 8192
# Positions of background processes that are remembered; a guest keeps about as many that have ended.
MAX_POSITIONS = 256
LETTERS: dict[Stream, bytes] = {"stdout": STDOUT, "stderr": STDERR}
STREAMS: dict[bytes, Stream] = {STDOUT: "stdout", STDERR: "stderr"}


@dataclass(frozen=True)
class Line:
    """One line that a program wrote, without its end."""

    stream: Stream
    text: str


class _Lines:
    """Lines that wait, the newest GATHER_BYTES of them as memory counts: a flood of empty lines is a flood too."""

    def __init__(self) -> None:
        self.items: deque[bytes] = deque()
        self._bytes = 0

    def add(self, line: bytes) -> None:
        self.items.append(line)
        self._bytes += len(line) + LINE_COSTS_BYTES
        while self._bytes > GATHER_BYTES:
            self._bytes -= len(self.items.popleft()) + LINE_COSTS_BYTES

    def take(self) -> list[bytes]:
        taken, self.items, self._bytes = list(self.items), deque(), 0
        return taken


@dataclass(eq=False)
class _Follower:
    lines: _Lines = field(default_factory=_Lines)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass
class _State:
    """What this process knows of one sandbox's log. `positions` is how much of each background process is in it."""

    file: OutputLog
    gathered: _Lines = field(default_factory=_Lines)
    followers: set[_Follower] = field(default_factory=set)
    readers: Counter[str] = field(default_factory=Counter)
    positions: dict[str, dict[Stream, int]] | None = None
    moved: set[str] = field(default_factory=set)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    soon: asyncio.Task[None] | None = None


class Writer:
    """Takes the output of one command or cell, in pieces of any size. Use it in a `with` block: its end ends the last line."""

    def __init__(self, add: Callable[[bytes], None]) -> None:
        self._add = add
        self._rest = {"stdout": b"", "stderr": b""}

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, stream: Stream, data: bytes | str) -> None:
        raw = data.encode("utf-8", "replace") if isinstance(data, str) else data
        *lines, rest = (self._rest[stream] + raw[-GATHER_BYTES:]).split(b"\n")
        for line in lines:
            self._line(stream, line)
        while len(rest) > MAX_LINE_BYTES:
            self._line(stream, rest[:MAX_LINE_BYTES])
            rest = rest[MAX_LINE_BYTES:]
        self._rest[stream] = rest

    def _line(self, stream: Stream, line: bytes) -> None:
        for start in range(0, len(line) or 1, MAX_LINE_BYTES):
            self._add(LETTERS[stream] + line[start : start + MAX_LINE_BYTES].removesuffix(b"\r"))

    def close(self) -> None:
        for stream in LETTERS:
            if self._rest[stream]:
                self._line(stream, self._rest[stream])
                self._rest[stream] = b""


class ProcessWriter(Writer):
    """Takes the output of a background process, which may be read more than once: each byte goes down the first time."""

    def __init__(self, add: Callable[[bytes], None], position: dict[Stream, int], moved: Callable[[], None]) -> None:
        super().__init__(add)
        self._position, self._moved = position, moved

    def position(self, stream: Stream) -> int:
        """The first byte of the stream that is not in the log."""
        return self._position[stream]

    def write_at(self, stream: Stream, offset: int, data: bytes) -> None:
        """`offset` is that of the first byte of `data`, counted from the process's first one."""
        expected = self._position[stream] + len(self._rest[stream])
        if offset > expected:  # what lies between is no longer to be had
            self.close()
            self._position[stream] = expected = offset
        data = data[expected - offset :]
        if data:
            self.write(stream, data)
            self._position[stream] = expected + len(data) - len(self._rest[stream])
            self._moved()

    def end(self) -> None:
        """The process has ended: an unfinished line is its last."""
        for stream in LETTERS:
            self._position[stream] += len(self._rest[stream])
        self._moved()
        self.close()

    def __exit__(self, *_: object) -> None:
        pass  # whoever reads on begins with the unfinished line


class Logs:
    """The logs of all sandboxes of one home."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._states: dict[str, _State] = {}

    def writer(self, sandbox_id: str) -> Writer:
        return Writer(lambda line: self._add(sandbox_id, line))

    @asynccontextmanager
    async def reading(self, sandbox_id: str, process_id: str) -> AsyncIterator[ProcessWriter]:
        """For whoever reads a background process's output. Until the block ends, `catch_up` leaves the process alone."""
        state = self._state(sandbox_id)
        positions = await self._positions(state)

        def moved() -> None:
            state.moved.add(process_id)
            self._write_soon(sandbox_id, state)

        state.readers[process_id] += 1
        try:
            position = positions[process_id] = positions.pop(process_id, {"stdout": 0, "stderr": 0})
            while len(positions) > MAX_POSITIONS:
                del positions[next(iter(positions))]
            yield ProcessWriter(lambda line: self._add(sandbox_id, line), position, moved)
        finally:
            state.readers[process_id] -= 1
            state.readers = +state.readers

    def is_read(self, sandbox_id: str, process_id: str) -> bool:
        return self._state(sandbox_id).readers[process_id] > 0

    async def read(self, sandbox_id: str) -> list[Line]:
        """What is kept, oldest first."""
        state = self._state(sandbox_id)
        async with state.lock:
            return await self._written(state)

    async def follow(self, sandbox_id: str) -> AsyncGenerator[list[Line], None]:
        """What is kept, and then whatever comes, as it comes; an empty list now and then when nothing does."""
        state, follower = self._state(sandbox_id), _Follower()
        async with state.lock:
            kept = await self._written(state)
            # From here to the next await nobody else runs: what was gathered meanwhile is in no file yet.
            for line in state.gathered.items:
                follower.lines.add(line)
            state.followers.add(follower)
        try:
            yield kept
            while True:
                yield _parse(follower.lines.take())
                follower.arrived.clear()
                if not follower.lines.items:
                    try:
                        await asyncio.wait_for(follower.arrived.wait(), 2.0)
                    except TimeoutError:
                        pass
        finally:
            state.followers.discard(follower)

    def keep(self, sandbox_ids: Collection[str]) -> None:
        """Forget sandboxes that are gone; their logs went with their folders."""
        for gone in [name for name, state in self._states.items() if name not in sandbox_ids and not state.lock.locked()]:
            if not self._states[gone].followers and not self._states[gone].readers:
                del self._states[gone]

    async def aclose(self) -> None:
        """Write down what was gathered."""
        for state in list(self._states.values()):
            if state.soon is not None:
                state.soon.cancel()
                await asyncio.gather(state.soon, return_exceptions=True)
            async with state.lock:
                await self._write(state)

    # -- how ----------------------------------------------------------------------------------------------------------------

    def _state(self, sandbox_id: str) -> _State:
        if sandbox_id not in self._states:
            self._states[sandbox_id] = _State(OutputLog(self._layout.sandbox(sandbox_id)))
        return self._states[sandbox_id]

    def _add(self, sandbox_id: str, line: bytes) -> None:
        state = self._state(sandbox_id)
        state.gathered.add(line)
        for follower in state.followers:
            follower.lines.add(line)
            follower.arrived.set()
        self._write_soon(sandbox_id, state)

    def _write_soon(self, sandbox_id: str, state: _State) -> None:
        if state.soon is None or state.soon.done():
            state.soon = asyncio.get_running_loop().create_task(self._write_later(state), name=f"log of {sandbox_id}")

    async def _write_later(self, state: _State) -> None:
        while state.gathered.items or state.moved:
            await asyncio.sleep(WRITE_AFTER_S)
            async with state.lock:
                await self._write(state)

    async def _write(self, state: _State) -> None:
        """Under the lock."""
        lines = state.gathered.take()
        positions = state.positions or {}
        lines += [_position_line(name, positions[name]) for name in state.moved if name in positions]
        state.moved.clear()
        if not lines:
            return
        head = b"".join(_position_line(name, position) + b"\n" for name, position in positions.items())
        try:
            await asyncio.to_thread(state.file.append, b"\n".join(lines) + b"\n", head)
        except OSError as problem:
            log.warning("output of a sandbox could not be kept: %s", problem)

    async def _written(self, state: _State) -> list[Line]:
        """Under the lock."""
        await self._write(state)
        return await asyncio.to_thread(lambda: _parse(state.file.read()))

    async def _positions(self, state: _State) -> dict[str, dict[Stream, int]]:
        async with state.lock:
            if state.positions is None:
                state.positions = _parse_positions(await asyncio.to_thread(state.file.read))
            return state.positions


def _parse(lines: list[bytes]) -> list[Line]:
    return [Line(STREAMS[line[:1]], line[1:].decode("utf-8", "replace")) for line in lines if line[:1] in STREAMS]


def _position_line(process_id: str, position: dict[Stream, int]) -> bytes:
    # The name is the guest's own: nothing in it may end the line.
    return POSITION + process_id.encode("unicode_escape") + f" {position['stdout']} {position['stderr']}".encode()


def _parse_positions(lines: list[bytes]) -> dict[str, dict[Stream, int]]:
    found: dict[str, dict[Stream, int]] = {}
    for line in lines:
        words = line[1:].rsplit(b" ", 2) if line[:1] == POSITION else []
        if len(words) == 3 and words[1].isdigit() and words[2].isdigit():
            found[words[0].decode("unicode_escape", "replace")] = {"stdout": int(words[1]), "stderr": int(words[2])}
    return found
