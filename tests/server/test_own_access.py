"""Every route of Belljar's own answers for another workspace's sandbox exactly as for one that does not exist."""

from __future__ import annotations

from typing import Any

import pandastack
import requests

from belljar.server.declaring import Call
from belljar.server.own.routes import ROUTES
from tests.server.conftest import Api

CODE: dict[str, Any] = {"code": "1"}
SIZE = {"rows": 1, "cols": 1}
PAIR = {"source": "/tmp/a", "target": "/tmp/b"}

OF_A_SANDBOX: list[tuple[str, str, dict[str, Any] | None]] = [
    ("POST", "/processes", {"cmd": "true"}),
    ("GET", "/processes", None),
    ("POST", "/processes/run", {"cmd": "true"}),
    ("GET", "/processes/p1-1", None),
    ("DELETE", "/processes/p1-1", None),
    ("GET", "/processes/p1-1/output", None),
    ("POST", "/processes/p1-1/stdin", None),
    ("POST", "/processes/p1-1/signal", {"signal": 9}),
    ("POST", "/processes/p1-1/resize", SIZE),
    ("POST", "/contexts", {}),
    ("GET", "/contexts", None),
    ("GET", "/contexts/default", None),
    ("DELETE", "/contexts/default", None),
    ("POST", "/contexts/default/run", CODE),
    ("POST", "/contexts/default/run?stream=1", CODE),
    ("GET", "/contexts/default/attach", None),
    ("POST", "/contexts/default/interrupt", None),
    ("POST", "/contexts/default/restart", None),
    ("GET", "/contexts/default/variables", None),
    ("POST", "/fs/mkdir", {"path": "/tmp/x"}),
    ("POST", "/fs/move", PAIR),
    ("POST", "/fs/copy", PAIR),
    ("GET", "/fs/watch?path=/tmp", None),
    ("GET", "/fs/tree?path=/tmp", None),
    ("PUT", "/fs/tree?path=/tmp", None),
    ("GET", "/stats", None),
    ("GET", "/egress", None),
    ("PATCH", "/egress", {"mode": "off"}),
    ("PUT", "/egress/secrets", {"host": "a.example", "header": "x-key", "value": "v"}),
    ("DELETE", "/egress/secrets?host=a.example&header=x-key", None),
    ("POST", "/repl", CODE),
]


def test_another_workspaces_sandbox_is_not_there(other: Api, box: pandastack.Sandbox) -> None:
    unknown = "sb-" + "0" * 16
    for method, path, body in OF_A_SANDBOX:
        theirs = other(method, f"/v1/sandboxes/{box.id}{path}", json=body)
        nobodys = other(method, f"/v1/sandboxes/{unknown}{path}", json=body)
        assert theirs.status_code == nobodys.status_code == 404, (path, theirs.text)
        assert theirs.text == nobodys.text.replace(unknown, box.id), path
    for method, path in (("GET", "?path=/tmp"), ("GET", "/list"), ("GET", "/stat?path=/tmp"), ("GET", "/download?path=/tmp")):
        assert other(method, f"/sandboxes/{box.id}/filesystem{path}").status_code == 404
    assert box.exec("echo well").stdout == "well\n"


def test_nobody_gets_in_without_a_token(api: Api, box: pandastack.Sandbox) -> None:
    for method, path, body in OF_A_SANDBOX:
        answer = requests.request(method, f"{api.url}/v1/sandboxes/{box.id}{path}", json=body, timeout=60)
        assert answer.status_code == 401 and answer.json()["code"] == "unauthorized", path


def test_the_list_above_is_complete() -> None:
    """WebSockets are in test_own_terminals.py."""
    places = {"p1-1": "{process}", "default": "{context}"}
    asked = set()
    for method, path, _ in OF_A_SANDBOX:
        parts = path.partition("?")[0].split("/")
        asked.add((method, "/".join(places.get(part, part) for part in parts)))
    routes = [route.operation for route in ROUTES if isinstance(route, Call)]
    prefix = "/sandboxes/{id}"
    declared = {(each.method, each.path.removeprefix(prefix)) for each in routes if each.path.startswith(f"{prefix}/")}
    assert declared <= asked, f"not asked for: {sorted(declared - asked)}"
