"""Which refusals are worth another try, and how long to wait for it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from pandastack.client import _capacity_retry_plan

from belljar.sdk.errors import InvalidArgument
from belljar.sdk.retrying import parse_retry_after, retry_budget, wait_before_retry

FULL = {"error": "no room"}


def wait(
    status: int, hint: float | None, payload: Any = FULL, *, attempt: int = 0, left: float = 60.0, create: bool = True
) -> float | None:
    return wait_before_retry(status, hint, payload, attempt, left, create=create, uniform=lambda low, high: high)


@pytest.mark.parametrize("hint", [None, 0.0, 5.0, 61.0])
@pytest.mark.parametrize("status", [200, 400, 429, 500, 502, 503, 507])
@pytest.mark.parametrize("payload", [FULL, "busy", {"error": ""}, None])
def test_creates_are_tried_again_exactly_when_the_published_client_does(status: int, hint: float | None, payload: Any) -> None:
    class Response:
        status_code = status
        headers = {"Retry-After": str(hint)} if hint is not None else {}

    published = _capacity_retry_plan(Response(), payload, 0, 0.0, 60.0)  # type: ignore[arg-type]
    assert (wait(status, hint, payload) is None) == (published is None)


def test_only_too_many_requests_are_tried_again_for_other_calls() -> None:
    assert wait(429, 1.0, create=False) == 2.0
    assert wait(503, 1.0, create=False) is None and wait(507, None, create=False) is None


def test_waits_grow_and_keep_within_the_budget() -> None:
    assert [wait(507, None, attempt=n) for n in range(6)] == [1.5, 2.5, 4.5, 8.5, 15.5, 15.5]
    assert wait(503, 5.0, attempt=9, left=12.0) == 12.0  # cut short, and still longer than the hint
    assert wait(507, None, attempt=9, left=0.9) is None  # too short to be worth it
    assert wait(429, 5.0, left=4.0) is None
    assert wait(507, None, left=0.0) is None


def test_hints_are_seconds_or_dates() -> None:
    assert parse_retry_after("2.5") == 2.5
    later = parse_retry_after(format_datetime(datetime.now(UTC) + timedelta(seconds=30)))
    assert later is not None and 20 < later <= 30
    assert parse_retry_after(format_datetime(datetime.now(UTC) - timedelta(hours=1))) == 0.0
    for nothing in (None, "", "soon", "nan", "inf"):
        assert parse_retry_after(nothing) is None


def test_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PANDASTACK_MAX_CREATE_RETRY_SECONDS", raising=False)
    assert (retry_budget(None), retry_budget(0), retry_budget(3.5)) == (60.0, 0.0, 3.5)
    monkeypatch.setenv("PANDASTACK_MAX_CREATE_RETRY_SECONDS", "7")
    assert retry_budget(None) == 7.0
    monkeypatch.setenv("BELLJAR_MAX_CREATE_RETRY_SECONDS", "8")
    assert retry_budget(None) == 8.0
    for wrong in (-1, float("nan"), float("inf"), "x"):
        with pytest.raises(InvalidArgument):
            retry_budget(wrong)  # type: ignore[arg-type]
