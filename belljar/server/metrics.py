"""Counters in Prometheus' text format."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from belljar.server.logbook import dropped_records
from belljar.service.figures import Figures

BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
LAG_BUCKETS_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LAG_EVERY_S = 1.0
CREATES = ("/v1/sandboxes", "/sandboxes")

Labels = tuple[tuple[str, str], ...]


class Histogram:
    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        place = next((index for index, bound in enumerate(self._bounds) if value <= bound), len(self._bounds))
        self._counts[place] += 1
        self._sum += value

    def samples(self, name: str, labels: Labels = ()) -> Iterator[str]:
        so_far = 0
        for bound, count in zip((*map("{:g}".format, self._bounds), "+Inf"), self._counts, strict=True):
            so_far += count
            yield _sample(f"{name}_bucket", (*labels, ("le", bound)), so_far)
        yield _sample(f"{name}_sum", labels, round(self._sum, 6))
        yield _sample(f"{name}_count", labels, so_far)


class Metrics:
    """What was counted since the server started."""

    def __init__(self) -> None:
        self._started_at = time.time()
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._failures: Counter[str] = Counter()
        self._durations: defaultdict[str, Histogram] = defaultdict(lambda: Histogram(BUCKETS_S))
        self._creates = Histogram(BUCKETS_S)
        self._lag = Histogram(LAG_BUCKETS_S)

    def count(self, route: str, method: str, status: int, seconds: float, code: str | None) -> None:
        self._requests[route, method, status] += 1
        self._durations[route].add(seconds)
        if code is not None:
            self._failures[code] += 1
        if method == "POST" and status == 201 and route in CREATES:
            self._creates.add(seconds)

    async def measure_lag(self) -> None:
        """How late the event loop is, all the time: whatever blocks it makes every call wait."""
        while True:
            due = time.monotonic() + LAG_EVERY_S
            await asyncio.sleep(LAG_EVERY_S)
            self._lag.add(max(0.0, time.monotonic() - due))

    def render(self, figures: Figures, under_way: int) -> str:
        lines: list[str] = []

        def series(name: str, kind: str, about: str, samples: Iterable[str]) -> None:
            lines.extend([f"# HELP {name} {about}", f"# TYPE {name} {kind}", *samples])

        def single(name: str, kind: str, about: str, value: float) -> None:
            series(name, kind, about, [_sample(name, (), value)])

        def by(name: str, label: str, values: Mapping[str, float]) -> list[str]:
            return [_sample(name, ((label, key),), values[key]) for key in sorted(values)]

        requests = [
            _sample("belljar_requests_total", (("route", route), ("method", method), ("status", str(status))), count)
            for (route, method, status), count in sorted(self._requests.items())
        ]
        durations = [
            sample
            for route, histogram in sorted(self._durations.items())
            for sample in histogram.samples("belljar_request_duration_seconds", (("route", route),))
        ]
        creates, lag = "belljar_create_duration_seconds", "belljar_event_loop_lag_seconds"
        series("belljar_sandboxes", "gauge", "Sandboxes by state.", by("belljar_sandboxes", "state", figures.states))
        single("belljar_snapshots", "gauge", "Snapshots.", figures.snapshots)
        single("belljar_memory_promised_bytes", "gauge", "Memory of machines that are awake.", figures.memory_promised)
        single("belljar_memory_promise_limit_bytes", "gauge", "What may be promised of it.", figures.memory_limit)
        single("belljar_memory_available_bytes", "gauge", "Memory that the host has left.", figures.memory_available)
        single("belljar_disk_promised_bytes", "gauge", "Disks of all sandboxes.", figures.disk_promised)
        single("belljar_disk_free_bytes", "gauge", "Space left where the home is.", figures.disk_free)
        single("belljar_starts_due", "gauge", "Starts of machines that wait or are under way.", figures.starts_due)
        events = by("belljar_events_total", "type", figures.events)
        series("belljar_events_total", "counter", "What happened to sandboxes, by kind.", events)
        series("belljar_requests_total", "counter", "Answered requests.", requests)
        failures = by("belljar_failures_total", "code", self._failures)
        series("belljar_failures_total", "counter", "Requests that failed, by the code of the error.", failures)
        series("belljar_request_duration_seconds", "histogram", "Time to the end of the answer.", durations)
        single("belljar_requests_under_way", "gauge", "Requests that are being answered, streams included.", under_way)
        series(creates, "histogram", "Time that successful creates took.", self._creates.samples(creates))
        series(lag, "histogram", "How late the event loop was.", self._lag.samples(lag))
        single("belljar_log_records_dropped_total", "counter", "Lines that the log could not take.", dropped_records())
        single("process_start_time_seconds", "gauge", "When the server started.", round(self._started_at, 3))
        single("process_resident_memory_bytes", "gauge", "Memory of the server itself.", _resident_bytes())
        single("process_open_fds", "gauge", "Open files of the server itself.", len(list(Path("/proc/self/fd").iterdir())))
        return "\n".join([*lines, ""])


def _sample(name: str, labels: Labels, value: float) -> str:
    shown = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels)
    return f"{name}{{{shown}}} {value}" if shown else f"{name} {value}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
