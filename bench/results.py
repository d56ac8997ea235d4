"""What a benchmark found: series of raw samples, and verdicts that weigh them against a target."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any


def percentile(samples: list[float], share: float) -> float:
    """By nearest rank: always one of the samples. With fewer than a hundred, p99 is the worst one."""
    if not samples:
        raise ValueError("no samples")
    if not 0 < share <= 1:
        raise ValueError(f"a share is more than 0 and at most 1, not {share!r}")
    return sorted(samples)[math.ceil(share * len(samples)) - 1]


@dataclass(frozen=True)
class Series:
    """The samples of one thing, in the order in which they were taken."""

    name: str
    unit: str
    samples: list[float]

    @property
    def p50(self) -> float:
        return percentile(self.samples, 0.5)

    @property
    def p99(self) -> float:
        return percentile(self.samples, 0.99)

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "unit": self.unit, "p50": self.p50, "p99": self.p99, "samples": self.samples}


@dataclass(frozen=True)
class Verdict:
    """One figure beside its target. Without a limit it is only reported."""

    what: str
    value: float
    unit: str
    limit: float | None = None

    @property
    def met(self) -> bool | None:
        return None if self.limit is None else self.value <= self.limit

    def to_json(self) -> dict[str, Any]:
        return {"what": self.what, "value": self.value, "unit": self.unit, "limit": self.limit, "met": self.met}


@dataclass
class Result:
    """All that one benchmark found."""

    title: str
    series: list[Series] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def ratio(self, what: str, subject: Series, yardstick: Series, limit: float | None = None) -> None:
        """Judge the median of one series by that of another."""
        self.verdicts.append(Verdict(what, subject.p50 / yardstick.p50, "×", limit))

    def to_json(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "series": [series.to_json() for series in self.series],
            "verdicts": [verdict.to_json() for verdict in self.verdicts],
            "notes": self.notes,
        }
