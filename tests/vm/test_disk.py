"""Copies of sparse files."""

from __future__ import annotations

import os
from pathlib import Path

from belljar.vm.disk import clone_file


def test_a_copy_has_the_content_and_the_holes(tmp_path: Path) -> None:
    source = tmp_path / "source"
    with source.open("wb") as file:
        file.truncate(1 << 30)
        os.pwrite(file.fileno(), b"start", 0)
        os.pwrite(file.fileno(), b"middle" * 300_000, 500 << 20)
    clone_file(source, tmp_path / "copy")
    copy = tmp_path / "copy"
    assert copy.stat().st_size == 1 << 30
    assert copy.stat().st_blocks * 512 < 16 << 20, "holes were filled"
    with copy.open("rb") as file:
        assert file.read(6) == b"start\0"
        file.seek(500 << 20)
        assert file.read(1_800_000) == b"middle" * 300_000


def test_a_copy_replaces_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(b"o" * 10_000)
    (tmp_path / "new").write_bytes(b"n")
    clone_file(tmp_path / "new", tmp_path / "old", sync=True)
    assert (tmp_path / "old").read_bytes() == b"n"
