"""One code context: a kernel, the cells that wait for it, and the one that runs.

    starting ── ready ──> idle ── a cell ──> busy ── done ──> idle
        ^                  │                   │
        └── the kernel died, or had to be killed; the context keeps its id, and a cell is told that its state is gone

A cell that is to stop is interrupted first. Only a timeout goes on to kill the kernel when that did not help.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections import deque
from typing import Any, Final

from belljar.guest.channel import Channel
from belljar.guest.context import Context
from belljar.guest.execution import Execution, Place, Wishes
from belljar.guest.failure import Failure
from belljar.guest.journal import MAX_READERS, Memory, Reader
from belljar.guest.kernelmessages import Failed, Violation, fit, parse_done, parse_error, parse_output, parse_variables
from belljar.guest.kernelprocess import Ending, Kernel
from belljar.guest.kernelstart import COLD_DEADLINE_S, Setting, Starter
from belljar.guest.verdicts import dead, judge, never_ready, stopped, timed_out

MAX_QUEUE: Final = 64
GRACE_S: Final = 5.0
_YOUNG_S: Final = 1.0
_AGAIN_S: Final = 1.5
_ANSWER_DEADLINE_S: Final = 5.0
_INLINE_CODE: Final = 64 * 1024  # longer code travels as a blob
_KEPT_BETWEEN_CELLS: Final = 64 * 1024
_RESEED: Final = signal.SIGUSR1


class CodeContext:
    def __init__(self, name: str, setting: Setting, context: Context, starter: Starter, memory: Memory) -> None:
        self.id = name
        self.setting = setting
        self.created_at = time.time()
        self.cells = 0
        self._context = context
        self._starter = starter
        self._place = Place(memory, context.workers, setting.account, self._on_room)
        self._made = 0
        self._number = 0  # of the message to the kernel, counted from its start
        self._count = 0  # of the cell, likewise; silent ones do not count
        self._kernel: Kernel | None = None
        self._ready: asyncio.Future[dict[str, Any]] | None = None
        self._start: asyncio.Task[None] | None = None
        self._running: Execution | None = None
        self._last: Execution | None = None
        self._queue: deque[Execution] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._died_idle: Ending | None = None
        self._between: list[tuple[int, bytes]] = []  # written while no cell ran
        self._said_at_start = b""
        self._idle_waiters: list[asyncio.Future[None]] = []
        self._variables: asyncio.Future[list[dict[str, Any]]] | None = None
        self._deleted = False
        self._interrupts_by_message = False
        self._loop = asyncio.get_running_loop()

    # -- what it is

    @property
    def is_python(self) -> bool:
        return self.setting.language.name == "python"

    @property
    def state(self) -> str:
        if self._running is not None:
            return "busy"
        return "starting" if self._start is not None or (self._kernel is None and self._queue) else "idle"

    def describe(self, default: bool) -> dict[str, Any]:
        return {
            "id": self.id,
            "language": self.setting.language.name,
            "created_at": self.created_at,
            "state": self.state,
            "cells": self.cells,
            "queued": len(self._queue),
            "default": default,
            "pid": self._kernel.pid if self._kernel is not None else None,
        }

    # -- its kernel

    async def start(self) -> dict[str, Any]:
        """Until the kernel is ready. Returns what it says of itself."""
        start, ready = self._start_kernel()
        await asyncio.wait([start])
        if ready.done() and not ready.cancelled():
            return ready.result()  # raises what went wrong
        raise Failure("conflict", f"context {self.id} was restarted or deleted while it started")

    def _start_kernel(self) -> tuple[asyncio.Task[None], asyncio.Future[dict[str, Any]]]:
        self._give_up_start()
        self._number = self._count = 0
        self._said_at_start = b""
        self._between.clear()
        ready = self._ready = self._loop.create_future()
        start = self._start = self._loop.create_task(self._start_later(ready))
        return start, ready

    def _give_up_start(self) -> None:
        if self._ready is not None:
            self._ready.cancel()
        self._ready = self._start = None

    async def _start_later(self, ready: asyncio.Future[dict[str, Any]]) -> None:
        kernel: Kernel | None = None
        try:
            kernel = await self._starter.start(self.id, self.setting)
            kernel.begin(self)
            if self._ready is not ready:  # restarted or deleted meanwhile
                kernel.dispose()
                return
            self._kernel = kernel
            self._tell(self._environment(), self._cwd())
            async with asyncio.timeout(COLD_DEADLINE_S):
                await asyncio.shield(ready)
        except TimeoutError:
            self._not_ready(ready, Failure("sandbox_error", f"the {self.setting.language.name} kernel did not get ready in time"))
        except Failure as failure:
            self._not_ready(ready, failure)
        except OSError as error:
            self._not_ready(ready, Failure("sandbox_error", f"the kernel could not be started: {error.strerror}"))
        except asyncio.CancelledError:  # of `ready`: somebody gave this start up
            if kernel is not None:
                kernel.dispose()
            raise
        if self._ready is ready:
            self._start = None
            if self._kernel is not None:
                self._next()

    def _not_ready(self, ready: asyncio.Future[dict[str, Any]], failure: Failure) -> None:
        if not ready.done():
            ready.set_exception(failure)
        ready.exception()  # whoever cares has it; nobody else has to
        if self._ready is not ready:
            return
        self._drop_kernel()
        if self._queue:
            self._end_cell(self._queue.popleft(), *never_ready(failure.message))
            self._loop.call_soon(self._next)

    def _drop_kernel(self) -> None:
        kernel, self._kernel = self._kernel, None
        if kernel is not None:
            kernel.dispose()
        if self._variables is not None and not self._variables.done():
            self._variables.set_exception(Failure("conflict", f"context {self.id} had to be started afresh"))

    def _environment(self) -> dict[str, str]:
        return self._context.environment(self.setting.account, self.setting.env)

    def _cwd(self) -> str:
        return self._context.resolve(self.setting.cwd or "")

    def _tell(self, env: dict[str, str], cwd: str | None) -> None:
        if self._kernel is not None and (env or cwd is not None):
            self._kernel.send({"do": "env", "set": env, "cwd": cwd})

    def thawed(self, env: dict[str, str], cwd: str | None) -> None:
        """This machine is a copy: other defaults, and other random numbers. A directory that cells have chosen stays."""
        kernel = self._kernel
        if kernel is None:
            return
        self._tell(
            {name: value for name, value in env.items() if name not in self.setting.env},
            cwd if self.setting.cwd is None and not self.cells and self._running is None else None,
        )
        if self.is_python:
            kernel.send_signal(_RESEED)
        else:
            kernel.send({"do": "reseed"})

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
        elif self._start is None:
            if self._kernel is None:
                self._start_kernel()
            else:
                self._run(self._kernel, self._queue.popleft())

    def _run(self, kernel: Kernel, execution: Execution) -> None:
        self._running = execution
        self._number += 1
        wishes = execution.wishes
        message = {"do": "run", "n": self._number, "code": wishes.code, "stdin": wishes.stdin, "changes": wishes.changes}
        if wishes.silent:
            message["count"] = False
            execution.begin(self._number, None)
        else:
            self._count += 1
            execution.begin(self._number, self._count)
        if len(wishes.code) <= _INLINE_CODE:
            kernel.send(message)
        else:
            kernel.send({**message, "code": None}, wishes.code.encode("utf-8", "surrogatepass"))
        if wishes.timeout_s is not None:
            self._timer = self._loop.call_later(wishes.timeout_s, self._on_timeout, execution)
        if self._between:
            for stream, data in self._between:
                execution.text(stream, data)
            self._between.clear()

    def _end_cell(self, execution: Execution, kind: str, failed: Failed, peak_memory: int | None = None) -> None:
        """For cells that their kernel did not bring to an end."""
        execution.fail(kind, failed, peak_memory)
        self._over(execution)
        execution.finish()

    def _over(self, execution: Execution) -> None:
        if self._timer is not None and self._running is execution:
            self._timer.cancel()
            self._timer = None
        if self._running is execution:
            self._running = None
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
        return self._stop("interrupted")

    def _stop(self, why: str) -> bool:
        if self._running is None or self._kernel is None:
            return False
        execution = self._running
        execution.stopping = execution.stopping or why
        self._interrupt(self._kernel, execution)
        if why == "timeout" or execution.age_s < _YOUNG_S:
            # A kernel that had not come to the cell yet has ignored it; and before a kernel is killed it gets a second chance.
            self._loop.call_later(_AGAIN_S, self._interrupt_again, execution)
        return True

    def _interrupt_again(self, execution: Execution) -> None:
        if self._running is execution and self._kernel is not None:
            self._interrupt(self._kernel, execution)

    def _interrupt(self, kernel: Kernel, execution: Execution) -> None:
        """Where a signal would not do for the kernel, the programs that it waits for still get it."""
        kernel.interrupt()
        if self._interrupts_by_message:
            kernel.send({"do": "interrupt", "n": execution.number})

    def _on_timeout(self, execution: Execution) -> None:
        if self._running is execution:
            self._stop("timeout")
            execution.stopping = "timeout"
            self._timer = self._loop.call_later(GRACE_S, self._on_grace_over, execution)

    def _on_grace_over(self, execution: Execution) -> None:
        kernel = self._kernel
        if self._running is not execution or kernel is None:
            return
        kernel.drain()
        if self._running is execution:
            self._drop_kernel()
            self._start_kernel()
            self._end_cell(execution, *timed_out(execution.wishes.timeout_s or 0.0, None))

    def _on_left(self, execution: Execution, by_host: bool) -> None:
        """The client is gone. A session that was lost says nothing about what it wanted."""
        if not by_host or execution.wishes.keep_running or execution.is_over:
            return
        if execution is self._running:
            self._stop("interrupted")
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
        if self._kernel is not None and self._running is not None:
            self._kernel.drain()
        self._drop_kernel()
        self._died_idle = None
        self._abandon_cells("restarted")
        await self.start()

    def delete(self) -> None:
        self._deleted = True
        self._give_up_start()
        self._drop_kernel()
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
        await self._wait_idle(_ANSWER_DEADLINE_S)
        if self._kernel is None:
            await self.start()
        if self._variables is None or self._variables.done():
            self._variables = self._loop.create_future()
            if self._kernel is not None:
                self._kernel.send({"do": "variables"})
        try:
            variables = await asyncio.wait_for(asyncio.shield(self._variables), _ANSWER_DEADLINE_S)
        except TimeoutError:
            raise Failure("conflict", f"context {self.id} is busy; ask again when its cell is done") from None
        omitted = fit([variables])
        return {"variables": variables, "omitted": omitted}

    async def _wait_idle(self, deadline_s: float) -> None:
        if self._running is None and not self._queue and self._start is None:
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
        elif self._start is not None:
            self._said_at_start = (self._said_at_start + data)[-2048:]
        else:
            self._between.append((stream, data))
            while sum(len(kept) for _, kept in self._between) > _KEPT_BETWEEN_CELLS or len(self._between) > 1024:
                self._between.pop(0)

    def _on_room(self) -> None:
        if self._kernel is not None and (self._running is None or not self._running.is_behind):
            self._kernel.pause(False)

    def on_event(self, kernel: Kernel, message: dict[str, Any], blob: bytes) -> None:
        event = message.get("ev")
        execution = self._running
        if event == "ready":
            if self._ready is not None and not self._ready.done():
                self._said_at_start = b""
                self._interrupts_by_message = message.get("interrupt") == "message"
                self._ready.set_result({"version": str(message.get("version"))[:100]})
        elif event == "variables":
            if self._variables is not None and not self._variables.done():
                self._variables.set_result(parse_variables(message.get("variables")))
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
        elif failed.killed and self._kernel is not None and self._kernel.group.was_out_of_memory():
            execution.fail("out_of_memory", failed, self._kernel.group.peak_memory())
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
        if kernel is not self._kernel:
            return
        execution, used = self._running, self._number > 0
        if self._start is not None:
            said = self._said_at_start.decode(errors="replace").strip()
            if self._ready is not None and not self._ready.done():
                message = f"the {self.setting.language.name} kernel ended before it was ready: {said or 'it said nothing'}"
                self._ready.set_exception(Failure("sandbox_error", message))
            return
        self._drop_kernel()
        if execution is not None:
            last_words = execution.last_words
            self._start_kernel()
            if execution.stopping == "timeout":
                self._end_cell(execution, *timed_out(execution.wishes.timeout_s or 0.0, None))
            else:
                self._end_cell(execution, *dead(ending, last_words, idle=False))
        elif used or self.cells:
            self._died_idle = ending
            if used:  # one that nobody has used is not replaced until somebody does: it may die at once, always
                self._start_kernel()


_CELL_EVENTS: Final = {
    "output": CodeContext._on_output,
    "clear": CodeContext._on_clear,
    "error": CodeContext._on_error,
    "done": CodeContext._on_done,
}
