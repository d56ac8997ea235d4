"""The cell whose turn it is: its time limit, and how it is stopped.

A cell that is to stop is interrupted first. Only a timeout goes on to give up the kernel when that did not help.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from belljar.guest.execution import Execution
from belljar.guest.kernelslot import KernelSlot

GRACE_S: Final = 5.0
_YOUNG_S: Final = 1.0
_AGAIN_S: Final = 1.5


class Turn:
    """From the moment the kernel gets the cell. `on_stuck` is called if it went on after its time limit, whatever was tried."""

    def __init__(self, execution: Execution, slot: KernelSlot, on_stuck: Callable[[Execution], None]) -> None:
        self.execution = execution
        self._slot = slot
        self._on_stuck = on_stuck
        self._is_over = False
        self._loop = asyncio.get_running_loop()
        limit_s = execution.wishes.timeout_s
        self._timer = self._loop.call_later(limit_s, self._on_timeout) if limit_s is not None else None

    def end(self) -> None:
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()

    def stop(self, why: str) -> bool:
        if self._slot.kernel is None:
            return False
        execution = self.execution
        execution.stopping = execution.stopping or why
        self._interrupt()
        if why == "timeout" or execution.age_s < _YOUNG_S:
            # A kernel that had not come to the cell yet has ignored it; and before a kernel is killed it gets a second chance.
            self._loop.call_later(_AGAIN_S, self._interrupt)
        return True

    def _interrupt(self) -> None:
        if not self._is_over:
            self._slot.interrupt(self.execution.number)

    def _on_timeout(self) -> None:
        self.stop("timeout")
        self.execution.stopping = "timeout"
        self._timer = self._loop.call_later(GRACE_S, self._on_grace_over)

    def _on_grace_over(self) -> None:
        if self._slot.kernel is not None:
            self._slot.kernel.drain()
            if not self._is_over:
                self._on_stuck(self.execution)
