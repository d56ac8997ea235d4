"""One cell from its request to its last event: what it may say, and what becomes of the rest.

Each output stream has a budget. Its first half goes out as it comes; then a ring keeps the last half for the end; and once both
are not enough, a file in the sandbox gets the whole. Results share another budget, and those that exceed it become files, with a
note in their place. What is left out is counted to the byte.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from belljar.guest.accounts import Account
from belljar.guest.journal import Journal, Memory
from belljar.guest.kernelmessages import Failed
from belljar.guest.ring import Ring
from belljar.guest.spill import Spill
from belljar.guest.workers import Workers
from belljar.wire.frames import RESULT, STDERR, STDOUT

DEFAULT_OUTPUT: Final = 1024 * 1024
DEFAULT_RESULTS: Final = 8 * 1024 * 1024
MAX_BUDGET: Final = 64 * 1024 * 1024

_NAMES: Final = {STDOUT: "stdout", STDERR: "stderr"}
_RESULT_COST: Final = 256  # of each result besides its bytes, so that a flood of empty ones has an end
_MAX_NOTES: Final = 64  # on results that did not fit; more of them are only counted
_SMALL_TAIL: Final = 128 * 1024  # where memory is short
_SUFFIXES: Final = {
    "text/plain": "txt", "text/html": "html", "text/markdown": "md", "text/latex": "tex", "image/svg+xml": "svg",
    "image/png": "png", "image/jpeg": "jpg", "image/gif": "gif", "application/pdf": "pdf", "application/json": "json",
    "application/javascript": "js",
}  # fmt: skip


class Place(NamedTuple):
    """What an execution needs of the agent."""

    memory: Memory
    workers: Workers
    account: Account
    on_room: Callable[[], None]  # the disk has caught up


class Wishes(NamedTuple):
    """What the client asked for."""

    code: str
    stdin: str | None = None
    changes: bool = False
    timeout_s: float | None = None
    keep_running: bool = False  # when the client goes away
    silent: bool = False  # leaves no trace: neither a number nor a history
    max_output: int = DEFAULT_OUTPUT
    max_results: int = DEFAULT_RESULTS


class _Text:
    """One output stream of a cell."""

    __slots__ = ("head", "is_live", "ring", "room", "spill", "tail_size", "total")

    def __init__(self, budget: int) -> None:
        self.total = 0
        self.head = 0
        self.room = budget // 2
        self.tail_size = budget - budget // 2
        self.is_live = True
        self.ring: Ring | None = None
        self.spill: Spill | None = None


class Execution:
    """`journal` is what clients see. `stopping` says why it was interrupted, if it was."""

    def __init__(self, name: str, wishes: Wishes, place: Place) -> None:
        self.id = name
        self.wishes = wishes
        self.number = 0
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._count: int | None = None
        self.journal = Journal(place.memory)
        self.stopping: str | None = None
        self.error: dict[str, Any] | None = None
        self.is_over = False
        self.last_words = b""  # of stderr, for judging a death
        self._place = place
        self._started = 0.0
        self._texts = {STDOUT: _Text(wishes.max_output), STDERR: _Text(wishes.max_output)}
        self._results_left = wishes.max_results
        self._results_omitted = 0
        self._result_spills: list[Spill] = []
        self._results_over = 0  # how many did not fit
        self._finishing: asyncio.Task[None] | None = None

    # -- while it runs

    def begin(self, number: int, count: int | None) -> None:
        """`number` names it to its kernel, `count` to people."""
        self.number = number
        self._count = count
        self._started = time.monotonic()
        self.journal.message({"started": {"execution": self.id, "count": count}})
        self.journal.pump()

    def text(self, stream: int, data: bytes) -> None:
        text = self._texts[stream]
        text.total += len(data)
        if stream == STDERR:
            self.last_words = (self.last_words + data[-1024:])[-1024:]
        if text.is_live:
            journal = self.journal
            fits = len(data) <= text.room
            if not journal.is_full and journal.reserve(min(len(data), text.room)):
                head = data if fits else data[: _boundary(data, text.room)]
                text.room -= len(head)
                text.head += len(head)
                if head:
                    journal.text(stream, head)
                    journal.pump()
                if fits:
                    return
                data = data[len(head) :]
            text.is_live = False
        self._keep(text, stream, data)

    def _keep(self, text: _Text, stream: int, data: bytes) -> None:
        if text.ring is None:
            if not self.journal.reserve(text.tail_size):
                text.tail_size = min(text.tail_size, _SMALL_TAIL)
            text.ring = Ring(text.tail_size)
        if text.spill is None and text.total - text.head > text.tail_size:
            text.spill = self._spill(f"{self.id}.{_NAMES[stream]}")
            text.spill.write(self.journal.collect(stream))
            text.spill.write(text.ring.read(text.ring.start, len(text.ring)))
        if text.spill is not None:
            text.spill.write(data)
        text.ring.append(data)

    def output(self, header: dict[str, Any], blob: bytes) -> None:
        cost = len(blob) + _RESULT_COST + len(str(header["metadata"]))
        if cost <= self._results_left and not self.journal.is_full and self.journal.reserve(cost):
            self._results_left -= cost
            self.journal.result({"output": header}, RESULT, blob)
        else:
            self._results_over += 1
            self._results_omitted += len(blob)
            if self._results_over > _MAX_NOTES:
                return
            note = self._save_result(header, blob).encode()
            parts = [{"mime": "text/plain", "size": len(note), "kind": "text"}]
            self.journal.result({"output": {**header, "parts": parts, "metadata": {}}}, RESULT, note)
        self.journal.pump()

    def _save_result(self, header: dict[str, Any], blob: bytes) -> str:
        start = 0
        saved = []
        for part in header["parts"]:
            name = f"{self.id}.result-{len(self._result_spills) + 1}.{_suffix(part['mime'])}"
            spill = self._spill(name)
            spill.write(blob[start : start + part["size"]])
            spill.close()
            start += part["size"]
            self._result_spills.append(spill)
            saved.append(f"{part['mime']}, {part['size']} bytes: {spill.path}")
        return f"[a result was too long to be sent and is in a file of the sandbox instead: {'; '.join(saved)}]"

    def clear(self, wait: bool) -> None:
        if not self.journal.is_full and self._results_left >= _RESULT_COST:
            self._results_left -= _RESULT_COST
            self.journal.message({"clear": {"wait": wait}})
            self.journal.pump()

    def _spill(self, name: str) -> Spill:
        return Spill(self._place.workers, self._place.account, name, self._place.on_room)

    @property
    def age_s(self) -> float:
        return time.monotonic() - self._started

    @property
    def is_behind(self) -> bool:
        """The disk is; whoever feeds this should wait."""
        return any(spill.behind for spill in self._spills())

    def _spills(self) -> list[Spill]:
        return [text.spill for text in self._texts.values() if text.spill is not None] + self._result_spills

    # -- its end

    def fail(self, kind: str, failed: Failed, peak_memory: int | None = None) -> None:
        """The first error is the one that counts."""
        if self.error is None:
            self.error = {
                "kind": kind,
                "name": failed.name,
                "value": failed.value,
                "traceback": failed.traceback,
                "state_lost": failed.state_lost,
                "peak_memory_bytes": peak_memory,
            }

    def finish(self, count: int | None = None, duration_s: float | None = None, changes: dict[str, Any] | None = None) -> None:
        """No more events. With files under way, clients are told when these are complete."""
        if self.is_over:
            return
        self.is_over = True
        if not self._started:  # never run; the stream of events is complete all the same
            self.begin(0, None)
        if duration_s is None:
            duration_s = round(time.monotonic() - self._started, 6)
        count = self._count if count is None else count
        done = {"execution": self.id, "count": count, "duration_s": duration_s, "changes": changes}
        spills = self._spills()
        if spills:
            self._finishing = asyncio.get_running_loop().create_task(self._finish_later(spills, done))
        else:
            self._finish(done)

    async def _finish_later(self, spills: list[Spill], done: dict[str, Any]) -> None:
        for spill in spills:
            spill.close()
        for spill in spills:
            await spill.wait_finished()
        self._finish(done)

    def _finish(self, done: dict[str, Any]) -> None:
        truncated = {name: self._end_text(stream) for stream, name in _NAMES.items()}
        if self.error is not None:
            self.journal.message({"error": self.error})
        self.journal.message({"done": {**done, "truncated": {**truncated, "results": self._results_cut()}}})
        self.journal.close()
        self.finished.set_result(None)

    def _end_text(self, stream: int) -> dict[str, Any] | None:
        text = self._texts[stream]
        if text.ring is None:
            return None
        tail = text.ring.read(max(0, text.ring.end - text.tail_size), text.tail_size)
        text.ring = None
        if text.spill is not None:
            tail = tail[_first_boundary(tail) :]
        if tail:
            self.journal.text(stream, tail)
        omitted = text.total - text.head - len(tail)
        if text.spill is None:
            return None
        return {"omitted": omitted, "head": text.head, **_file(text.spill)}

    def _results_cut(self) -> dict[str, Any] | None:
        if not self._results_over:
            return None
        files = [spill.path for spill in self._result_spills if spill.exists]
        whole = self._results_over <= _MAX_NOTES and not any(spill.problem for spill in self._result_spills)
        return {"omitted": self._results_omitted, "file": files[0] if files else None, "files": files, "complete": whole}


def _file(spill: Spill) -> dict[str, Any]:
    return {"file": spill.path if spill.exists else None, "complete": spill.problem is None, "problem": spill.problem}


def _boundary(data: bytes, limit: int) -> int:
    """At most `limit`, and not inside a character of UTF-8."""
    for back in range(min(4, limit)):
        if data[limit - back] & 0xC0 != 0x80:
            return limit - back
    return limit


def _first_boundary(data: bytes) -> int:
    return next((index for index, byte in enumerate(data[:4]) if byte & 0xC0 != 0x80), 0)


def _suffix(mime: str) -> str:
    return _SUFFIXES.get(mime) or re.sub(r"[^a-z0-9]+", "-", mime.rpartition("/")[2].lower())[:32].strip("-") or "bin"
