"""What a sandbox asked for and what became of it: the last connections, sums over all, and denials for whoever wants to know.

Everything is bounded: a guest that asks without end only pushes its own older lines out.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

KEPT = 1000
KEPT_DENIALS = 256
MAX_NOTES = 20
MAX_REASON_CHARS = 300


@dataclass
class Connection:
    """One ask. `verdict` is `allowed`, `refused` (by the rules), or why an allowed one failed."""

    kind: str  # connect, or resolve for a name that was refused before any connection
    name: str | None
    address: str | None
    port: int | None
    verdict: str
    reason: str
    rule: str
    at: float = field(default_factory=time.time)
    bytes_in: int = 0
    bytes_out: int = 0
    duration_seconds: float | None = None
    open: bool = False

    @property
    def target(self) -> str:
        host = self.name or self.address or "?"
        host = f"[{host}]" if ":" in host else host
        return host if self.port is None else f"{host}:{self.port}"

    @property
    def note(self) -> str:
        """For people."""
        return f"network: {self.target} was refused: {self.reason}"

    def to_json(self) -> dict[str, Any]:
        values = asdict(self)
        if self.open:
            values["duration_seconds"] = max(0.0, time.time() - self.at)
        return values


@dataclass
class Counters:
    """Sums since this sandbox's log began. `bytes_in` came from outside, `bytes_out` went there."""

    allowed: int = 0
    refused: int = 0
    failed: int = 0
    resolved: int = 0
    open: int = 0
    bytes_in: int = 0
    bytes_out: int = 0


class Log:
    """The log of one sandbox. `on_denied` is told of every denial and must not wait for anything."""

    def __init__(self, on_denied: Callable[[Connection], None] | None = None) -> None:
        self.counters = Counters()
        self.on_denied = on_denied
        self._lines: deque[Connection] = deque(maxlen=KEPT)
        self._denials: deque[tuple[int, str]] = deque(maxlen=KEPT_DENIALS)
        self._denied = 0

    def lines(self) -> list[Connection]:
        """Oldest first."""
        return list(self._lines)

    def refuse(self, line: Connection) -> None:
        line.reason = line.reason[:MAX_REASON_CHARS]
        self.counters.refused += 1
        self._lines.append(line)
        self._denied += 1
        self._denials.append((self._denied, line.note))
        if self.on_denied is not None:
            self.on_denied(line)

    def fail(self, line: Connection) -> None:
        line.reason = line.reason[:MAX_REASON_CHARS]
        self.counters.failed += 1
        self._lines.append(line)

    def begin(self, line: Connection) -> None:
        line.open = True
        self.counters.allowed += 1
        self.counters.open += 1
        self._lines.append(line)

    def end(self, line: Connection, reason: str = "") -> None:
        if line.open:
            line.open = False
            line.duration_seconds = max(0.0, time.time() - line.at)
            line.reason = reason[:MAX_REASON_CHARS] or line.reason
            self.counters.open -= 1

    def moved(self, line: Connection, incoming: int = 0, outgoing: int = 0) -> None:
        line.bytes_in += incoming
        line.bytes_out += outgoing
        self.counters.bytes_in += incoming
        self.counters.bytes_out += outgoing

    def mark(self) -> int:
        """To ask later what was denied since."""
        return self._denied

    def denied_since(self, mark: int) -> list[str]:
        """The notes of denials after `mark`, each once with its number, the first few of them."""
        counts: dict[str, int] = {}
        for number, note in self._denials:
            if number > mark:
                counts[note] = counts.get(note, 0) + 1
        notes = [note if count == 1 else f"{note} ({count} times)" for note, count in counts.items()]
        if len(notes) > MAX_NOTES:
            notes = [*notes[: MAX_NOTES - 1], f"network: {len(notes) - MAX_NOTES + 1} other connections were refused"]
        return notes
