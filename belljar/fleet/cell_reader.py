"""What a guest's agent sends about one cell, judged and turned into events. Pure.

    MESSAGE {"started"}  (DATA 1 | DATA 2 | MESSAGE {"output"} DATA 3... | MESSAGE {"clear"} | MESSAGE {"error"})*
    MESSAGE {"done"}  END

An output's bytes follow its message at once, exactly as many as it announces.
"""

from __future__ import annotations

import codecs
import json
from dataclasses import dataclass

from belljar.errors import AgentProtocol
from belljar.fleet.answers import MAX_ID_CHARS, Answer
from belljar.fleet.execution import Clear, Done, Event, Failure, Output, Started, Stderr, Stdout
from belljar.fleet.results import ERROR_KINDS, ChangedFile, Changes, Cut, ErrorKind, ExecutionError, Result, Truncated, Variable
from belljar.vm.link import Data, Message

MAX_PARTS = 256
MAX_MIME_CHARS = 255
# What each result costs besides its bytes, so that a flood of empty ones has an end too.
RESULT_COST_BYTES = 64
# What the guest may send above the budgets: notes in the place of results that did not fit.
SLACK_BYTES = 1024 * 1024


@dataclass(frozen=True)
class Budget:
    """Bytes of each output stream, and of all results together, that come back. The guest keeps to it; a liar is found out."""

    output: int = 1024 * 1024
    results: int = 8 * 1024 * 1024


@dataclass(frozen=True)
class _Part:
    mime: str
    size: int
    kind: str


class CellReader:
    """What came over the channel of one cell, turned into events. Pure, and holds at most one output's bytes."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._left = {1: budget.output + SLACK_BYTES, 2: budget.output + SLACK_BYTES, 3: budget.results + SLACK_BYTES}
        self._decoders = {stream: codecs.getincrementaldecoder("utf-8")("replace") for stream in (1, 2)}
        self._header: Answer | None = None
        self._parts: list[_Part] = []
        self._blob = bytearray()
        self._wanted = 0

    def take(self, item: Data | Message) -> list[Event]:
        if isinstance(item, Data):
            return self._take_data(item)
        if self._header is not None:
            raise AgentProtocol("the guest announced a result and did not send all of it")
        message = Answer(item.body, "cell event")
        if "started" in message:
            started = message.object("started")
            return [Started(started.text("execution", max_chars=MAX_ID_CHARS), started.optional_whole("count"))]
        if "output" in message:
            return self._announce(message.object("output"))
        if "clear" in message:
            return [Clear(message.object("clear").flag("wait"))]
        if "error" in message:
            return [Failure(parse_error(message.object("error")))]
        return [*self._flush(), parse_done(message.object("done"))]

    def _spend(self, stream: int, size: int) -> None:
        self._left[stream] -= size
        if self._left[stream] < 0:
            raise AgentProtocol("the guest sent more of a cell's output than it was asked for")

    def _take_data(self, item: Data) -> list[Event]:
        if item.stream not in self._left:
            raise AgentProtocol(f"the guest sent bytes on stream {item.stream}, which no cell has")
        if (item.stream == 3) != (self._header is not None):
            raise AgentProtocol("the guest sent a result's bytes where none were due, or something else where they were")
        if item.stream == 3:
            self._blob += item.data
            return self._complete()
        self._spend(item.stream, len(item.data))
        text = self._decoders[item.stream].decode(item.data)
        return [Stdout(text) if item.stream == 1 else Stderr(text)] if text else []

    def _flush(self) -> list[Event]:
        """What is left of characters that were cut off in the middle."""
        out, err = (self._decoders[stream].decode(b"", final=True) for stream in (1, 2))
        return [event for event in (Stdout(out), Stderr(err)) if event.text]

    def _announce(self, header: Answer) -> list[Event]:
        parts = [_parse_part(part) for part in header.objects("parts")]
        if len(parts) > MAX_PARTS or len({part.mime for part in parts}) != len(parts):
            raise AgentProtocol("the guest sent a result with too many parts, or with one type twice")
        self._wanted = sum(part.size for part in parts)
        self._spend(3, self._wanted + RESULT_COST_BYTES + len(json.dumps(header.mapping("metadata"))))
        self._header, self._parts = header, parts
        return self._complete()

    def _complete(self) -> list[Event]:
        if len(self._blob) < self._wanted:
            return []
        if len(self._blob) > self._wanted or self._header is None:
            raise AgentProtocol("the guest sent more bytes of a result than it announced")
        data: dict[str, str | bytes] = {}
        start = 0
        for part in self._parts:
            raw = bytes(self._blob[start : start + part.size])
            start += part.size
            data[part.mime] = raw if part.kind == "binary" else raw.decode("utf-8", "replace")
        header, self._header = self._header, None
        self._blob.clear()
        display_id = header.text("display_id", max_chars=1024) if "display_id" in header else None
        return [Output(Result(data, header.flag("main"), header.mapping("metadata"), display_id), header.flag("update"))]


def _parse_part(part: Answer) -> _Part:
    kind = part.one_of("kind", "text", "binary", "json")
    return _Part(part.text("mime", max_chars=MAX_MIME_CHARS), part.whole("size"), kind)


def parse_error(error: Answer) -> ExecutionError:
    kind: ErrorKind = error.one_of("kind", *ERROR_KINDS)  # type: ignore[assignment]
    return ExecutionError(
        kind=kind,
        name=error.text("name"),
        value=error.text("value"),
        traceback=tuple(error.texts("traceback")),
        state_lost=error.flag("state_lost"),
        peak_memory_bytes=error.optional_whole("peak_memory_bytes"),
    )


def parse_done(done: Answer) -> Done:
    truncated = done.object("truncated")
    return Done(
        id=done.text("execution", max_chars=MAX_ID_CHARS),
        count=done.optional_whole("count"),
        duration_s=done.number("duration_s"),
        changes=_parse_changes(done.object("changes")) if "changes" in done else None,
        truncated=Truncated(*(_parse_cut(truncated, name) for name in ("stdout", "stderr", "results"))),
    )


def _parse_cut(truncated: Answer, name: str) -> Cut | None:
    if name not in truncated:
        return None
    cut = truncated.object(name)
    # A stream has one file at most, results may have many.
    files = cut.texts("files") if "files" in cut else [cut.text("file")] if "file" in cut else []
    return Cut(cut.whole("omitted"), tuple(files), cut.flag("complete"), cut.optional_whole("head"))


def _parse_changes(changes: Answer) -> Changes:
    variables, files = changes.object("variables"), changes.object("files")
    return Changes(
        added=parse_variables(variables, "added"),
        changed=parse_variables(variables, "changed"),
        removed=tuple(variables.texts("removed")),
        files_added=tuple(_parse_file(file) for file in files.objects("added")),
        files_changed=tuple(_parse_file(file) for file in files.objects("changed")),
        files_removed=tuple(files.texts("removed")),
        files_complete=files.flag("complete"),
    )


def _parse_file(file: Answer) -> ChangedFile:
    return ChangedFile(file.text("path"), file.whole("size"))


def parse_variables(answer: Answer, name: str) -> tuple[Variable, ...]:
    return tuple(
        Variable(
            name=item.text("name"),
            type=item.text("type"),
            shape=item.optional_text("shape"),
            size_bytes=item.optional_whole("size_bytes"),
            preview=item.text("preview"),
        )
        for item in answer.objects(name)
    )
