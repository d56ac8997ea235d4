"""The log of a sandbox, as the published clients read and follow it."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import requests

from tests.server.conftest import Api, MakeBox, Server, eventually


def lines(api: Api, sandbox: str, query: str = "") -> list[str]:
    answer = api("GET", f"/v1/sandboxes/{sandbox}/logs{query}")
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/plain"), answer.text
    return answer.text.splitlines()


def told(stream: requests.Response) -> Iterator[str]:
    for line in stream.iter_lines():
        assert not line.startswith(b"event:"), "the clients would hand that on to their users"
        if line.startswith(b"data: "):
            yield json.loads(line.removeprefix(b"data: "))["line"]


def test_what_commands_cells_and_processes_wrote(api: Api, make: MakeBox) -> None:
    box = make()
    assert list(box.logs()) == [] and lines(api, box.id) == []
    box.exec("echo out; echo err >&2; printf 'no end'")
    assert box.exec_stream("printf 'a\\xc3'; sleep 0.1; printf '\\xa4b\\n'") == 0
    with box.create_code_context("python") as context:
        context.run_code("print('cell'); import sys; print('cell err', file=sys.stderr)", timeout_seconds=120)
    all_lines = lines(api, box.id)
    assert sorted(all_lines) == sorted(["out", "err", "no end", "aäb", "cell", "cell err"])
    assert list(box.logs()) == all_lines
    assert lines(api, box.id, "?stream=stderr") == ["err", "cell err"]
    assert sorted(lines(api, box.id, "?stream=stdout")) == sorted(["out", "no end", "aäb", "cell"])
    assert lines(api, box.id, "?tail=2") == all_lines[-2:] and lines(api, box.id, "?tail=0") == []
    for wrong in ("?stream=stdin", "?tail=-1", "?tail=x", "?follow=maybe"):
        assert api("GET", f"/v1/sandboxes/{box.id}/logs{wrong}").status_code == 400, wrong
    assert list(box.logs("stderr")) == ["err", "cell err"]
    assert api("GET", "/v1/sandboxes/sb-none/logs").status_code == 404


def test_the_log_is_read_asleep_and_gone_with_the_sandbox(api: Api, make: MakeBox) -> None:
    box = make(persistent=True)
    box.exec("echo before")
    started = api("POST", f"/v1/sandboxes/{box.id}/processes", json={"cmd": "echo behind; sleep 1000"})
    assert started.status_code == 201, started.text
    eventually(lambda: lines(api, box.id) == ["before", "behind"], "the output of a process that nobody follows")
    assert lines(api, box.id) == ["before", "behind"], "a line came twice"
    box.hibernate()
    assert lines(api, box.id) == ["before", "behind"]
    assert box.refresh().status == "hibernated", "reading the log woke it"
    box.kill()
    assert api("GET", f"/v1/sandboxes/{box.id}/logs").status_code == 404


def test_a_sleeper_leaves_what_its_processes_wrote_last(api: Api, make: MakeBox) -> None:
    box = make()
    started = api("POST", f"/v1/sandboxes/{box.id}/processes", json={"cmd": "echo quick"}).json()["id"]
    running = f"/v1/sandboxes/{box.id}/processes/{started}"
    eventually(lambda: not api("GET", running).json()["running"], "its end")
    box.hibernate()
    assert lines(api, box.id) == ["quick"] and box.refresh().status == "hibernated"


def test_a_follower_sees_lines_as_they_come_and_the_end_of_the_sandbox(api: Api, make: MakeBox) -> None:
    box = make()
    box.exec("echo old")
    with api("GET", f"/v1/sandboxes/{box.id}/logs?follow=true&stream=stdout", stream=True) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        feed = told(stream)
        assert next(feed) == "old\n"
        worker = threading.Thread(target=box.exec, args=("echo one; echo hidden >&2; sleep 0.5; echo two",))
        worker.start()
        assert [next(feed), next(feed)] == ["one\n", "two\n"]
        worker.join(60)
        api("POST", f"/v1/sandboxes/{box.id}/processes", json={"cmd": "echo from behind; sleep 1000"})
        assert next(feed) == "from behind\n"
        box.kill()
        assert list(feed) == [], "the stream ends with the sandbox"


def test_the_python_client_follows(make: MakeBox) -> None:
    box = make()
    box.exec("echo first")
    feed = iter(box.logs(follow=True))
    assert next(feed) == "first"
    box.exec("echo second")
    assert next(feed) == "second"


def test_the_log_survives_kill_9(own_home: Path) -> None:
    server = Server(own_home)
    try:
        api = Api(server.url, str(server.token))
        box = api("POST", "/v1/sandboxes", json={"template": "base"}).json()["id"]
        api("POST", f"/v1/sandboxes/{box}/exec", json={"cmd": "echo kept"})
        api("POST", f"/v1/sandboxes/{box}/processes", json={"cmd": "echo behind; sleep 1; echo later; sleep 1000"})
        eventually(lambda: lines(api, box)[:2] == ["kept", "behind"], "the lines")
        server.stop(signal.SIGKILL)
        server.start()
        api = Api(server.url, api.token)
        eventually(lambda: lines(api, box) == ["kept", "behind", "later"], f"the same lines ({lines(api, box)})")
        api("DELETE", f"/v1/sandboxes/{box}")
    finally:
        server.stop()
