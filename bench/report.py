"""Results as Markdown for people and as JSON with every raw sample."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.results import Result, Series, Verdict


def render_number(value: float) -> str:
    """Three digits that matter, without an exponent."""
    if value == 0 or abs(value) >= 100:
        return f"{value:.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if abs(value) >= 0.1 else f"{value:.3f}"


def render_markdown(host: Mapping[str, Any], results: Mapping[str, Result], problems: Mapping[str, str]) -> str:
    """The whole report."""
    lines = ["# Benchmark", "", *_facts(host), "", "## Targets", "", "| what | measured | target | met |", "|---|---|---|---|"]
    lines += [_verdict_row(verdict) for result in results.values() for verdict in result.verdicts]
    for name, problem in problems.items():
        lines.append(f"| {name} | failed: {' '.join(problem.split())} | | **no** |")
    for name, result in results.items():
        lines += ["", f"## {result.title} (`{name}`)", ""]
        if result.series:
            lines += ["| series | n | p50 | p99 | unit |", "|---|---|---|---|---|", *map(_series_row, result.series)]
        lines += ["", *(f"- {note}" for note in result.notes)] if result.notes else []
    return "\n".join(lines) + "\n"


def _facts(host: Mapping[str, Any]) -> list[str]:
    return [f"- {name}: {value}" for name, value in host.items()]


def _verdict_row(verdict: Verdict) -> str:
    unit = verdict.unit if verdict.unit == "×" else f" {verdict.unit}"
    target = "reported" if verdict.limit is None else f"≤ {render_number(verdict.limit)}{unit}"
    met = {None: "", True: "yes", False: "**no**"}[verdict.met]
    return f"| {verdict.what} | {render_number(verdict.value)}{unit} | {target} | {met} |"


def _series_row(series: Series) -> str:
    p50, p99 = render_number(series.p50), render_number(series.p99)
    return f"| {series.name} | {len(series.samples)} | {p50} | {p99} | {series.unit} |"


def write_results(
    folder: Path, stamp: str, host: Mapping[str, Any], results: Mapping[str, Result], problems: Mapping[str, str]
) -> str:
    """Write <stamp>.json and latest.md; returns the Markdown."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {
        "host": dict(host),
        "results": {name: result.to_json() for name, result in results.items()},
        "problems": dict(problems),
    }
    (folder / f"{stamp}.json").write_text(json.dumps(content, indent=1) + "\n")
    text = render_markdown(host, results, problems)
    (folder / "latest.md").write_text(text)
    return text
