"""How often a workspace may call: a bucket of tokens each, filled at a steady rate. One token is one request."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from belljar.errors import RateLimited
from belljar.service.quotas import Limits

# A rate may be so low that the time to the next request is no number any more.
LONGEST_S = 86400.0


@dataclass
class _Bucket:
    tokens: float
    at: float


class Rates:
    """The buckets of all workspaces that have called since this process began."""

    def __init__(self, limits: Callable[[str], Limits], clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._buckets: dict[str, _Bucket] = {}

    def take(self, workspace: str) -> None:
        """Count one request, or raise RateLimited, which says when the next one may come."""
        limits, now = self._limits(workspace), self._clock()
        if not limits.rate_per_s:
            return
        bucket = self._buckets.setdefault(workspace, _Bucket(limits.rate_burst, now))
        bucket.tokens = min(limits.rate_burst, bucket.tokens + (now - bucket.at) * limits.rate_per_s)
        bucket.at = now
        if bucket.tokens < 1:
            raise RateLimited(
                f"rate limit reached: {limits.rate_per_s:g} requests per second, {limits.rate_burst} at once; slow down",
                retry_after_s=max(1, math.ceil(min((1 - bucket.tokens) / limits.rate_per_s, LONGEST_S))),
            )
        bucket.tokens -= 1
