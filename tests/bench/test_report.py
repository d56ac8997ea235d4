from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.report import render_markdown, render_number, write_results
from bench.results import Result, Series, Verdict


@pytest.fixture
def result() -> Result:
    verdicts = [Verdict("fast enough", 0.0321, "×", 0.05), Verdict("too large", 61, "MiB", 60), Verdict("rate", 31.4, "MB/s")]
    return Result("Create", [Series("create", "ms", [110.0, 130.0, 120.0])], verdicts, ["a note"])


@pytest.mark.parametrize(("value", "text"), [(0, "0"), (0.0321, "0.032"), (1.234, "1.23"), (12.34, "12.3"), (4321.5, "4322")])
def test_numbers_keep_the_digits_that_matter(value: float, text: str) -> None:
    assert render_number(value) == text


def test_markdown_says_what_was_met_and_what_was_not(result: Result) -> None:
    lines = render_markdown({"host": "2 cores"}, {"create": result}, {}).splitlines()
    assert "- host: 2 cores" in lines
    assert "| fast enough | 0.032× | ≤ 0.050× | yes |" in lines
    assert "| too large | 61.0 MiB | ≤ 60.0 MiB | **no** |" in lines
    assert "| rate | 31.4 MB/s | reported |  |" in lines


def test_markdown_shows_median_and_tail_of_each_series(result: Result) -> None:
    text = render_markdown({}, {"create": result}, {})
    assert "| create | 3 | 120 | 130 | ms |" in text
    assert "- a note" in text


def test_a_benchmark_that_failed_is_a_target_that_was_missed() -> None:
    text = render_markdown({}, {}, {"fork": "SandboxGone: it\n ended"})
    assert "| fork | failed: SandboxGone: it ended | | **no** |" in text.splitlines()


def test_raw_samples_and_summary_are_written(tmp_path: Path, result: Result) -> None:
    text = write_results(tmp_path / "results", "20300101T000000", {"host": "h"}, {"create": result}, {"fork": "broke"})
    stored = json.loads((tmp_path / "results" / "20300101T000000.json").read_text())
    assert stored["results"]["create"]["series"][0]["samples"] == [110.0, 130.0, 120.0]
    assert stored["problems"] == {"fork": "broke"}
    assert (tmp_path / "results" / "latest.md").read_text() == text
