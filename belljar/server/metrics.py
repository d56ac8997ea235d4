"""Counters in Prometheus' text format: sandboxes by state, requests by route and status, how long creates take."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send

BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """What was counted since the server started."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._creates: Counter[float] = Counter()
        self._create_count, self._create_sum_s = 0, 0.0

    def count(self, route: str, method: str, status: int, seconds: float) -> None:
        self._requests[route, method, status] += 1
        if route.endswith("sandboxes.create") and status == 201:
            self._create_count += 1
            self._create_sum_s += seconds
            for bound in BUCKETS_S:
                self._creates[bound] += seconds <= bound

    def render(self, states: Mapping[str, int]) -> str:
        lines = ["# HELP belljar_sandboxes Sandboxes by state.", "# TYPE belljar_sandboxes gauge"]
        lines += [f'belljar_sandboxes{{state="{state}"}} {states[state]}' for state in sorted(states)]
        lines += ["# HELP belljar_requests_total Answered requests.", "# TYPE belljar_requests_total counter"]
        for (route, method, status), count in sorted(self._requests.items()):
            lines.append(f'belljar_requests_total{{route="{route}",method="{method}",status="{status}"}} {count}')
        name = "belljar_create_duration_seconds"
        lines += [f"# HELP {name} Time that successful creates took.", f"# TYPE {name} histogram"]
        lines += [f'{name}_bucket{{le="{bound:g}"}} {self._creates[bound]}' for bound in BUCKETS_S]
        lines += [f'{name}_bucket{{le="+Inf"}} {self._create_count}', f"{name}_sum {self._create_sum_s:.6f}"]
        return "\n".join([*lines, f"{name}_count {self._create_count}", ""])


class Counted:
    """Counts every request under the name of the function that answered it; ids in paths would be endless labels."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status, began = 0, time.monotonic()

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watched)
        finally:
            route = _name(scope.get("endpoint"))
            method = scope["method"] if scope["method"] in ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD") else "other"
            self._metrics.count(route, method, status, time.monotonic() - began)


def _name(endpoint: object) -> str:
    """`pandastack.sandboxes.create`; a request that no function answered has none, and inner applications do not count."""
    module, name = getattr(endpoint, "__module__", ""), getattr(endpoint, "__name__", "")
    return f"{module.removeprefix('belljar.server.')}.{name}" if name and module.startswith("belljar.server.") else "none"
