"""Device state on its way into a machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from belljar.vm.devicestate import sealed_copy


def open_states() -> int:
    return sum("belljar-state" in str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink())


def test_a_copy_cannot_be_changed(tmp_path: Path) -> None:
    (tmp_path / "state").write_bytes(b"devices")
    fd = sealed_copy(tmp_path / "state")
    assert os.pread(fd, 100, 0) == b"devices"
    with pytest.raises(PermissionError):
        os.pwrite(fd, b"x", 0)
    os.close(fd)


def test_a_file_that_is_gone_leaves_nothing_open(tmp_path: Path) -> None:
    before = open_states()
    with pytest.raises(FileNotFoundError):
        sealed_copy(tmp_path / "gone")
    assert open_states() == before
