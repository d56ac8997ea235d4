"""An exception as an event: its name, its text and its traceback, of bounded size whatever the exception is."""

from __future__ import annotations

import re
import traceback
from types import TracebackType
from typing import Any

MAX_VALUE = 16 * 1024
MAX_TRACEBACK = 64 * 1024
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def error_event(kind: type[BaseException], value: BaseException | None, lines: list[str]) -> dict[str, Any]:
    event = {"ev": "error", "name": kind.__name__, "value": _shorten(text_of(value), MAX_VALUE), "traceback": _bounded(lines)}
    if isinstance(value, OSError) and isinstance(value.errno, int):
        event["errno"] = value.errno
    return event


def text_of(value: BaseException | None) -> str:
    if isinstance(value, SystemExit):
        return "0" if value.code is None else str(value.code)
    try:
        return str(value)
    except Exception:
        return f"<{type(value).__name__} whose text cannot be made>"


def plain_traceback(kind: type[BaseException], value: BaseException | None, tb: TracebackType | None) -> list[str]:
    """As Python itself would print it, from the first frame of the user's code on."""
    while tb is not None and tb.tb_next is not None and "IPython" in tb.tb_frame.f_code.co_filename:
        tb = tb.tb_next
    try:
        return traceback.format_exception(kind, value, tb)
    except Exception:
        return [f"{kind.__name__}: {text_of(value)}"]


def _bounded(chunks: list[str]) -> list[str]:
    text = _ESCAPES.sub("", "\n".join(chunk.rstrip("\n") for chunk in chunks))
    return _shorten(text, MAX_TRACEBACK).split("\n")


def _shorten(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"
