"""How results look: aligned tables for people, JSON for programs. Text of guests is made harmless for the terminal."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def one_line(text: str) -> str:
    """Without line breaks and control characters: guests choose names and messages, and a terminal obeys escape sequences."""
    return "".join(c if c.isprintable() else " " if c.isspace() else f"\\x{ord(c):02x}" for c in text)


def render_table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    cells = [list(headers), *([one_line("-" if value is None else str(value)) for value in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(headers))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells)


def render_json(value: Any) -> str:
    """Dataclasses become objects. Escaped to ASCII, so that it is valid whatever the guest put in a name."""
    return json.dumps(value, indent=2, default=_plain)


def render_age(seconds: float) -> str:
    """Two units at most: 45s, 12m30s, 3h05m, 2d04h."""
    whole = max(0, int(seconds))
    days, hours, minutes = whole // 86400, whole // 3600 % 24, whole // 60 % 60
    if days:
        return f"{days}d{hours:02}h"
    if hours:
        return f"{hours}h{minutes:02}m"
    return f"{minutes}m{whole % 60:02}s" if minutes else f"{whole}s"


def render_since(moment: float) -> str:
    return render_age(time.time() - moment)


def render_until(moment: float | None) -> str | None:
    return None if moment is None else render_age(moment - time.time())


def render_bytes(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def render_pairs(pairs: Mapping[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted(pairs.items()))


def flatten(value: Any, name: str = "") -> list[tuple[str, str]]:
    """Nested objects as rows: `memory.total`, and its value."""
    value = _plain(value) if not isinstance(value, dict | list | tuple | str | int | float | None) else value
    if isinstance(value, dict):
        return [row for key, inner in value.items() for row in flatten(inner, f"{name}.{key}".lstrip("."))]
    if isinstance(value, list | tuple):
        value = ", ".join(map(str, value)) or None
    return [(name, "-" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value))]


def make_progress() -> Callable[[str], None]:
    """Steps of something long, with the time since it began, where they do not mix with results."""
    began = time.monotonic()

    def progress(step: str) -> None:
        print(f"[{time.monotonic() - began:6.1f} s] {one_line(step)}", file=sys.stderr, flush=True)

    return progress


def _plain(value: Any) -> Any:
    from dataclasses import asdict, is_dataclass

    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return str(value)
