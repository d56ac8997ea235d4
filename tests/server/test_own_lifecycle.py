"""What keeps a persistent sandbox awake, and that it says so: streams and cells do, background processes and looking on do not."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.conftest import Api, Server, eventually
from tests.server.own import streaming, websocket


@pytest.fixture
def sleepy(own_home: Path) -> Iterator[Server]:
    running = Server(own_home, BELLJAR_IDLE_TIMEOUT_S="2")
    yield running
    if running.process.poll() is None:
        running.stop()


@pytest.fixture
def calls(sleepy: Server) -> Api:
    assert sleepy.token is not None
    return Api(sleepy.url, sleepy.token)


def create(calls: Api, **wishes: Any) -> str:
    made = calls("POST", "/v1/sandboxes", json={"template": "base", "persistent": True, **wishes})
    assert made.status_code == 201, made.text
    return f"/v1/sandboxes/{made.json()['id']}"


def life(calls: Api, at: str) -> dict[str, Any]:
    shown: dict[str, Any] = calls("GET", f"{at}/lifecycle").json()
    return shown


def until_asleep(calls: Api, at: str) -> None:
    eventually(lambda: bool(calls("GET", at).json()["status"] == "hibernated"), "the sleep of a sandbox that nobody uses")


def test_streams_and_cells_keep_it_awake_and_background_processes_do_not(calls: Api) -> None:
    used, left = create(calls), create(calls)
    assert calls("POST", f"{left}/processes", json={"cmd": "while sleep 1; do echo tick; done"}).status_code == 201
    with streaming(calls, "GET", f"{used}/fs/watch?path=/tmp") as changes:
        next(changes)
        until_asleep(calls, left)
        shown = life(calls, used)
        assert shown["status"] == "running" and shown["reason"] == "in use: 1 open stream"
        assert (shown["open_streams"], shown["hibernates_at"], shown["hibernates_in_seconds"]) == (1, None, None)
        assert shown["idle_seconds"] == 0
    slept = life(calls, left)
    assert slept["status"] == "hibernated" and slept["reason"].startswith("not used for") and slept["hibernates_at"] is None

    code = "import pathlib, time\nprint('on', flush=True)\nwhile not pathlib.Path('/tmp/go').exists(): time.sleep(0.1)"
    body = {"code": code, "on_disconnect": "continue"}
    with streaming(calls, "POST", f"{used}/contexts/default/run?stream=1", json=body) as cell:
        assert next(cell)[0] == "started" and next(cell)[0] == "stdout"
    assert calls("POST", f"{left}/exec", json={"cmd": "true"}).json()["exit_code"] == 0  # wakes it, and its process ticks on
    until_asleep(calls, left)
    shown = life(calls, used)
    assert shown["status"] == "running" and "cell" in shown["reason"] and shown["hibernates_at"] is None
    assert calls("PUT", f"{used}/fs?path=/tmp/go", data=b"").status_code == 200
    until_asleep(calls, used)
    for path in ("", "/lifecycle", "/events", "/stats", "/events?tail=1"):
        calls("GET", used + path)
    assert calls("GET", used).json()["status"] == "hibernated"
    assert [event["type"] for event in calls("GET", f"{left}/events").json()["events"]].count("sandbox.hibernated") == 2


def test_an_open_connection_keeps_it_awake_and_the_deadline_is_told_after(calls: Api) -> None:
    used, left = create(calls, ttl_seconds=3600), create(calls)
    with websocket(calls, f"{used}/exec/ws"):
        until_asleep(calls, left)
        assert life(calls, used)["status"] == "running"
    shown = life(calls, used)
    assert shown["idle_timeout_seconds"] == 2 and 0 <= shown["hibernates_in_seconds"] <= 2
    assert shown["hibernates_at"] is not None and shown["expires_at"] is not None
    until_asleep(calls, used)


def test_a_foreground_process_that_the_server_left_behind_keeps_it_awake(calls: Api, sleepy: Server) -> None:
    used, left = create(calls), create(calls)
    with streaming(calls, "POST", f"{used}/processes/run", json={"cmd": "sleep 600"}) as steps:
        process = next(steps)[1]["id"]
        sleepy.stop(signal.SIGKILL)
    sleepy.start()
    again = Api(sleepy.url, calls.token)
    until_asleep(again, left)
    shown = life(again, used)
    assert shown["status"] == "running" and shown["reason"] == f"process {process} is running"
    assert again("DELETE", f"{used}/processes/{process}").status_code == 204
    until_asleep(again, used)


def test_one_that_is_not_persistent_says_so(calls: Api) -> None:
    at = create(calls, persistent=False)
    shown = life(calls, at)
    assert shown["hibernates_at"] is None and "not persistent" in shown["reason"] and not shown["persistent"]
    assert calls("POST", f"{at}/pause").status_code == 204
    assert life(calls, at)["status"] == "paused"
