"""The log of a sandbox on disk: bounded, and readable whatever happened to its writer."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from belljar.store.outputs import FILE_BYTES, OutputLog


def test_lines_come_back_in_order(tmp_path: Path) -> None:
    log = OutputLog(tmp_path)
    assert log.read() == []
    log.append(b"oone\netwo\n")
    log.append(b"othree\n")
    assert log.read() == [b"oone", b"etwo", b"othree"]


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    log = OutputLog(tmp_path)
    for number in range(0, 30_000, 100):
        log.append(b"".join(b"o%0100d\n" % each for each in range(number, number + 100)), b"phead 1 2\n")
    kept = log.read()
    assert sum(len(line) + 1 for line in kept) <= FILE_BYTES
    assert kept[-1] == b"o%0100d" % 29_999
    numbers = [int(line[1:]) for line in kept if line[:1] == b"o"]
    assert numbers == list(range(numbers[0], 30_000)) and len(numbers) > 9000
    assert b"phead 1 2" in kept, "what a new file must begin with was lost with the old one"
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 2 * FILE_BYTES


def test_a_line_that_a_crash_cut_short_costs_that_line_alone(tmp_path: Path) -> None:
    log = OutputLog(tmp_path)
    log.append(b"owhole\n")
    with (tmp_path / "output.log").open("ab") as file:
        file.write(b"ocut sho")
    assert log.read() == [b"owhole", b"ocut sho"]
    log.append(b"onext\n")
    assert log.read() == [b"owhole", b"ocut sho", b"onext"]


def test_a_folder_that_is_gone_takes_nothing(tmp_path: Path) -> None:
    log = OutputLog(tmp_path / "gone")
    log.append(b"oone\n")
    assert log.read() == [] and not (tmp_path / "gone").exists()


def test_a_folder_that_goes_while_a_file_is_exchanged_closes_nothing_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "sandbox"
    folder.mkdir()
    log = OutputLog(folder)
    log.append(b"o" + b"x" * (FILE_BYTES - 10) + b"\n")
    closed: list[int] = []
    real_open, real_close = log._open, os.close

    def open_the_second_time_without_a_folder() -> int:
        if (folder / "output.log.1").exists():
            folder.rename(tmp_path / "removing")
        return real_open()

    def close(fd: int) -> None:
        closed.append(fd)
        real_close(fd)

    monkeypatch.setattr(log, "_open", open_the_second_time_without_a_folder)
    monkeypatch.setattr(os, "close", close)
    log.append(b"omore than fits\n")
    monkeypatch.undo()
    assert not folder.exists(), "the file was not exchanged: this test shows nothing"
    assert len(closed) == 1, f"descriptors were closed {len(closed)} times; by then one of them may be another file's"
