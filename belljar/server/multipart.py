"""Forms that carry one file (multipart/form-data). The file's bytes stream; the fields before it are held, and are few."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import Request

from belljar.errors import InvalidInput, TooLarge
from belljar.server.asking import body_of

MAX_PARTS, MAX_FIELD_BYTES, MAX_HEADER_BYTES = 16, 64 * 1024, 8 * 1024


@dataclass
class _Part:
    """One part as far as it has come. `data` waits to be taken."""

    header: bytearray = field(default_factory=bytearray)
    value: bytearray = field(default_factory=bytearray)
    name: str = ""
    is_file: bool = False
    data: deque[bytes] = field(default_factory=deque)


class _Form:
    """What the parser says, in the order in which it says it."""

    def __init__(self, boundary: bytes) -> None:
        self.fields: dict[str, str] = {}
        self.file: _Part | None = None
        self.over = False
        self._parts = 0
        self._part = _Part()
        self._text = bytearray()
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin,
                "on_header_field": self._header_field,
                "on_header_value": self._header_value,
                "on_header_end": self._header_end,
                "on_headers_finished": self._headers_finished,
                "on_part_data": self._data,
                "on_part_end": self._part_end,
                "on_end": self._end,
            },
        )

    def write(self, piece: bytes) -> None:
        try:
            self._parser.write(piece)
        except FormParserError:
            raise InvalidInput("the body is not a valid multipart form") from None

    def _begin(self) -> None:
        self._part, self._text = _Part(), bytearray()
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise TooLarge(f"the form has more than {MAX_PARTS} parts")

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._grow(self._part.header, data[start:end], MAX_HEADER_BYTES)

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._grow(self._part.value, data[start:end], MAX_HEADER_BYTES)

    def _header_end(self) -> None:
        part = self._part
        if part.header.lower() == b"content-disposition":
            _, options = parse_options_header(bytes(part.value))
            part.name = options.get(b"name", b"").decode("utf-8", "replace")
            part.is_file = b"filename" in options or part.name == "file"
        part.header.clear()
        part.value.clear()

    def _headers_finished(self) -> None:
        if self._part.is_file:
            if self.file is not None:
                raise InvalidInput("the form has more than one file")
            self.file = self._part

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self._part.is_file:
            self._part.data.append(data[start:end])
        else:
            self._grow(self._text, data[start:end], MAX_FIELD_BYTES)

    def _part_end(self) -> None:
        if not self._part.is_file:
            self.fields[self._part.name] = self._text.decode("utf-8", "surrogateescape")

    def _end(self) -> None:
        self.over = True

    def _grow(self, target: bytearray, data: bytes, limit: int) -> None:
        target += data
        if len(target) > limit:
            raise TooLarge(f"a field of the form has more than {limit} bytes")


async def read_form(request: Request) -> tuple[dict[str, str], AsyncGenerator[bytes, None]]:
    """The fields that came before the file, and the file's bytes as they come."""
    kind, options = parse_options_header(request.headers.get("content-type"))
    boundary = options.get(b"boundary")
    if kind != b"multipart/form-data" or not boundary:
        raise InvalidInput("the body must be multipart/form-data with a boundary")
    form, pieces = _Form(boundary), body_of(request)
    while form.file is None:
        piece = await anext(pieces, None)
        if piece is None:
            raise InvalidInput("the form has no file")
        form.write(piece)
    return form.fields, _contents(form, form.file, pieces)


async def _contents(form: _Form, file: _Part, pieces: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """Ends only when the whole form has come: half of it is not the file that was meant."""
    while True:
        while file.data:
            yield file.data.popleft()
        if form.over:
            return
        piece = await anext(pieces, None)
        if piece is None:
            raise InvalidInput("the form ended in the middle")
        form.write(piece)
