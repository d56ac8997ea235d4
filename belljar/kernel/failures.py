"""An exception as an event: its name, its text and its traceback, of bounded size whatever the exception is."""

from __future__ import annotations

import re
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any

MAX_VALUE = 16 * 1024
MAX_TRACEBACK = 64 * 1024
MAX_FRAMES = 40
_OWN = str(Path(__file__).parent)
_CELL_FILE = re.compile(r"<ipython-input-(\d+)-[0-9a-f]+>")
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def error_event(kind: type[BaseException], value: BaseException | None, lines: list[str]) -> dict[str, Any]:
    text = _shorten(text_of(value), MAX_VALUE)
    event: dict[str, Any] = {"ev": "error", "name": kind.__name__, "value": text, "traceback": _bounded(lines)}
    if isinstance(value, OSError) and isinstance(value.errno, int):
        event["errno"] = value.errno
    return event


def text_of(value: BaseException | None) -> str:
    if isinstance(value, SystemExit):
        return "0" if value.code is None else str(value.code)
    try:
        if isinstance(value, SyntaxError) and value.msg and value.lineno:
            return f"{value.msg} (line {value.lineno})"  # the file's name, if it is a cell, means nothing
        return str(value)
    except Exception:
        return f"<{type(value).__name__} whose text cannot be made>"


def without_own_frames(tb: TracebackType | None) -> TracebackType | None:
    """The traceback as if the user's code, the libraries and IPython were all there is."""
    kept = []
    while tb is not None:
        if not tb.tb_frame.f_code.co_filename.startswith(_OWN):
            kept.append(tb)
        tb = tb.tb_next
    if len(kept) > MAX_FRAMES:  # endless recursion: to format a thousand frames takes IPython seconds
        kept[MAX_FRAMES // 2 : -MAX_FRAMES // 2] = []
    for frame, following in zip(kept, [*kept[1:], None], strict=True):
        frame.tb_next = following
    return kept[0] if kept else None


def plain_traceback(kind: type[BaseException], value: BaseException | None, tb: TracebackType | None) -> list[str]:
    """As Python itself would print it, from the first frame of the user's code on."""
    while tb is not None and tb.tb_next is not None and "IPython" in tb.tb_frame.f_code.co_filename:
        tb = tb.tb_next
    try:
        return "".join(traceback.format_exception(kind, value, tb)).split("\n")
    except Exception:
        return [f"{kind.__name__}: {text_of(value)}"]


def _bounded(chunks: list[str]) -> list[str]:
    text = _CELL_FILE.sub(r"Cell In[\1]", _ESCAPES.sub("", "\n".join(chunks).strip("\n")))
    return _shorten(text, MAX_TRACEBACK).split("\n")


def _shorten(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"
