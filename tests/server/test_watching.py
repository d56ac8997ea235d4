"""What an operator sees: the log, request ids, metrics, health."""

from __future__ import annotations

import io
import json
import logging
import re
import shutil
import sqlite3
import threading
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pandastack
import pytest
import requests
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from belljar.server.closing import Closing
from belljar.server.logbook import MAX_WAITING, dropped_records, logging_to
from belljar.server.metrics import Metrics
from belljar.server.underway import Underway
from belljar.server.watching import Watched
from tests.server.conftest import Api, Server, eventually

SAMPLE = re.compile(r'^([a-z_]+)(?:\{((?:[a-z_]+="(?:[^"\\]|\\.)*",?)*)\})? (-?[0-9.e+]+)$')


def parse_metrics(text: str) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Samples by name and labels. Fails for what Prometheus would not read: untyped, doubled or malformed lines."""
    samples: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    kinds: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            name, kind = line.split()[2:]
            assert name not in kinds, f"{name} is declared twice"
            kinds[name] = kind
        elif not line.startswith("# HELP "):
            match = SAMPLE.match(line)
            assert match, f"not a sample: {line}"
            name, labels, value = match.groups()
            base = re.sub(r"_(bucket|sum|count)$", "", name)
            assert name in kinds or kinds.get(base) == "histogram", f"{name} has no type"
            key = tuple(re.findall(r'([a-z_]+)="((?:[^"\\]|\\.)*)"', labels or ""))
            assert key not in samples.setdefault(name, {}), f"doubled: {line}"
            samples[name][key] = float(value)
    for name, kind in kinds.items():
        if kind == "histogram":
            check_histogram(samples.get(f"{name}_bucket", {}), samples.get(f"{name}_count", {}))
    return samples


def check_histogram(buckets: dict[tuple[tuple[str, str], ...], float], counts: dict[tuple[tuple[str, str], ...], float]) -> None:
    for labels, count in counts.items():
        own = {dict(key)["le"]: value for key, value in buckets.items() if tuple(pair for pair in key if pair[0] != "le") == labels}
        values = [own[bound] for bound in sorted(own, key=float)]
        assert values == sorted(values) and own["+Inf"] == count, f"a histogram that does not add up: {own}, {count}"


def metrics(server: Server) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    answer = requests.get(f"{server.url}/metrics", timeout=30)
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return parse_metrics(answer.text)


def test_metrics_can_be_parsed_and_count_what_happens(server: Server, api: Api, box: pandastack.Sandbox) -> None:
    exec_route = (("route", "/v1/sandboxes/{id}/exec"),)
    failed = (("code", "sandbox_not_found"),)
    before = metrics(server)
    box.exec("true")
    api("GET", "/v1/sandboxes/sb-none")
    after = metrics(server)
    counted = "belljar_request_duration_seconds_count"
    assert after[counted][exec_route] == before[counted].get(exec_route, 0) + 1
    assert after["belljar_failures_total"][failed] == before.get("belljar_failures_total", {}).get(failed, 0) + 1
    assert after["belljar_requests_total"][*exec_route, ("method", "POST"), ("status", "200")] >= 1
    assert after["belljar_sandboxes"][(("state", "running"),)] >= 1
    assert after["belljar_memory_promised_bytes"][()] >= box.memory_mb << 20
    assert after["belljar_memory_promise_limit_bytes"][()] > after["belljar_memory_promised_bytes"][()]
    assert after["belljar_events_total"][(("type", "sandbox.created"),)] >= 1
    assert after["belljar_create_duration_seconds_count"][()] >= 1
    assert after["belljar_disk_free_bytes"][()] > 0 and after["process_resident_memory_bytes"][()] > 0
    eventually(lambda: metrics(server)["belljar_event_loop_lag_seconds_count"][()] >= 1, "a look at the event loop")
    assert box.id not in requests.get(f"{server.url}/metrics", timeout=30).text, "ids would be endless labels"


def entry(server: Server, request_id: str) -> dict[str, Any]:
    """The log's line about a request."""
    found: list[dict[str, Any]] = []

    def look() -> bool:
        found[:] = [line for line in server.log() if line.get("request_id") == request_id and "duration_ms" in line]
        return bool(found)

    eventually(look, f"the line of {request_id}")
    assert len(found) == 1, found
    return found[0]


def test_every_request_is_one_line_of_log_and_has_an_id(server: Server, api: Api, box: pandastack.Sandbox) -> None:
    answer = api("POST", f"/v1/sandboxes/{box.id}/exec", json={"cmd": "echo out"}, headers={"X-Request-Id": "from-a.proxy:1"})
    assert answer.headers["X-Request-Id"] == "from-a.proxy:1"
    line = entry(server, "from-a.proxy:1")
    assert (line["method"], line["route"], line["status"]) == ("POST", "/v1/sandboxes/{id}/exec", 200)
    assert (line["workspace"], line["token"], line["sandbox"]) == ("default", api.token[:12], box.id)
    assert line["bytes_in"] == len(answer.request.body or b"") and line["bytes_out"] == len(answer.content)
    assert line["level"] == "info" and line["duration_ms"] > 0 and line["time"].endswith("Z")
    for bad in ("two words", "a\tb", "x" * 200, ""):
        given = api("GET", "/v1/me", headers={"X-Request-Id": bad}).headers["X-Request-Id"]
        assert re.fullmatch(r"req-[0-9a-f]{16}", given), bad


def test_a_failure_is_logged_with_its_code_and_lifecycle_with_its_request(server: Server, api: Api) -> None:
    lost = api("GET", "/v1/sandboxes/sb-none", headers={"X-Request-Id": "lost-1"})
    assert entry(server, "lost-1")["code"] == "sandbox_not_found" and lost.headers["X-Request-Id"] == "lost-1"
    stranger = requests.get(f"{server.url}/v1/me", headers={"X-Request-Id": "stranger-1"}, timeout=30)
    assert stranger.status_code == 401 and "workspace" not in entry(server, "stranger-1")
    nowhere = requests.get(f"{server.url}/v1/nothing/here", headers={"X-Request-Id": "nowhere-1"}, timeout=30)
    assert nowhere.status_code == 401 and entry(server, "nowhere-1")["route"] == "none"
    made = api("POST", "/v1/sandboxes", json={"template": "base"}, headers={"X-Request-Id": "made-1"}).json()["id"]
    api("DELETE", f"/v1/sandboxes/{made}")
    entry(server, "made-1")
    (event,) = [line for line in server.log() if line["message"] == "sandbox.created" and line.get("request_id") == "made-1"]
    assert (event["sandbox"], event["workspace"], event["template"]) == (made, "default", "base")


def test_secrets_never_reach_the_log(server: Server, api: Api, box: pandastack.Sandbox) -> None:
    query = f"{server.url}/v1/me?access_token={api.token}"
    assert requests.get(query, headers={"X-Request-Id": "secret-1"}, timeout=30).status_code == 200
    api("POST", f"/v1/sandboxes/{box.id}/exec", json={"cmd": "echo hush-hush"}, headers={"X-Request-Id": "secret-2"})
    api("GET", f"/v1/sandboxes/{box.id}/fs?path=/secret-place", headers={"X-Request-Id": "secret-3"})
    for number in (1, 2, 3):
        entry(server, f"secret-{number}")
    text = server.log_text()
    assert api.token not in text and "hush-hush" not in text and "secret-place" not in text and "access_token" not in text


async def test_what_nobody_expected_is_logged_with_its_request() -> None:
    async def boom(request: Request) -> Response:
        raise RuntimeError("a bug")

    async def late(request: Request) -> Response:
        async def pieces() -> AsyncIterator[bytes]:
            yield b"begun"
            raise RuntimeError("a late bug")

        return StreamingResponse(pieces())

    watched = Middleware(Watched, metrics=Metrics(), closing=Closing(), underway=Underway())
    app = Starlette(routes=[Route("/boom/{id}", boom), Route("/late", late)], middleware=[watched])
    written = io.StringIO()
    transport = httpx.ASGITransport(app, raise_app_exceptions=True)  # what came through would be logged once more by the server
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        with logging_to(written, "json", "info"):
            answer = await client.get("/boom/1", headers={"X-Request-Id": "broken-1"})
            with pytest.raises(AssertionError):  # the client's, because the answer never ended
                await client.get("/late", headers={"X-Request-Id": "broken-2"})
    assert (answer.status_code, answer.json()["code"], answer.headers["X-Request-Id"]) == (500, "internal", "broken-1")
    lines = [json.loads(line) for line in written.getvalue().splitlines()]
    for name, route, words in (("broken-1", "/boom/{id}", "a bug"), ("broken-2", "/late", "a late bug")):
        problem, told = [line for line in lines if line.get("request_id") == name]
        assert problem["level"] == "error" and words in problem["exception"] and "Traceback" in problem["exception"]
        assert told["route"] == route
    assert "a bug" not in answer.text


class Stuck(io.StringIO):
    """Somewhere to write to that takes nothing until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.free = threading.Event()

    def write(self, text: str) -> int:
        self.free.wait(60)
        return super().write(text)


def test_a_log_that_nobody_reads_holds_up_nobody() -> None:
    stuck, before, log = Stuck(), dropped_records(), logging.getLogger("belljar.test")
    with logging_to(stuck, "json", "info"):
        for number in range(MAX_WAITING + 500):
            log.info("line %d", number)
        assert dropped_records() - before >= 499, "more is waiting than may wait"
        stuck.free.set()
    assert MAX_WAITING <= len(stuck.getvalue().splitlines()) <= MAX_WAITING + 1


def test_health_says_what_is_wrong(own_home: Path) -> None:
    server = Server(own_home)
    health = f"{server.url}/healthz"
    try:
        assert requests.get(health, timeout=30).json() == {"status": "ok"}
        shutil.rmtree(own_home / "tmp")
        eventually(lambda: requests.get(health, timeout=30).status_code == 503, "trouble with the disk")
        told = requests.get(health, timeout=30).json()
        assert told["status"] == "unhealthy" and [reason for reason in told["reasons"] if "disk" in reason]
        assert isinstance(told["error"], str) and str(own_home) not in told["error"]
        (own_home / "tmp").mkdir()
        eventually(lambda: requests.get(health, timeout=30).status_code == 200, "health")
        with closing(sqlite3.connect(own_home / "belljar.db", isolation_level=None)) as stuck:
            stuck.execute("BEGIN IMMEDIATE")
            eventually(lambda: requests.get(health, timeout=30).status_code == 503, "trouble with the database")
            assert "database" in requests.get(health, timeout=30).json()["error"]
            stuck.execute("ROLLBACK")
        eventually(lambda: requests.get(health, timeout=30).status_code == 200, "health")
    finally:
        server.stop()


def test_a_terminal_gets_text(own_home: Path) -> None:
    server = Server(own_home, "--log-format", "text", "--log-level", "warning")
    try:
        api = Api(server.url, str(server.token))
        assert api("GET", "/v1/me").status_code == 200
        assert server.log_text() == "", "less than a warning was logged"
    finally:
        server.stop()
    server = Server(own_home, "--log-format", "text")
    server.stop()
    assert re.search(r"^\d\d:\d\d:\d\d INFO listening address=http://", server.log_text(), re.M)
