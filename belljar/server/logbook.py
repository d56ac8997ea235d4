"""The server's log on stderr: a JSON object per line for machines, a short line for terminals.

Records are handed to a thread, so that a slow reader of stderr never holds up the event loop; when too many wait, the newest are
dropped and counted. What a caller must not find in a log (tokens, query strings, bodies) is never given to it.
"""

from __future__ import annotations

import json
import logging
import logging.handlers
import queue
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, TextIO

MAX_WAITING = 10_000
LAST_WORDS_S = 5.0
MAX_TEXT_CHARS = 8192

REQUEST_ID: ContextVar[str | None] = ContextVar("request_id", default=None)


class JsonFormatter(logging.Formatter):
    """One object per line, in ASCII: whatever a guest put into a message, the line stays one line."""

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(_facts(record), default=str)


class TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        facts = _facts(record)
        trace = facts.pop("exception", "")
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        words = [f"{name}={value}" for name, value in facts.items() if name not in ("time", "level", "logger", "message")]
        line = " ".join([clock, record.levelname, str(facts["message"]), *words])
        return "\n".join([_printable(line), *(_printable(part) for part in trace.splitlines())])


def _facts(record: logging.LogRecord) -> dict[str, Any]:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    facts: dict[str, Any] = {
        "time": f"{seconds}.{int(record.msecs):03}Z",
        "level": record.levelname.lower(),
        "logger": record.name,
        "message": record.getMessage()[:MAX_TEXT_CHARS],
    }
    request_id = getattr(record, "request_id", None)
    if request_id is not None:
        facts["request_id"] = request_id
    facts.update(getattr(record, "fields", {}))
    if record.exc_info and record.exc_info[1] is not None:
        facts["exception"] = "".join(traceback.format_exception(record.exc_info[1]))[-MAX_TEXT_CHARS:]
    return facts


def _printable(text: str) -> str:
    """Guests choose parts of messages, and a terminal obeys escape sequences."""
    return "".join(c if c.isprintable() else " " if c.isspace() else f"\\x{ord(c):02x}" for c in text)


class _Sender(logging.handlers.QueueHandler):
    """Marks each record with the request that it belongs to, and never waits."""

    dropped = 0

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        if not hasattr(record, "request_id"):
            record.request_id = REQUEST_ID.get()
        return record

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            self.queue.put_nowait(record)
        except queue.Full:
            _Sender.dropped += 1


def dropped_records() -> int:
    return _Sender.dropped


@contextmanager
def logging_to(stream: TextIO, log_format: str, level: str) -> Iterator[None]:
    """All of this process's log goes there until the block ends."""
    if log_format == "auto":
        log_format = "text" if stream.isatty() else "json"
    writer = logging.StreamHandler(stream)
    writer.setFormatter(TextFormatter() if log_format == "text" else JsonFormatter())
    waiting: queue.Queue[Any] = queue.Queue(MAX_WAITING)
    writing = threading.Thread(target=_write, args=(waiting, writer), name="log", daemon=True)
    sender, root = _Sender(waiting), logging.getLogger()
    before = root.level
    root.addHandler(sender)
    root.setLevel(level.upper())
    # Of other people's modules only what goes wrong: their routine says nothing about sandboxes.
    for name in ("uvicorn", "asyncio", "websockets"):
        logging.getLogger(name).setLevel(logging.WARNING)
    writing.start()
    try:
        yield
    finally:
        root.removeHandler(sender)
        root.setLevel(before)
        with suppress(queue.Full):  # whoever reads the log has stopped reading: nothing waits for that for ever
            waiting.put(None, timeout=LAST_WORDS_S)
            writing.join(LAST_WORDS_S)


def _write(waiting: queue.Queue[Any], writer: logging.Handler) -> None:
    while (record := waiting.get()) is not None:
        writer.handle(record)
