"""What a SIGINT does: it stops the user's code, and nothing else.

A kernel between two cells ignores it. While a cell runs it raises KeyboardInterrupt, except in the sections that must not be cut
short, such as the middle of a message; there it waits until the section is over. The handler stays installed all the time: an
ignored signal would be inherited by every process that the user's threads start.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any


class Gate:
    """Open while the user's code runs. `with gate:` is a section of it that an interrupt does not cut short."""

    def __init__(self) -> None:
        self._open = False
        self._held = 0
        self._pending = False
        # Set while a cell awaits: says whether it took the interrupt upon itself.
        self.awaiting: Callable[[], bool] | None = None

    def install(self) -> None:
        """Also puts the handler back where the user's code has set one of its own."""
        if signal.getsignal(signal.SIGINT) != self.handle:
            signal.signal(signal.SIGINT, self.handle)

    def open(self) -> None:
        self._pending = False
        self._open = True

    def close(self) -> None:
        self._open = False

    def handle(self, _signum: int, _frame: FrameType | None) -> None:
        if not self._open:
            return
        if self._held:
            self._pending = True
        elif self.awaiting is None or not self.awaiting():
            raise KeyboardInterrupt

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():  # signals are handled there alone
            self._held += 1

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        self._held -= 1
        if self._pending and self._open and not self._held and kind is None:
            self._pending = False
            raise KeyboardInterrupt
