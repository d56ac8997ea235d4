from __future__ import annotations

import pytest

from bench.results import Result, Series, Verdict, percentile


def test_percentile_is_always_one_of_the_samples() -> None:
    samples = [float(n) for n in range(1, 101)]
    assert percentile(samples, 0.5) == 50
    assert percentile(samples, 0.99) == 99
    assert percentile(samples, 1) == 100


def test_percentile_does_not_care_about_the_order() -> None:
    assert percentile([5.0, 1.0, 3.0], 0.5) == 3


def test_p99_of_few_samples_is_the_worst() -> None:
    assert Series("x", "ms", [2.0, 9.0, 4.0]).p99 == 9


def test_one_sample_is_its_own_percentile() -> None:
    series = Series("x", "ms", [7.0])
    assert (series.p50, series.p99) == (7, 7)


@pytest.mark.parametrize("share", [0, -0.5, 1.01])
def test_a_share_outside_its_range_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match="share"):
        percentile([1.0], share)


def test_no_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="no samples"):
        percentile([], 0.5)


def test_a_verdict_is_met_up_to_its_limit() -> None:
    assert Verdict("x", 2.5, "×", 2.5).met is True
    assert Verdict("x", 2.51, "×", 2.5).met is False
    assert Verdict("x", 2.5, "×").met is None


def test_ratio_is_of_the_medians() -> None:
    result = Result("t")
    result.ratio("r", Series("a", "ms", [1.0, 6.0, 99.0]), Series("b", "ms", [2.0, 3.0, 50.0]), 3)
    assert result.verdicts == [Verdict("r", 2.0, "×", 3)]


def test_json_keeps_every_sample_in_order() -> None:
    assert Series("a", "ms", [3.0, 1.0]).to_json()["samples"] == [3.0, 1.0]
