"""A token that is revoked takes along what is open with it."""

from __future__ import annotations

import threading

import pandastack
import pytest
import requests
from websockets.exceptions import ConnectionClosed

from tests.server.conftest import Api, Server, eventually
from tests.server.own import streaming, websocket
from tests.server.test_large_bodies import in_flight


class Following(threading.Thread):
    """Reads a stream until it breaks."""

    def __init__(self, api: Api, path: str) -> None:
        super().__init__(daemon=True)
        self._answer = api("GET", path, stream=True)
        assert self._answer.status_code == 200
        self.start()

    def run(self) -> None:
        try:
            for _ in self._answer.iter_content(None):
                pass
        except requests.RequestException:
            pass


def test_streams_terminals_and_commands_end_with_their_token(
    server: Server, api: Api, box: pandastack.Sandbox, admin_token: str
) -> None:
    at = f"/v1/sandboxes/{box.id}"
    made = api("POST", "/v1/me/tokens", json={"label": "leaked"}).json()
    thief, slow = Api(server.url, made["token"]), Api(server.url, made["token"])
    before = in_flight(api, box)
    with streaming(api, "GET", f"{at}/fs/watch?path=/tmp") as own, websocket(thief, f"{at}/exec/pty?cmd=sleep%20666") as shell:
        assert next(own)[0] == "watching"
        events = Following(thief, "/v1/events?follow=1")
        files = Following(thief, f"{at}/fs/watch?path=/tmp")
        running = threading.Thread(target=_run, args=(slow, f"{at}/exec"), daemon=True)
        running.start()
        eventually(lambda: in_flight(api, box) == before + 4, "a watch of each, a terminal and a command")
        assert api("DELETE", f"/v1/me/tokens/{made['prefix']}").status_code == 204
        with pytest.raises(ConnectionClosed):
            shell.recv(timeout=60)
        for thread in (events, files, running):
            thread.join(60)
            assert not thread.is_alive(), "a connection of a revoked token is still open"
        eventually(lambda: in_flight(api, box) == before + 1, "an end of all but one's own")
        box.exec("touch /tmp/seen")
        assert next(own)[0] == "change", "the stream of another token goes on"
    found = api("GET", f"{at}/processes").json()["processes"]
    assert not [each for each in found if each["running"] and "666" in each["command"]]
    assert thief("GET", "/v1/me").status_code == 401


def _run(api: Api, path: str) -> None:
    try:
        api("POST", path, json={"cmd": "sleep 666"})
    except requests.RequestException:
        pass


def test_one_who_revokes_the_own_token_is_answered(server: Server, api: Api) -> None:
    made = api("POST", "/v1/me/tokens", json={"label": "mine"}).json()
    mine = Api(server.url, made["token"])
    assert mine("DELETE", f"/v1/me/tokens/{made['prefix']}").status_code == 204
    refused = mine("GET", "/v1/me")
    assert refused.status_code == 401 and refused.headers["WWW-Authenticate"] == "Bearer"
