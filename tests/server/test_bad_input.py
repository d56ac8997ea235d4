"""What is wrong with a request is told in one flat text, and nothing was done."""

from __future__ import annotations

from typing import Any

import pandastack
import pytest

from tests.server.conftest import Api

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
    for method, path, how in BAD:
        if (method, path) == CREATE:
            api(method, path, **how)
    assert [found["id"] for found in api("GET", "/v1/sandboxes").json() if found["metadata"].get("purpose") != "shared"] == []
    assert box.refresh().status == "running" and box.exec("echo well").stdout == "well\n"


@pytest.mark.parametrize("path", ["/pause", "/resume"])
def test_an_empty_body_of_any_type_is_fine(api: Api, box: pandastack.Sandbox, path: str) -> None:
    headers = {"Content-Type": "text/plain;charset=UTF-8"}
    assert api("POST", f"/v1/sandboxes/{box.id}{path}", data=b"", headers=headers).status_code == 204
