"""What can be sent as a file's content."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from belljar.sdk.contents import as_bytes, plain_pieces
from belljar.sdk.errors import InvalidArgument
from belljar.sdk.tarring import PIECE_BYTES


def test_everything_that_stands_for_bytes() -> None:
    for content in (b"abc", "abc", bytearray(b"abc"), memoryview(b"abc"), [b"a", "b", b"", bytearray(b"c")], iter([b"ab", b"c"])):
        assert b"".join(plain_pieces(content)) == b"abc", content
    assert as_bytes("\udcff") == b"\xff"


def test_a_file_is_read_in_pieces_of_a_size_and_not_in_lines(tmp_path: Path) -> None:
    data = b"\n\n" + b"x" * (2 * PIECE_BYTES)
    assert [len(piece) for piece in plain_pieces(io.BytesIO(data))] == [PIECE_BYTES, PIECE_BYTES, 2]
    (tmp_path / "text").write_text("grüße\n", encoding="utf-8")
    with (tmp_path / "text").open(encoding="utf-8") as file:
        assert b"".join(plain_pieces(file)) == "grüße\n".encode()


@pytest.mark.parametrize("wrong", [5, None, [b"a", 5], {1: 2}])
def test_anything_else_is_refused(wrong: object) -> None:
    with pytest.raises(InvalidArgument, match="bytes, text"):
        list(plain_pieces(wrong))
