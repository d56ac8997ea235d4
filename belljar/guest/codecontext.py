"""One code context: a kernel, the cells that wait for it, and the one that runs.

    starting ── ready ──> idle ── a cell ──> busy ── done ──> idle
        ^                  │                   │
        └── the kernel died, or had to be killed; the context keeps its id, and a cell is told that its state is gone

The kernel itself is in a slot (`kernelslot.py`), and the cell that runs has its turn (`turn.py`).
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Any, Final

from belljar.guest.channel import Channel
from belljar.guest.context import Context
from belljar.guest.execution import Execution, Place, Wishes
from belljar.guest.failure import Failure
from belljar.guest.journal import MAX_READERS, Memory, Reader
from belljar.guest.kernelmessages import Failed, Violation, fit, parse_done, parse_error, parse_output
from belljar.guest.kernelprocess import Ending, Kernel
from belljar.guest.kernelslot import ANSWER_DEADLINE_S, KernelSlot
from belljar.guest.kernelstart import Setting, Starter
from belljar.guest.turn import Turn
from belljar.guest.verdicts import dead, judge, never_ready, stopped, timed_out

MAX_QUEUE: Final = 64


class CodeContext:
    def __init__(self, name: str, setting: Setting, context: Context, starter: Starter, memory: Memory) -> None:
        self.id = name
        self.setting = setting
        self.created_at = time.time()
        self.cells = 0
        self._slot = KernelSlot(name, setting, context, starter, self)
        self._place = Place(memory, context.workers, setting.account, self._on_room)
        self._made = 0
        self._turn: Turn | None = None
        self._last: Execution | None = None
        self._queue: deque[Execution] = deque()
        self._died_idle: Ending | None = None
        self._idle_waiters: list[asyncio.Future[None]] = []
        self._deleted = False
        self._loop = asyncio.get_running_loop()

    # -- what it is

    @property
    def is_python(self) -> bool:
        return self.setting.language.name == "python"

    @property
    def _running(self) -> Execution | None:
        return self._turn.execution if self._turn is not None else None

    @property
    def state(self) -> str:
        if self._running is not None:
            return "busy"
        return "starting" if self._slot.is_starting or (self._slot.kernel is None and self._queue) else "idle"

    def describe(self, default: bool) -> dict[str, Any]:
        return {
            "id": self.id,
            "language": self.setting.language.name,
            "created_at": self.created_at,
            "state": self.state,
            "cells": self.cells,
            "queued": len(self._queue),
            "default": default,
            "pid": self._slot.kernel.pid if self._slot.kernel is not None else None,
        }

    # -- its kernel

    async def start(self) -> dict[str, Any]:
        """Until the kernel is ready. Returns what it says of itself."""
        return await self._slot.start()

    def on_kernel_ready(self) -> None:
        self._next()

    def on_kernel_not_ready(self, failure: Failure) -> None:
        if self._queue:
            self._end_cell(self._queue.popleft(), *never_ready(failure.message))
            self._loop.call_soon(self._next)

    def thawed(self, env: dict[str, str], cwd: str | None) -> None:
        """This machine is a copy. A directory that cells have chosen stays."""
        stays = self.setting.cwd is not None or self.cells or self._running is not None
        self._slot.thawed({name: value for name, value in env.items() if name not in self.setting.env}, None if stays else cwd)

    # -- cells

    def submit(self, channel: Channel, wishes: Wishes) -> None:
        if len(self._queue) >= MAX_QUEUE:
            raise Failure("conflict", f"{MAX_QUEUE} cells are waiting in context {self.id} already")
        execution = self._new_execution(wishes)
        Reader(execution.journal, channel, lambda by_host: self._on_left(execution, by_host))
        self._queue.append(execution)
        self._next()

    async def run_quietly(self, code: str, timeout_s: float) -> dict[str, Any] | None:
        """A cell that no client sees. Returns its error."""
        execution = self._new_execution(Wishes(code, timeout_s=timeout_s, silent=True))
        self._queue.append(execution)
        self._next()
        await execution.finished
        return execution.error

    def _new_execution(self, wishes: Wishes) -> Execution:
        self._made += not wishes.silent
        return Execution("silent" if wishes.silent else f"{self.id}-{self._made}", wishes, self._place)

    def _next(self) -> None:
        if self._running is not None or self._deleted:
            return
        if not self._queue:
            for waiter in self._idle_waiters:
                if not waiter.done():
                    waiter.set_result(None)
            self._idle_waiters.clear()
            return
        if self._died_idle is not None:
            ending, self._died_idle = self._died_idle, None
            kind, failed, peak = dead(ending, b"", idle=True)
            self._end_cell(self._queue.popleft(), kind, failed, peak)
            self._loop.call_soon(self._next)
        elif not self._slot.is_starting:
            if self._slot.kernel is None:
                self._slot.begin()
            else:
                self._run(self._slot.kernel, self._queue.popleft())

    def _run(self, kernel: Kernel, execution: Execution) -> None:
        self._turn = Turn(execution, self._slot, self._on_stuck)
        execution.begin(*self._slot.run(kernel, execution.wishes))
        for stream, data in self._slot.take_text():
            execution.text(stream, data)

    def _end_cell(self, execution: Execution, kind: str, failed: Failed, peak_memory: int | None = None) -> None:
        """For cells that their kernel did not bring to an end."""
        execution.fail(kind, failed, peak_memory)
        self._over(execution)
        execution.finish()

    def _over(self, execution: Execution) -> None:
        if self._turn is not None and self._turn.execution is execution:
            self._turn.end()
            self._turn = None
        if execution.wishes.silent:
            execution.journal.drop()
        else:
            self.cells += 1
            self._set_last(execution)

    def _set_last(self, execution: Execution | None) -> None:
        """Only the last cell can be asked for again: what is kept does not grow with the number of cells."""
        if self._last is not None:
            self._last.journal.drop()
        self._last = execution

    # -- stopping

    def interrupt(self) -> bool:
        return self._turn is not None and self._turn.stop("interrupted")

    def _on_stuck(self, execution: Execution) -> None:
        self._slot.drop()
        self._slot.begin()
        self._end_cell(execution, *timed_out(execution.wishes.timeout_s or 0.0, None))

    def _on_left(self, execution: Execution, by_host: bool) -> None:
        """The client is gone. A session that was lost says nothing about what it wanted."""
        if not by_host or execution.wishes.keep_running or execution.is_over:
            return
        if execution is self._running:
            self.interrupt()
        elif execution in self._queue:
            self._queue.remove(execution)
            execution.finish()
            execution.journal.drop()

    def _abandon_cells(self, what: str) -> None:
        waiting, running = list(self._queue), self._running
        self._queue.clear()
        for execution in (*([running] if running is not None else []), *waiting):
            self._end_cell(execution, *stopped(what, execution is running))

    async def restart(self) -> None:
        if self._slot.kernel is not None and self._running is not None:
            self._slot.kernel.drain()
        self._slot.drop()
        self._died_idle = None
        self._abandon_cells("restarted")
        await self.start()

    def delete(self) -> None:
        self._deleted = True
        self._slot.give_up_start()
        self._slot.drop()
        self._abandon_cells("deleted")
        self._set_last(None)

    # -- asking

    def attach(self, channel: Channel, name: str | None) -> None:
        known = [e for e in (*self._queue, self._last, self._running) if e is not None and name in (None, e.id)]
        if not known or known[-1].journal.discarded:
            what = f"no cell {name!r} of which anything is kept" if name else "no cell that has run"
            raise Failure("not_found", f"context {self.id} has {what}; only the running and the last one can be attached to")
        journal = known[-1].journal
        if len(journal.readers) >= MAX_READERS:
            raise Failure("conflict", f"{MAX_READERS} clients follow this cell already")
        Reader(journal, channel, lambda by_host: None).pump()

    async def variables(self) -> dict[str, Any]:
        if not self.is_python:
            raise Failure("not_supported", f"{self.setting.language.name} contexts cannot list their variables")
        await self._wait_idle(ANSWER_DEADLINE_S)
        if self._slot.kernel is None:
            await self.start()
        variables = await self._slot.ask_variables()
        omitted = fit([variables])
        return {"variables": variables, "omitted": omitted}

    async def _wait_idle(self, deadline_s: float) -> None:
        if self._running is None and not self._queue and not self._slot.is_starting:
            return
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._idle_waiters.append(waiter)
        try:
            await asyncio.wait_for(waiter, deadline_s)
        except TimeoutError:
            raise Failure("conflict", f"context {self.id} is busy; ask again when its cell is done") from None

    # -- what the kernel says

    def on_text(self, kernel: Kernel, stream: int, data: bytes) -> None:
        if self._running is not None:
            self._running.text(stream, data)
            if self._running.is_behind:
                kernel.pause(True)
        else:
            self._slot.on_text(stream, data)

    def _on_room(self) -> None:
        if self._slot.kernel is not None and (self._running is None or not self._running.is_behind):
            self._slot.kernel.pause(False)

    def on_event(self, kernel: Kernel, message: dict[str, Any], blob: bytes) -> None:
        event = message.get("ev")
        execution = self._running
        if event == "ready":
            self._slot.on_ready(message)
        elif event == "variables":
            self._slot.on_variables(message)
        elif event not in _CELL_EVENTS:
            raise Violation(f"it sent an event {str(event)[:50]!r}")
        elif execution is not None and message.get("n") == execution.number:
            _CELL_EVENTS[event](self, execution, message, blob)
            if execution.is_behind and self._running is execution:
                kernel.pause(True)

    def _on_output(self, execution: Execution, message: dict[str, Any], blob: bytes) -> None:
        execution.output(parse_output(message, blob), blob)

    def _on_clear(self, execution: Execution, message: dict[str, Any], blob: bytes) -> None:
        execution.clear(message.get("wait") is True)

    def _on_error(self, execution: Execution, message: dict[str, Any], blob: bytes) -> None:
        failed = parse_error(message)
        if execution.stopping == "timeout":
            execution.fail(*timed_out(execution.wishes.timeout_s or 0.0, failed))
        elif failed.killed and (kernel := self._slot.kernel) is not None and kernel.group.was_out_of_memory():
            execution.fail("out_of_memory", failed, kernel.group.peak_memory())
        else:
            execution.fail(judge(failed, execution.stopping), failed)

    def _on_done(self, execution: Execution, message: dict[str, Any], blob: bytes) -> None:
        done = parse_done(message)
        if execution.stopping == "timeout":
            execution.fail(*timed_out(execution.wishes.timeout_s or 0.0, Failed("", "", "", [], False)))
        self._over(execution)
        execution.finish(done.number, done.duration_s, done.changes)
        self._next()

    def on_death(self, kernel: Kernel, ending: Ending) -> None:
        if kernel is not self._slot.kernel:
            return
        if self._slot.is_starting:
            self._slot.on_death_at_start()
            return
        execution, used = self._running, self._slot.is_used
        self._slot.drop()
        if execution is not None:
            last_words = execution.last_words
            self._slot.begin()
            if execution.stopping == "timeout":
                self._end_cell(execution, *timed_out(execution.wishes.timeout_s or 0.0, None))
            else:
                self._end_cell(execution, *dead(ending, last_words, idle=False))
        elif used or self.cells:
            self._died_idle = ending
            if used:  # one that nobody has used is not replaced until somebody does: it may die at once, always
                self._slot.begin()


_CELL_EVENTS: Final = {
    "output": CodeContext._on_output,
    "clear": CodeContext._on_clear,
    "error": CodeContext._on_error,
    "done": CodeContext._on_done,
}
