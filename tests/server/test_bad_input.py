"""What is wrong with a request is told in one flat text, and nothing was done."""

from __future__ import annotations

import sqlite3
from typing import Any

import pandastack
import pytest
import requests

from belljar.settings import Settings
from belljar.store.layout import Layout
from tests.server.conftest import Api, Server

CREATE = ("POST", "/v1/sandboxes")
LONG = "x" * 10_000


def sent(method: str, path: str, **how: Any) -> tuple[str, str, dict[str, Any]]:
    return method, path, how


BAD = [
    sent(*CREATE, data=b"{"),
    sent(*CREATE, data=b"\xff\xfe{}"),
    sent(*CREATE, data=b"[]"),
    sent(*CREATE, data=b'"text"'),
    sent(*CREATE, data=b"[" * 100_000),
    sent(*CREATE, data=b'{"ttl_seconds": NaN}'),
    sent(*CREATE, data=b'{"ttl_seconds": 1e999}'),
    sent(*CREATE, data=b'{"ttl_seconds": ' + b"9" * 5000 + b"}"),
    sent(*CREATE, data=b'{"x": "' + b"x" * (17 << 20) + b'"}'),
    sent(*CREATE, json={"template": 7}),
    sent(*CREATE, json={"template": "no-such"}),
    sent(*CREATE, json={"template": "../../etc/passwd"}),
    sent(*CREATE, json={"template": LONG}),
    sent(*CREATE, json={"template": "a\0b"}),
    sent(*CREATE, data=b'{"template": "\\ud800"}'),
    sent(*CREATE, json={"template": "base", "ttl_seconds": -1}),
    sent(*CREATE, json={"template": "base", "ttl_seconds": "7"}),
    sent(*CREATE, json={"template": "base", "ttl_seconds": True}),
    sent(*CREATE, json={"template": "base", "ttl_seconds": 10**11}),
    sent(*CREATE, json={"template": "base", "persistent": "yes"}),
    sent(*CREATE, json={"template": "base", "metadata": []}),
    sent(*CREATE, json={"template": "base", "metadata": {"a": 1}}),
    sent(*CREATE, json={"template": "base", "metadata": {LONG: "1"}}),
    sent(*CREATE, json={"template": "base", "metadata": {str(n): "1" for n in range(100)}}),
    sent(*CREATE, json={"template": "base", "volumes": [{"name": "v"}]}),
    sent(*CREATE, json={"template": "base", "from_snapshot": 7}),
    sent(*CREATE, json={"template": "base", "from_snapshot": "snap-none"}),
    sent("POST", "/v1/sandboxes/{id}/exec", json={}),
    sent("POST", "/v1/sandboxes/{id}/exec", json={"cmd": ""}),
    sent("POST", "/v1/sandboxes/{id}/exec", json={"cmd": ["ls"]}),
    sent("POST", "/v1/sandboxes/{id}/exec", json={"cmd": "a\0b"}),
    sent("POST", "/v1/sandboxes/{id}/exec", data=b'{"cmd": "\\ud800"}'),
    sent("POST", "/v1/sandboxes/{id}/exec", json={"cmd": "x" * 200_000}),
    sent("POST", "/v1/sandboxes/{id}/exec", json={"cmd": "true", "timeout_seconds": 0}),
    sent("POST", "/v1/sandboxes/{id}/exec", json={"cmd": "true", "timeout_seconds": 10**9}),
    sent("POST", "/v1/sandboxes/{id}/exec", json={"cmd": "true", "timeout_seconds": "1"}),
    sent("POST", "/v1/sandboxes/{id}/exec/stream", json={"cmd": "true", "timeout_seconds": -1}),
    sent("POST", "/v1/sandboxes/{id}/repl/sessions", json={"language": 7}),
    sent("POST", "/v1/sandboxes/{id}/repl/sessions", json={"language": LONG}),
    sent("POST", "/v1/sandboxes/{id}/repl/sessions/x/run", json={"code": 7}),
    sent("GET", "/v1/sandboxes/{id}/fs"),
    sent("GET", "/v1/sandboxes/{id}/fs?path="),
    sent("GET", "/v1/sandboxes/{id}/fs?path=a%00b"),
    sent("GET", f"/v1/sandboxes/{{id}}/fs?path=/{LONG}"),
    sent("PUT", "/v1/sandboxes/{id}/fs?path=/etc/passwd", data=b"x"),
    sent("PUT", "/v1/sandboxes/{id}/fs?path=/tmp", data=b"x"),
    sent("DELETE", "/v1/sandboxes/{id}/fs?path=/tmp&recursive=maybe"),
    sent("GET", "/v1/sandboxes/{id}/fs/dir?path=/etc/hostname"),
    sent("PATCH", "/v1/sandboxes/{id}/lifecycle", json={}),
    sent("PATCH", "/v1/sandboxes/{id}/lifecycle", json={"ttl_seconds": -1}),
    sent("PATCH", "/v1/sandboxes/{id}/lifecycle", json={"persistent": 1}),
    sent("POST", "/v1/sandboxes/{id}/fork", json={"metadata": {"a": None}}),
    sent("POST", "/v1/sandboxes/{id}/fork-tree", json={}),
    sent("POST", "/v1/sandboxes/{id}/fork-tree", json={"count": 0}),
    sent("POST", "/v1/sandboxes/{id}/fork-tree", json={"count": 17}),
    sent("POST", "/v1/sandboxes/{id}/fork-tree", json={"count": 2.5}),
    sent("POST", "/v1/sandboxes/{id}/promote", json={"cleanup_siblings": "yes"}),
    sent("POST", "/v1/sandboxes/{id}/promote", json={}),
    sent("GET", "/v1/sandboxes/{id}/events?tail=-1"),
    sent("GET", "/v1/sandboxes/{id}/events?tail=many"),
    sent("GET", "/v1/sandboxes/..%2f..%2fetc"),
    sent("GET", f"/v1/sandboxes/{LONG}"),
    sent("GET", "/v1/sandboxes/%ff%fe"),
    sent("GET", "/v1/sandboxes/a%00b"),
    sent("DELETE", "/v1/sandboxes/sb-none"),
    sent("POST", "/v1/me/tokens", json={"label": ""}),
    sent("POST", "/v1/me/tokens", json={"label": LONG}),
    sent("POST", "/v1/me/tokens", json={"label": "x", "expires_in_days": 0}),
    sent("POST", "/v1/me/tokens", json={"label": "x", "workspace": "../x"}),
    sent("DELETE", "/v1/me/tokens/%ff"),
    sent("GET", "/v1/snapshots/..%2f"),
    sent("GET", "/v1/templates/..%2f"),
    sent("GET", "/v1/no/such/route"),
    sent("PUT", "/v1/sandboxes"),
    # A field that nobody knows is a wish that would not be granted.
    sent(*CREATE, json={"template": "base", "egress_policy": "none"}),
    sent(*CREATE, json={"template": "base", "ttl": 60}),
    sent(*CREATE, data=b'{"template": "base", "template": "base"}'),
    sent(*CREATE, json={"template": "base", "metadata": {"a\0b": "1"}}),
    sent(*CREATE, json={"template": "base", "metadata": {"": "1"}}),
    sent("POST", "/v1/sandboxes/{id}/exec", json={"cmd": "true", "timeout": 1}),
    sent("POST", "/v1/sandboxes/{id}/exec/stream", json={"cmd": "true", "cdw": "/"}),
    sent("POST", "/v1/sandboxes/{id}/fork", json={"count": 2}),
    sent("POST", "/v1/sandboxes/{id}/snapshots", json={"name": "x"}),
    sent("PATCH", "/v1/sandboxes/{id}/lifecycle", json={"ttl_seconds": 1, "persist": True}),
    sent("POST", "/v1/me/tokens", json={"label": "x", "role": "admin"}),
    sent("POST", "/v1/me/tokens", json={"label": "x", "expires_in_days": 1.5}),
    sent("POST", "/v1/me/tokens", json={"label": "x", "expires_in_days": 10**30}),
    sent("GET", "/v1/sandboxes?limit=-1"),
    sent("GET", "/v1/sandboxes?limit=" + "9" * 400),
    sent("GET", "/v1/sandboxes?limit=5&cursor=" + LONG),
    sent("GET", "/v1/sandboxes?limit=5&cursor=%ff%00"),
    sent("GET", "/v1/sandboxes?status=" + LONG),
    sent("GET", "/v1/sandboxes/{id}/events?tail=1&tail=2"),
    sent("GET", "/v1/sandboxes/{id}/events?follow=perhaps"),
    sent("POST", "/v1/sandboxes/{id}/processes", json={}),
    sent("POST", "/v1/sandboxes/{id}/processes", json={"cmd": "true", "argv": ["true"]}),
    sent("POST", "/v1/sandboxes/{id}/processes", json={"argv": []}),
    sent("POST", "/v1/sandboxes/{id}/processes", json={"argv": ["a\0b"]}),
    sent("POST", "/v1/sandboxes/{id}/processes", json={"cmd": "true", "pty": {"rows": 0, "cols": 1}}),
    sent("POST", "/v1/sandboxes/{id}/processes", json={"cmd": "true", "pty": {"rows": 1, "cols": 1, "depth": 1}}),
    sent("POST", "/v1/sandboxes/{id}/processes", json={"cmd": "true", "env": {"A=B": "1"}}),
    sent("POST", "/v1/sandboxes/{id}/processes", json={"cmd": "true", "user": "nobody-like-that"}),
    sent("POST", "/v1/sandboxes/{id}/processes/run", json={"cmd": "true", "input_base64": "?"}),
    sent("GET", "/v1/sandboxes/{id}/processes/" + LONG),
    sent("POST", "/v1/sandboxes/{id}/processes/none/signal", json={"signal": "SIGNOTHING"}),
    sent("POST", "/v1/sandboxes/{id}/processes/none/signal", json={"signal": 9}),
    sent("POST", "/v1/sandboxes/{id}/processes/none/resize", json={"rows": 10**9, "cols": 1}),
    sent("GET", "/v1/sandboxes/{id}/processes/none/output?stdout_offset=-1"),
    sent("POST", "/v1/sandboxes/{id}/contexts", json={"language": "klingon"}),
    sent("POST", "/v1/sandboxes/{id}/contexts/none/run", json={"code": "1"}),
    sent("POST", "/v1/sandboxes/{id}/contexts/default/run", json={}),
    sent("POST", "/v1/sandboxes/{id}/contexts/default/run", json={"code": "1", "timeout_seconds": 0}),
    sent("POST", "/v1/sandboxes/{id}/contexts/default/run", json={"code": "1", "on_disconnect": "maybe"}),
    sent("POST", "/v1/sandboxes/{id}/contexts/default/run", data=b'{"code": [' + b"[]," * 1_500_000 + b"[]]}"),
    sent("POST", "/v1/sandboxes/{id}/contexts/default/run", data=b'{"code": [' + b'"",' * 1_500_000 + b'""]}'),
    sent("GET", "/v1/sandboxes/{id}/contexts/default/attach?execution=" + LONG),
    sent("GET", "/v1/sandboxes/{id}/fs?path=/etc/hostname&offset=-1"),
    sent("GET", "/v1/sandboxes/{id}/fs?path=/etc/hostname&path=/etc/passwd"),
    sent("PUT", "/v1/sandboxes/{id}/fs?path=/tmp/x&mode=worldwide", data=b"x"),
    sent("POST", "/v1/sandboxes/{id}/fs/move", json={"source": "/tmp/none", "target": "/tmp/x"}),
    sent("POST", "/v1/sandboxes/{id}/fs/mkdir", json={"path": "/proc/x"}),
    sent("PUT", "/v1/sandboxes/{id}/fs/tree?path=/tmp/none", data=b"this is no archive" * 100),
    sent("GET", "/v1/sandboxes/{id}/fs/watch?path=/none"),
    sent("PUT", "/v1/workspaces/..%2f/quota", json={}),
    sent("PUT", "/v1/workspaces/x/quota", json={"sandboxes": -1}),
    sent("PUT", "/v1/workspaces/x/quota", json={"sandboxen": 1}),
    sent("POST", "/sandboxes", json={"templateID": "base", "autoPause": True}),
    sent("POST", "/sandboxes/{id}/connect", json={"timeout": 0}),
    sent("POST", "/sandboxes", json={}),
    sent("POST", "/sandboxes", json={"templateID": "base", "timeout": 3601}),
    sent("POST", "/sandboxes", json={"templateID": "base", "envVars": {"A=B": "1"}}),
    sent("POST", "/sandboxes/{id}/processes", json={"cmd": "ls", "args": "x"}),
    sent("POST", "/sandboxes/{id}/timeout", json={}),
    sent("GET", "/sandboxes/{id}/files"),
    sent("GET", "/no/such/route"),
]


@pytest.mark.parametrize(("method", "path", "how"), BAD, ids=lambda value: str(value)[:60])
def test_bad_requests_are_told_why(api: Api, box: pandastack.Sandbox, method: str, path: str, how: dict[str, Any]) -> None:
    answer = api(method, path.replace("{id}", box.id), **how)
    assert 400 <= answer.status_code < 500, answer.text
    said = answer.json()
    assert isinstance(said["error"], str) and said["error"]
    assert len(said["error"]) < 5000
    if not path.startswith("/v1"):
        assert said["code"] == answer.status_code and said["message"]


def test_nothing_was_done(api: Api, box: pandastack.Sandbox) -> None:
    before = [found["id"] for found in api("GET", "/v1/sandboxes").json()]
    for method, path, how in BAD:
        if (method, path) == CREATE:
            api(method, path, **how)
    assert [found["id"] for found in api("GET", "/v1/sandboxes").json()] == before
    assert box.refresh().status == "running" and box.exec("echo well").stdout == "well\n"


@pytest.mark.parametrize("path", ["/pause", "/resume"])
def test_an_empty_body_of_any_type_is_fine(api: Api, box: pandastack.Sandbox, path: str) -> None:
    headers = {"Content-Type": "text/plain;charset=UTF-8"}
    assert api("POST", f"/v1/sandboxes/{box.id}{path}", data=b"", headers=headers).status_code == 204


FORGED = [
    "",
    "pds_",
    "pds_" + "0" * 32,
    "pds_" + "g" * 32,
    "PDS_" + "0" * 32,
    "pds_" + "0" * 33,
    "pds_" + "0" * 31 + "٠",
    "pds_%",
    "' OR 1=1 --",
    LONG,
    "Bearer",
    "null",
]


@pytest.mark.parametrize("token", FORGED, ids=lambda token: token[:20])
@pytest.mark.parametrize("path", ["/v1/sandboxes", "/v1/me", "/sandboxes", "/v1/nowhere"])
def test_a_forged_token_opens_nothing(server: Server, token: str, path: str) -> None:
    said = set()
    for headers in ({"Authorization": f"Bearer {token}".encode()}, {"X-API-Key": token.encode()}):
        answer = requests.get(server.url + path, headers=headers, timeout=30)
        assert answer.status_code == 401, answer.text
        said.add(answer.json()["error"])
    answer = requests.get(server.url + path, params={"access_token": token}, timeout=30)
    assert answer.status_code == 401 and all(isinstance(text, str) and text for text in said)


def test_an_expired_token_is_as_good_as_none(server: Server, api: Api, settings: Settings) -> None:
    made = api("POST", "/v1/me/tokens", json={"label": "short", "expires_in_days": 1}).json()
    short = Api(server.url, made["token"])
    assert short("GET", "/v1/me").status_code == 200
    with sqlite3.connect(Layout(settings.home).database) as records:
        records.execute("UPDATE tokens SET expires_at = 1 WHERE prefix = ?", (made["prefix"],))
    forged = Api(server.url, "pds_" + "0" * 32)
    for path in ("/v1/me", "/v1/sandboxes", "/sandboxes"):
        late, never = short("GET", path), forged("GET", path)
        assert late.status_code == never.status_code == 401 and late.json() == never.json()
    assert api("DELETE", f"/v1/me/tokens/{made['prefix']}").status_code == 204


def test_a_name_that_is_no_text_is_its_bytes(api: Api, box: pandastack.Sandbox) -> None:
    place = f"/v1/sandboxes/{box.id}/fs"
    assert api("PUT", f"{place}?path=/tmp/half%ffname", data=b"kept").json() == {"path": "/tmp/half\udcffname", "bytes": 4}
    assert "half\udcffname" in [entry["name"] for entry in api("GET", f"{place}/dir?path=/tmp").json()["entries"]]
    assert api("GET", f"{place}?path=/tmp/half%ffname").content == b"kept"
    assert api("GET", f"{place}?path=/tmp/half%ef%bf%bdname").status_code == 404, "a replacement character is another name"
    done = api("POST", f"/v1/sandboxes/{box.id}/exec", data=b'{"cmd": "cat /tmp/half\\udcffname"}').json()
    assert done["stdout"] == "kept" and done["exit_code"] == 0
    assert api("DELETE", f"{place}?path=/tmp/half%ffname").status_code == 204
