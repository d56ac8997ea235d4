"""How far an upload or download has come: to a callback, or as a bar on the terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

from belljar.sdk.errors import InvalidArgument

# Called with the bytes done so far, and with those in all where that is known.
Progress = Callable[[int, int | None], object]

# A sandbox may send without end.
MAX_DOWNLOAD_BYTES = 64 * 2**30
WIDTH = 30
EVERY_S = 0.1
UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


class Meter:
    """Counts pieces on their way and tells, up to `limit`. `wish` is a callback, True for a bar, or False."""

    def __init__(self, wish: Progress | bool, label: str, total: int | None, limit: int | None = None) -> None:
        self._label, self._limit = label, limit
        self._tell = wish if callable(wish) else Bar(label).show if wish else None
        self.total = total
        self.done: int = 0

    def count(self, size: int) -> tuple[int, int | None] | None:
        """Adds up; what to tell, if anybody wants to know."""
        self.done += size
        if self._limit is not None and self.done > self._limit:
            raise InvalidArgument(f"{self._label} has more than {self._limit} bytes; raise max_bytes if they are wanted")
        return (self.done, self.total) if self._tell is not None else None

    @property
    def tell(self) -> Progress | None:
        return self._tell


class Bar:
    """One line that is written over and over, at most ten times a second; nothing where stderr is no terminal."""

    def __init__(self, label: str, file: TextIO | None = None) -> None:
        self._label = label
        self._file: TextIO | None = file or sys.stderr
        self._began = time.monotonic()
        self._next = 0.0

    def show(self, done: int, total: int | None) -> None:
        if self._file is None or not self._file.isatty():  # programs without a console have no stderr at all
            return
        now, over = time.monotonic(), total is not None and done >= total
        if now < self._next and not over:
            return
        self._next = now + EVERY_S
        rate = done / max(now - self._began, 1e-3)
        self._file.write(f"\r\x1b[K{render_bar(self._label, done, total, rate)}" + ("\n" if over else ""))
        self._file.flush()


def render_bar(label: str, done: int, total: int | None, rate: float) -> str:
    label = label if len(label) <= 30 else f"…{label[-29:]}"
    if not total:
        return f"{label} {human(done)} {human(rate)}/s"
    filled = min(WIDTH, WIDTH * done // total)
    bar = "█" * filled + "░" * (WIDTH - filled)
    return f"{label} {bar} {min(100, 100 * done // total):3d}% {human(done)} of {human(total)} {human(rate)}/s"


def human(size: float) -> str:
    unit = 0
    while size >= 1024 and unit < len(UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.0f} {UNITS[unit]}" if unit == 0 else f"{size:.1f} {UNITS[unit]}"
