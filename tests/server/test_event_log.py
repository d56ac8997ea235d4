"""The event log of a real server: followed across restarts, and true of what happened while no server ran."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from tests.server.conftest import Api, Server, eventually
from tests.server.test_stopping import belljar


@pytest.fixture
def server_of_its_own(own_home: Path) -> Iterator[Server]:
    server = Server(own_home)
    yield server
    if server.process.poll() is None:
        server.stop()


class Follower:
    """Follows a workspace's events as a browser does: after a break it says the number of the last one that it got."""

    def __init__(self, token: str) -> None:
        self._headers = {"Authorization": f"Bearer {token}"}
        self.seen: list[tuple[int, str]] = []

    def follow_until(self, url: str, kind: str) -> None:
        if self.seen:
            self._headers["Last-Event-ID"] = str(self.seen[-1][0])
        with requests.get(f"{url}/v1/events?follow=1&tail=1", headers=self._headers, stream=True, timeout=60) as answer:
            assert answer.headers["X-Accel-Buffering"] == "no"
            number = 0
            for line in answer.iter_lines(chunk_size=1):
                if line.startswith(b"id: "):
                    number = int(line[4:])
                elif line.startswith(b"data: "):
                    event = json.loads(line[6:])
                    assert event["seq"] == number
                    self.seen.append((number, event["type"]))
                    if event["type"] == kind:
                        return
        pytest.fail(f"the stream ended before {kind}: {self.seen}")


def test_a_follower_goes_on_across_restarts_without_a_gap_or_a_double(server_of_its_own: Server) -> None:
    server, token = server_of_its_own, str(server_of_its_own.token)
    api, follower = Api(server.url, token), Follower(token)
    box = api("POST", "/v1/sandboxes", json={"template": "base"}).json()["id"]
    follower.follow_until(server.url, "sandbox.created")
    for number in (signal.SIGKILL, signal.SIGTERM):
        for _ in range(2):
            api("POST", f"/v1/sandboxes/{box}/pause")
            api("POST", f"/v1/sandboxes/{box}/resume")
        api("POST", f"/v1/sandboxes/{box}/hibernate")
        server.stop(number)
        server.start()
        api = Api(server.url, token)
        follower.follow_until(server.url, "sandbox.hibernated")
        assert api("POST", f"/v1/sandboxes/{box}/wake").json() == {"status": "running"}
    api("DELETE", f"/v1/sandboxes/{box}")
    follower.follow_until(server.url, "sandbox.deleted")
    wanted = [(event["seq"], event["type"]) for event in api("GET", "/v1/events?tail=1000").json()["events"]]
    assert follower.seen == wanted
    first = wanted[0][0]
    for query, part in {f"after={first}": wanted[1:], f"after={first}&tail=2": wanted[-2:], "tail=0": []}.items():
        found = api("GET", f"/v1/events?{query}").json()["events"]
        assert [(event["seq"], event["type"]) for event in found] == part, query


def kinds(api: Api, box: str) -> list[str]:
    return [event["type"] for event in api("GET", f"/v1/sandboxes/{box}/events").json()["events"]]


def test_what_others_did_is_told_late_but_once(server_of_its_own: Server, own_home: Path) -> None:
    server, token = server_of_its_own, str(server_of_its_own.token)
    api = Api(server.url, token)
    box, doomed = (api("POST", "/v1/sandboxes", json={"template": "base"}).json()["id"] for _ in range(2))
    server.stop(signal.SIGKILL)
    assert belljar(own_home, "hibernate", box).returncode == 0
    assert belljar(own_home, "kill", doomed).returncode == 0
    server.start()
    api = Api(server.url, token)
    assert kinds(api, box) == ["sandbox.created", "sandbox.hibernated"]
    assert kinds(api, doomed) == ["sandbox.created", "sandbox.deleted"]
    assert belljar(own_home, "kill", box).returncode == 0
    eventually(lambda: kinds(api, box)[-1] == "sandbox.deleted", "the event of an end by the command line")
    assert kinds(api, box) == ["sandbox.created", "sandbox.hibernated", "sandbox.deleted"]
    assert api("DELETE", f"/v1/sandboxes/{box}").status_code == 204, "an end that somebody else was faster with"
