"""The network of sandboxes through the server: policy, log, events, notes, secrets, and a restart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import requests

from belljar.settings import Settings
from tests.conftest import borrowed_home
from tests.egress.dns_server import DnsServer
from tests.egress.servers import Servers, TestAuthority
from tests.egress.web import Web
from tests.server.conftest import Api, Server

DEADLINE_S = 120


class Net:
    """A server that asks the tests' DNS server and lets sandboxes reach 127.0.0.1."""

    def __init__(self, server: Server, api: Api, dns: DnsServer, servers: Servers, authority: TestAuthority) -> None:
        self.server, self._api = server, api
        self.dns, self.servers, self.authority = dns, servers, authority

    async def __call__(self, method: str, path: str, **options: Any) -> requests.Response:
        return await asyncio.to_thread(self._api, method, f"/v1{path}", **options)

    async def create(self, **wishes: Any) -> str:
        made = await self("POST", "/sandboxes", json={"template": "base", **wishes})
        assert made.status_code == 201, made.text
        sandbox_id: str = made.json()["id"]
        return sandbox_id

    async def exec(self, sandbox_id: str, command: str) -> dict[str, Any]:
        ran = await self("POST", f"/sandboxes/{sandbox_id}/exec", json={"cmd": command, "timeout_seconds": 100})
        assert ran.status_code == 200, ran.text
        answer: dict[str, Any] = ran.json()
        return answer

    async def egress(self, sandbox_id: str) -> dict[str, Any]:
        answer: dict[str, Any] = (await self("GET", f"/sandboxes/{sandbox_id}/egress")).json()
        return answer


@pytest_asyncio.fixture(scope="module")
async def net(own_settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Net]:
    dns, servers = await DnsServer().start(), Servers()
    authority = TestAuthority(tmp_path_factory.mktemp("authority"))
    environ = {
        "BELLJAR_EGRESS_DNS": dns.address,
        "BELLJAR_EGRESS_ALLOW_PRIVATE": "127.0.0.1",
        "BELLJAR_EGRESS_CA_FILE": str(authority.file),
    }
    with borrowed_home(own_settings) as home:
        server = await asyncio.to_thread(lambda: Server(home, **environ))
        assert server.token is not None
        calls = Net(server, Api(server.url, server.token), dns, servers, authority)
        for name in ("echo.test", "other.test", "api.test"):
            dns.names[name] = [("A", "127.0.0.1")]
        yield calls
        for left in (await calls("GET", "/sandboxes")).json():
            await calls("DELETE", f"/sandboxes/{left['id']}")
        await asyncio.to_thread(server.stop)
    await servers.stop()
    dns.stop()


@pytest_asyncio.fixture(scope="module")
async def box(net: Net) -> AsyncIterator[str]:
    sandbox_id = await net.create(egress_allowlist=["echo.test"])
    yield sandbox_id
    await net("DELETE", f"/sandboxes/{sandbox_id}")


def reach(name: str, port: int) -> str:
    return f"timeout 60 bash -c 'exec 3<>/dev/tcp/{name}/{port} && echo hello >&3 && head -n 1 <&3'"


async def test_what_is_refused_is_told_everywhere(net: Net, box: str) -> None:
    port = await net.servers.echo()
    assert (await net.exec(box, reach("echo.test", port)))["stdout"] == "hello\n"
    assert (await net.exec(box, reach("other.test", port)))["exit_code"] != 0
    assert (await net.exec(box, reach("169.254.169.254", 80)))["exit_code"] != 0
    seen = await net.egress(box)
    assert (seen["mode"], seen["allow"], seen["deny"], seen["secrets"]) == ("allow-list", ["echo.test"], [], [])
    assert seen["limits"] == {"connections": 256, "bytes_per_second": 0, "bytes": 0}
    assert seen["counters"]["allowed"] == 1 and seen["counters"]["refused"] >= 2 and seen["counters"]["bytes_out"] == 6
    newest, *_, oldest = seen["connections"]
    assert (oldest["name"], oldest["address"], oldest["port"], oldest["verdict"]) == ("echo.test", "127.0.0.1", port, "allowed")
    assert (newest["address"], newest["verdict"], newest["rule"]) == ("169.254.169.254", "refused", "mode allow-list")
    assert newest["reason"] == "not on the allow list" and not newest["open"]
    async with asyncio.timeout(DEADLINE_S):
        while True:
            events = (await net("GET", f"/sandboxes/{box}/events")).json()["events"]
            denied = {
                event["payload"]["name"] or event["payload"]["address"]: event
                for event in events
                if event["type"] == "egress.denied"
            }
            if {"other.test", "169.254.169.254"} <= denied.keys():
                break
            await asyncio.sleep(0.2)
    assert denied["other.test"]["payload"]["reason"] == "not on the allow list"
    session = (await net("POST", f"/sandboxes/{box}/repl/sessions", json={})).json()["id"]
    code = "import urllib.request\nurllib.request.urlopen('http://other.test/')"
    ran = (await net("POST", f"/sandboxes/{box}/repl/sessions/{session}/run", json={"code": code, "timeout_ms": 90000})).json()
    assert ran["exit"] == 1 and ran["notes"][0].startswith("network: other.test was refused: not on the allow list"), ran


async def test_a_policy_is_changed_at_run_time(net: Net, box: str) -> None:
    port = await net.servers.echo()
    changed = await net("PATCH", f"/sandboxes/{box}/egress", json={"mode": "open", "deny": ["echo.test"]})
    assert changed.status_code == 200 and changed.json()["mode"] == "open"
    assert (await net.exec(box, reach("other.test", port)))["stdout"] == "hello\n"
    assert (await net.exec(box, reach("echo.test", port)))["exit_code"] != 0
    back = (await net("PATCH", f"/sandboxes/{box}/egress", json={"allow": ["echo.test"], "deny": []})).json()
    assert (back["mode"], back["allow"], back["deny"]) == ("allow-list", ["echo.test"], [])


async def test_secrets_are_set_used_and_never_shown(net: Net, box: str, tmp_path: Path) -> None:
    web = Web(tmp_path, net.authority.context("api.test"))
    host = f"api.test:{web.port}"
    try:
        secret = {"host": host, "header": "Authorization", "value": "Bearer never-shown"}
        assert (await net("PUT", f"/sandboxes/{box}/egress/secrets", json=secret)).status_code == 204
        await net("PATCH", f"/sandboxes/{box}/egress", json={"allow": ["echo.test", "api.test"]})
        ran = await net.exec(box, f"curl -sS -m 90 https://{host}/echo")
        assert ran["exit_code"] == 0, ran
        assert web.requests[-1]["headers"]["authorization"] == "Bearer never-shown"
        seen = await net.egress(box)
        assert seen["secrets"] == [{"host": host, "header": "Authorization"}]
        places = ["", "/egress", "/events", "/lifecycle"]
        shown = [(await net("GET", f"/sandboxes/{box}{place}")).text for place in places] + [ran["stdout"], ran["stderr"]]
        assert not any("never-shown" in text or "PRIVATE" in text for text in shown)
        where = {"host": host, "header": "authorization"}
        assert (await net("DELETE", f"/sandboxes/{box}/egress/secrets", params=where)).status_code == 204
        assert (await net("DELETE", f"/sandboxes/{box}/egress/secrets", params=where)).status_code == 404
        assert (await net.egress(box))["secrets"] == []
    finally:
        web.stop()


async def test_an_empty_allow_list_is_off(net: Net) -> None:
    sandbox_id = await net.create(egress_allowlist=[])
    try:
        assert (await net.egress(sandbox_id))["mode"] == "off"
    finally:
        await net("DELETE", f"/sandboxes/{sandbox_id}")


BAD = [
    ("POST", "/sandboxes", {"egress_allowlist": "pypi.org"}),
    ("POST", "/sandboxes", {"egress_allowlist": ["not a host"]}),
    ("POST", "/sandboxes", {"egress_allowlist": [7]}),
    ("POST", "/sandboxes", {"egress": 7}),
    ("POST", "/sandboxes", {"egress": {"mode": "shut"}}),
    ("POST", "/sandboxes", {"egress": "open", "egress_allowlist": []}),
    ("POST", "/sandboxes", {"egress_secrets": {"host": "a.test"}}),
    ("POST", "/sandboxes", {"egress_secrets": [{"host": "a.test", "header": "Host", "value": "x"}]}),
    ("PATCH", "/sandboxes/{id}/egress", {}),
    ("PATCH", "/sandboxes/{id}/egress", {"mode": "shut"}),
    ("PATCH", "/sandboxes/{id}/egress", {"allow": "a.test"}),
    ("PATCH", "/sandboxes/{id}/egress", {"allow": ["*"]}),
    ("PATCH", "/sandboxes/{id}/egress", {"limits": {"connections": 9999}}),
    ("PATCH", "/sandboxes/{id}/egress", {"secrets": []}),
    ("PUT", "/sandboxes/{id}/egress/secrets", {"host": "a.test", "header": "X"}),
    ("PUT", "/sandboxes/{id}/egress/secrets", {"host": "*.test", "header": "X", "value": "hidden-value"}),
    ("PUT", "/sandboxes/{id}/egress/secrets", {"host": "a.test", "header": "X", "value": "hidden-value\n"}),
    ("DELETE", "/sandboxes/{id}/egress/secrets", {}),
]


@pytest.mark.parametrize(("method", "path", "body"), BAD)
async def test_bad_requests_change_nothing(net: Net, box: str, method: str, path: str, body: dict[str, Any]) -> None:
    before = await net.egress(box)
    extra = {"template": "base"} if path == "/sandboxes" else {}
    refused = await net(method, path.replace("{id}", box), json={**extra, **body})
    assert refused.status_code == 400, refused.text
    assert refused.json()["code"] == "invalid_input" and "hidden-value" not in refused.text
    after = await net.egress(box)
    assert (before["mode"], before["allow"], before["secrets"]) == (after["mode"], after["allow"], after["secrets"])


async def test_other_workspaces_see_nothing(net: Net, box: str) -> None:
    made = (await net("POST", "/me/tokens", json={"label": "x", "workspace": "elsewhere"})).json()
    stranger = Api(net.server.url, made["token"])
    for method, path, body in (
        ("GET", "", None),
        ("PATCH", "", {"mode": "open"}),
        ("PUT", "/secrets", {"host": "a.test", "header": "X", "value": "y"}),
    ):
        asked = await asyncio.to_thread(stranger, method, f"/v1/sandboxes/{box}/egress{path}", json=body)
        assert asked.status_code == 404, asked.text


async def test_guests_have_their_network_back_after_a_restart(net: Net) -> None:
    """Without any call: a program that went on running connects again."""
    visits = 0

    async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal visits
        visits += 1

    port = await net.servers.start(count)
    sandbox_id = await net.create()
    loop = f"nohup bash -c 'while sleep 0.5; do (exec 3<>/dev/tcp/echo.test/{port}) 2>/dev/null; done' >/dev/null 2>&1 &"
    await net.exec(sandbox_id, loop)
    async with asyncio.timeout(DEADLINE_S):
        while visits < 2:
            await asyncio.sleep(0.1)
        await asyncio.to_thread(net.server.stop, 9)
        visits = 0
        await asyncio.to_thread(net.server.start)
        net._api = Api(net.server.url, net._api.token)
        while visits < 2:
            await asyncio.sleep(0.1)
    await net("DELETE", f"/sandboxes/{sandbox_id}")
