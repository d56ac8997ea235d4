"""What is sent as a file's content: bytes, text, an open file, or either in pieces. Pure."""

from __future__ import annotations

from collections.abc import Generator, Iterable

from belljar.sdk.errors import InvalidArgument
from belljar.sdk.tarring import PIECE_BYTES


def as_bytes(given: object) -> bytes:
    """Text is UTF-8; bytes that were none when the text was read come back as they were."""
    if isinstance(given, str):
        return given.encode("utf-8", "surrogateescape")
    if isinstance(given, bytes | bytearray | memoryview):
        return bytes(given)
    raise InvalidArgument(f"content is bytes, text, an open file or an iterable of those, not {type(given).__name__}")


def plain_pieces(content: object) -> Generator[bytes, None, None]:
    """Any content that needs no waiting. A file is not read line by line: a line may be as long as the file."""
    read = getattr(content, "read", None)
    if callable(read):
        while found := read(PIECE_BYTES):
            yield as_bytes(found)
    elif isinstance(content, Iterable) and not isinstance(content, str | bytes | bytearray | memoryview):
        for piece in content:
            yield as_bytes(piece)
    else:
        yield as_bytes(content)
