"""When a refused request is sent again, and after how long. Pure.

Only refusals that a server sends before anything was done count. Of any request: 429 with `Retry-After`, which is too many of
them at once. Of a create or fork also 503 with `Retry-After` and an error in JSON, and 507. Whatever could follow a request that
went through (500, 502, a dropped connection, a timeout) is raised.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from belljar.sdk.environment import RETRY_VARIABLES, variable
from belljar.sdk.errors import InvalidArgument

DEFAULT_BUDGET_S = 60.0
FIRST_JITTER_S, MAX_JITTER_S = 1.0, 15.0
# 507 brings no hint of its own, and a wait that was cut short by the budget is still a wait.
FLOOR_507_S, SHORTEST_S = 0.5, 1.0


@dataclass(frozen=True)
class CreateRetryEvent:
    """A create that was refused and will be sent again: what `on_create_retry` gets before the wait."""

    method: str
    path: str
    attempt: int
    status_code: int
    error: str
    delay_seconds: float
    elapsed_seconds: float
    retry_after_seconds: float | None = None


def retry_budget(wish: float | None) -> float:
    """Seconds within which the last try may start; 0 for a single one."""
    given: object = wish if wish is not None else variable(RETRY_VARIABLES)
    if given is None:
        return DEFAULT_BUDGET_S
    try:
        seconds = float(given)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        seconds = math.nan
    if not math.isfinite(seconds) or seconds < 0:
        source = "max_create_retry_seconds" if wish is not None else " or ".join(RETRY_VARIABLES)
        raise InvalidArgument(f"{source} must be a number of seconds, 0 or more, not {given!r}")
    return seconds


def parse_retry_after(value: str | None) -> float | None:
    """Seconds, or a date as HTTP writes it."""
    try:
        seconds = float(value or "")
    except ValueError:
        try:
            when = parsedate_to_datetime(value or "")
        except (TypeError, ValueError, IndexError, OverflowError):
            return None
        seconds = (when.replace(tzinfo=when.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
    return max(0.0, seconds) if math.isfinite(seconds) else None


def wait_before_retry(
    status: int,
    retry_after: float | None,
    payload: Any,
    attempt: int,
    left_s: float,
    *,
    create: bool,
    uniform: Callable[[float, float], float] = random.uniform,
) -> float | None:
    """Seconds to wait before the next try, or None if this answer is the last word. `left_s` is what remains of the budget."""
    explained = isinstance(payload, dict) and isinstance(payload.get("error"), str) and payload["error"].strip()
    full = create and (status == 507 or (status == 503 and explained and retry_after is not None))
    refused = full or (status == 429 and retry_after is not None)
    floor = max(retry_after or 0.0, FLOOR_507_S if status == 507 else 0.0)
    if not refused or left_s <= 0 or floor > left_s:
        return None
    delay = floor + uniform(0.0, min(MAX_JITTER_S, FIRST_JITTER_S * 2 ** min(attempt, 30)))
    if delay <= left_s:
        return delay
    return left_s if left_s >= max(floor, SHORTEST_S) else None
