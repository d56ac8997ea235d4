"""One server per home, and an end that everybody is told of."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import requests

from belljar.settings import Settings
from tests.server.conftest import ROOT, Api, Server, eventually


def belljar(home: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "belljar.cli.main", *words],
        env={**os.environ, "BELLJAR_HOME": str(home), "PYTHONPATH": str(ROOT), **environ},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_second_server_is_refused_and_says_who_is_first(server: Server, settings: Settings) -> None:
    second = belljar(settings.home, "serve", "--port", "0")
    assert second.returncode == 1 and second.stdout == ""
    assert f"process {server.process.pid} at {server.url}" in second.stderr and len(second.stderr.splitlines()) == 1


@pytest.mark.parametrize("host", ["0.0.0.0", "0", "::"])
def test_without_tokens_it_listens_on_loopback_only(own_home: Path, host: str) -> None:
    refused = belljar(own_home, "serve", "--port", "0", "--dev", "--host", host)
    assert refused.returncode != 0 and refused.stdout == "" and "loopback only" in refused.stderr, refused


def test_a_server_that_was_killed_leaves_no_lock(own_home: Path) -> None:
    server = Server(own_home)
    server.stop(signal.SIGKILL)
    server.start()
    assert server.stop() == 0


def test_the_command_line_is_sent_to_the_server(own_home: Path) -> None:
    server = Server(own_home)
    try:
        api = Api(server.url, str(server.token))
        box = api("POST", "/v1/sandboxes", json={"template": "base"}).json()["id"]
        busy = belljar(own_home, "exec", box, "true")
        assert busy.returncode == 1 and f"in use by the server at {server.url}" in busy.stderr, busy.stderr
        assert box in belljar(own_home, "ps").stdout
        api("DELETE", f"/v1/sandboxes/{box}")
    finally:
        server.stop()


@pytest.fixture
def ending(own_home: Path) -> Iterator[tuple[Server, Api, str]]:
    """A server that gives calls three seconds, and a sandbox of it."""
    server = Server(own_home, "--shutdown-grace-s", "3")
    api = Api(server.url, str(server.token))
    box = api("POST", "/v1/sandboxes", json={"template": "base"}).json()["id"]
    yield server, api, box
    if server.process.poll() is None:
        server.stop()


class Calling(threading.Thread):
    """A request on its way, and what became of it."""

    def __init__(self, api: Api, method: str, path: str, **options: Any) -> None:
        super().__init__()
        self._request = (api.url + path, api.token, method, options)
        self.status, self.body = 0, b""
        self.headers: Mapping[str, str] = {}
        self.problem: Exception | None = None
        self.start()

    def run(self) -> None:
        url, token, method, options = self._request
        try:
            with requests.request(
                method, url, headers={"Authorization": f"Bearer {token}"}, stream=True, timeout=60, **options
            ) as answer:
                self.status, self.headers = answer.status_code, answer.headers
                for piece in answer.iter_content(None):
                    self.body += piece
        except requests.RequestException as problem:
            self.problem = problem

    def ended(self) -> tuple[int, bytes]:
        self.join(90)
        assert not self.is_alive() and self.problem is None, f"{self.problem}; so far {self.status} {self.body!r}"
        return self.status, self.body


def under_way(server: Server, count: int) -> None:
    def enough() -> bool:
        text = requests.get(f"{server.url}/metrics", timeout=30).text
        return f"belljar_requests_under_way {count + 1}" in text  # and this one

    eventually(enough, f"{count} calls under way")


def test_streams_end_with_an_event_and_calls_are_finished(ending: tuple[Server, Api, str], own_home: Path) -> None:
    server, api, box = ending
    at = f"/v1/sandboxes/{box}"
    events = Calling(api, "GET", f"{at}/events?follow=1")
    logs = Calling(api, "GET", f"{at}/logs?follow=1")
    quick = Calling(api, "POST", f"{at}/exec", json={"cmd": "sleep 1.5; echo done"})
    slow = Calling(api, "POST", f"{at}/exec", json={"cmd": "sleep 300"})
    stream = Calling(api, "POST", f"{at}/exec/stream", json={"cmd": "echo begun; sleep 300"})
    under_way(server, 5)
    eventually(lambda: b"begun" in stream.body, "the first output")
    assert server.stop() == 0
    assert b"event: end\n" in events.ended()[1]
    status, body = logs.ended()
    assert status == 200 and b"event:" not in body, "a comment is all that a log's reader can be told"
    status, body = quick.ended()
    assert (status, json.loads(body)["stdout"]) == (200, "done\n"), "there was time for this one"
    status, body = slow.ended()
    assert (status, json.loads(body)["code"]) == (503, "shutting_down") and slow.headers["Retry-After"]
    status, body = stream.ended()
    assert status == 200 and b"event: error\n" in body and b"being stopped" in body
    server.start()
    api = Api(server.url, api.token)
    left = api("POST", f"{at}/exec", json={"cmd": "pgrep -fc '[s]leep 300'"})
    assert left.json()["stdout"] == "0\n", "what was given up was not ended"


def test_systemd_is_told_and_only_the_server_ends(own_home: Path, tmp_path: Path) -> None:
    """What `KillMode=process` comes to: the main process gets SIGTERM, its machines get nothing, the next start finds them."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(60)
        server = Server(own_home, NOTIFY_SOCKET=str(tmp_path / "notify"))
        try:
            assert manager.recv(100) == b"READY=1"
            api = Api(server.url, str(server.token))
            box = api("POST", "/v1/sandboxes", json={"template": "base"}).json()["id"]
            machine = json.loads((own_home / "sandboxes" / box / "machine.json").read_text())["pid"]
            assert server.stop() == 0
            assert manager.recv(100) == b"STOPPING=1"
            os.kill(machine, 0)  # raises if it is gone
            server.start()
            assert manager.recv(100) == b"READY=1"
            api = Api(server.url, api.token)
            assert api("POST", f"/v1/sandboxes/{box}/exec", json={"cmd": "echo on"}).json()["stdout"] == "on\n"
            api("DELETE", f"/v1/sandboxes/{box}")
        finally:
            server.stop()


# As the unit has it: the system is read-only, /tmp is private, and nothing but the home can be written.
CONFINED = """
mount --make-rprivate / && mount -o remount,bind,ro / && mount -t tmpfs tmpfs /tmp || exit 77
mount --bind "$1" "$1" && mount -o remount,bind,rw "$1" || exit 77
[ -e "$PYTHONPATH" ] || { echo "the code itself is in /tmp" >&2; exit 77; }
touch /etc/belljar-was-here 2>/dev/null && exit 1
cd / && shift && exec setpriv --no-new-privs "$@"
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can take the system's files away from a process")
def test_the_units_confinement_does_not_break_sandboxes(own_home: Path, own_settings: Settings) -> None:
    run = [sys.executable, "-m", "belljar.cli.main", "run", "-c", "print('up')"]
    ran = subprocess.run(
        # What sandboxes share of templates is linked, and both are under the user's home.
        ["unshare", "-m", "bash", "-c", CONFINED, "confined", str(own_settings.home), *run],
        env={**os.environ, "BELLJAR_HOME": str(own_home), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=180,
    )
    if ran.returncode == 77:
        pytest.skip(f"mounts cannot be changed here: {ran.stderr.strip()}")
    assert (ran.returncode, ran.stdout) == (0, "up\n"), ran.stderr


def test_a_server_keeps_a_machine_ready(own_home: Path) -> None:
    server = Server(own_home, BELLJAR_POOL_SIZE="")
    try:
        api = Api(server.url, str(server.token))
        first = api("POST", "/v1/sandboxes", json={"template": "base"}).json()["id"]
        pooled = 'belljar_sandboxes{state="pooled"} 1'
        eventually(lambda: pooled in requests.get(f"{server.url}/metrics", timeout=30).text, "a machine started ahead")
        assert api("GET", "/v1/me/quota").json()["usage"]["sandboxes"] == 1, "nobody's machine counts as somebody's"
        time.sleep(0.5)
        second = api("POST", "/v1/sandboxes", json={"template": "base"}).json()["id"]
        assert api("GET", "/v1/me/quota").json()["usage"]["sandboxes"] == 2
        for box in (first, second):
            api("DELETE", f"/v1/sandboxes/{box}")
    finally:
        assert server.stop() == 0
    assert not list((own_home / "sandboxes").iterdir()), "machines started ahead end with the server"
