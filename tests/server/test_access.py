"""Who may do what: tokens, workspaces, local use without a token."""

from __future__ import annotations

from pathlib import Path

import pandastack
import pytest
import requests
from pandastack.exceptions import AuthError, NotFoundError

from tests.server.conftest import Api, Server


def test_tokens_are_made_listed_and_revoked(server: Server, client: pandastack.Client) -> None:
    made = client.tokens.create("ci", expires_in_days=7)
    assert made.token.startswith("pds_") and len(made.token) == 36 and made.token.startswith(made.prefix)
    assert made.prefix in [found.prefix for found in client.tokens.list()]
    assert all(not found.token for found in client.tokens.list())
    newer = pandastack.Client(api_key=made.token, api_url=server.url)
    assert newer.me()["workspace"] == "default"
    client.tokens.revoke(made.prefix)
    with pytest.raises(AuthError):
        newer.me()
    with pytest.raises(NotFoundError):
        client.tokens.revoke(made.prefix)


def test_the_token_may_come_in_three_ways(server: Server, admin_token: str) -> None:
    me = f"{server.url}/v1/me"
    assert requests.get(me, headers={"X-API-Key": admin_token}, timeout=30).status_code == 200
    assert requests.get(me, params={"access_token": admin_token}, timeout=30).status_code == 200
    assert requests.get(me, headers={"Authorization": f"bearer {admin_token}"}, timeout=30).status_code == 200
    for headers in ({}, {"Authorization": "Basic eDp5"}, {"X-API-Key": "nope"}):
        answer = requests.get(me, headers=headers, timeout=30)
        assert answer.status_code == 401 and isinstance(answer.json()["error"], str)


def test_only_admins_make_tokens_for_others(other: Api) -> None:
    assert other("POST", "/v1/me/tokens", json={"label": "mine"}).json()["workspace"] == "other"
    for wish in ({"label": "x", "workspace": "default"}, {"label": "x", "admin": True}):
        assert other("POST", "/v1/me/tokens", json=wish).status_code == 403


OF_A_SANDBOX = [
    ("GET", "", None),
    ("DELETE", "", None),
    ("POST", "/exec", {"cmd": "true"}),
    ("POST", "/exec/stream", {"cmd": "true"}),
    ("POST", "/repl/sessions", {"language": "python"}),
    ("POST", "/repl/sessions/x/run", {"code": "1"}),
    ("GET", "/fs?path=/etc/hostname", None),
    ("PUT", "/fs?path=/tmp/x", None),
    ("GET", "/fs/dir?path=/", None),
    ("GET", "/fs/stat?path=/", None),
    ("GET", "/lifecycle", None),
    ("PATCH", "/lifecycle", {"ttl_seconds": 1}),
    ("POST", "/pause", None),
    ("POST", "/resume", None),
    ("POST", "/hibernate", None),
    ("POST", "/wake", None),
    ("POST", "/snapshots", None),
    ("POST", "/fork", None),
    ("POST", "/fork-tree", {"count": 2}),
    ("POST", "/promote", {}),
    ("GET", "/ports", None),
    ("POST", "/ports", {"port": 80, "public": True}),
    ("DELETE", "/ports/80", None),
    ("POST", "/preview-token", {"port": 80}),
    ("GET", "/proxy/80/", None),
    ("GET", "/logs", None),
    ("GET", "/events", None),
    ("GET", "/events?follow=1", None),
]


def test_another_workspaces_sandbox_answers_as_one_that_does_not_exist(api: Api, other: Api, box: pandastack.Sandbox) -> None:
    unknown = "sb-" + "0" * 16
    for method, path, body in OF_A_SANDBOX:
        theirs = other(method, f"/v1/sandboxes/{box.id}{path}", json=body)
        nobodys = other(method, f"/v1/sandboxes/{unknown}{path}", json=body)
        assert theirs.status_code == nobodys.status_code == 404, path
        assert theirs.text == nobodys.text.replace(unknown, box.id), path
        assert list(theirs.headers) == list(nobodys.headers), path
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/processes"), ("POST", "/pause"), ("POST", "/connect")):
        body = {"cmd": "true"} if path == "/processes" else None
        assert other(method, f"/sandboxes/{box.id}{path}", json=body).status_code == 404
    assert other("GET", "/v1/sandboxes").json() == [] == other("GET", "/sandboxes").json()
    assert box.id not in other("GET", "/v1/events").text
    assert box.refresh().status == "running" and box.lifecycle()["ttl_seconds"] == 0


def test_another_workspaces_snapshot_and_tokens_are_not_there(api: Api, other: Api, box: pandastack.Sandbox) -> None:
    admin_token = api.token
    taken = box.snapshot()
    for method in ("GET", "DELETE"):
        theirs, nobodys = other(method, f"/v1/snapshots/{taken}"), other(method, "/v1/snapshots/snap-0")
        assert theirs.status_code == 404 and theirs.text == nobodys.text.replace("snap-0", taken)
    assert other("POST", "/v1/sandboxes", json={"template": "base", "from_snapshot": taken}).status_code == 404
    assert other("GET", "/v1/snapshots").json() == {"snapshots": []}
    assert other("DELETE", f"/v1/me/tokens/{admin_token[:12]}").status_code == 404
    assert admin_token[:12] not in other("GET", "/v1/me/tokens").text
    assert api("DELETE", f"/v1/snapshots/{taken}").status_code == 204


def test_dev_lets_this_machine_in_and_nobody_else(own_home: Path) -> None:
    server = Server(own_home, "--dev")
    try:
        assert server.token is None
        assert pandastack.Client(api_key="anything", api_url=server.url).me()["auth_method"] == "local"
        me = f"{server.url}/v1/me"
        assert requests.get(me, timeout=30).status_code == 200
        # A page of somewhere else, and a name of somewhere else that leads here.
        assert requests.get(me, headers={"Origin": "https://evil.example"}, timeout=30).status_code == 403
        assert requests.get(me, headers={"Host": "evil.example"}, timeout=30).status_code == 403
        assert requests.get(me, headers={"Host": "[::1"}, timeout=30).status_code == 403
        assert requests.get(me, headers={"Sec-Fetch-Site": "cross-site"}, timeout=30).status_code == 403
        assert requests.get(me, headers={"Sec-Fetch-Site": "same-origin"}, timeout=30).status_code == 200
        assert requests.get(me, headers={"X-API-Key": "pds_" + "0" * 32}, timeout=30).status_code == 401
    finally:
        server.stop()
