"""Locks of sandboxes: whatever goes wrong, none is left that keeps others away for as long as this process lives."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from belljar.errors import HostDiskShort, SandboxError
from belljar.fleet import launching
from belljar.fleet.launching import Running, discard, take_lock


class Immortal:
    """A machine whose process does not end."""

    async def kill(self) -> None:
        raise SandboxError("process 1 did not end within 10 s of SIGKILL")

    release = kill


def assert_free(folder: Path) -> None:
    os.close(take_lock(folder))  # raises SandboxBusy if it is not


def test_a_lock_that_cannot_be_signed_is_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(launching.os, "pwrite", full)
        with pytest.raises(HostDiskShort, match="could not be locked"):
            take_lock(tmp_path)
    assert_free(tmp_path)


@pytest.mark.parametrize("way", ["kill", "detach"])
async def test_a_machine_that_does_not_end_is_left_to_the_next_clean_up(tmp_path: Path, way: str) -> None:
    machine: Any = Immortal()
    with pytest.raises(SandboxError):
        await getattr(Running(machine, None, take_lock(tmp_path)), way)()
    assert_free(tmp_path)


async def test_so_is_one_that_was_to_be_discarded(tmp_path: Path) -> None:
    machine: Any = Immortal()
    context: Any = SimpleNamespace()
    with pytest.raises(SandboxError):
        await discard(context, "sb", machine, take_lock(tmp_path))
    assert_free(tmp_path)
