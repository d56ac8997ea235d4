"""The bar on the terminal, and who is told how far it is."""

from __future__ import annotations

import io
import sys

import pytest

from belljar.sdk.progress import Bar, Meter, human, render_bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_bar_fills() -> None:
    assert render_bar("a.bin", 0, 100, 0) == f"a.bin {'░' * 30}   0% 0 B of 100 B 0 B/s"
    assert render_bar("a.bin", 50, 100, 2048) == f"a.bin {'█' * 15}{'░' * 15}  50% 50 B of 100 B 2.0 KiB/s"
    assert "100%" in render_bar("a.bin", 150, 100, 1)
    assert render_bar("a.bin", 1536, None, 1) == "a.bin 1.5 KiB 1 B/s"
    assert len(render_bar("x" * 500, 1, 2, 1)) < 110


def test_sizes_are_for_people() -> None:
    assert [human(size) for size in (0, 1023, 1024, 5 * 2**30, 2**60)] == ["0 B", "1023 B", "1.0 KiB", "5.0 GiB", "1048576.0 TiB"]


def test_it_is_shown_on_terminals_only() -> None:
    shown, hidden = Terminal(), io.StringIO()
    for file in (shown, hidden):
        bar = Bar("file", file)
        bar.show(1, 10)
        bar.show(2, 10)  # too soon after the other
        bar.show(10, 10)
    assert hidden.getvalue() == ""
    assert shown.getvalue().count("\r") == 2 and shown.getvalue().endswith("\n")


def test_a_meter_counts_for_whoever_wants_to_know() -> None:
    told: list[tuple[int, int | None]] = []
    meter = Meter(lambda done, total: told.append((done, total)), "x", 10)
    assert meter.count(4) == (4, 10) and meter.count(6) == (10, 10)
    assert Meter(False, "x", 10).count(4) is None


def test_a_program_without_a_console_sees_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    Bar("file").show(1, 10)
