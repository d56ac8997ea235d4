"""Quotas and admission through the real server: what is refused, how, and what the published client makes of it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pandastack
import pytest
import requests
from pandastack.exceptions import BadRequestError, ServerError

from tests.server.conftest import Api, Server


@pytest.fixture
def tenant(api: Api, server: Server) -> Iterator[Api]:
    """A workspace without sandboxes, with a quota that the test sets."""
    made = api("POST", "/v1/me/tokens", json={"label": "tenant", "workspace": "tenant"}).json()
    calls = Api(server.url, made["token"])
    yield calls
    api("PUT", "/v1/workspaces/tenant/quota", json={})
    for box in calls("GET", "/v1/sandboxes").json():
        calls("DELETE", f"/v1/sandboxes/{box['id']}")
    for taken in calls("GET", "/v1/snapshots").json()["snapshots"]:
        calls("DELETE", f"/v1/snapshots/{taken['id']}")
    api("DELETE", f"/v1/me/tokens/{made['prefix']}")


def allow(api: Api, **limits: float | None) -> dict[str, Any]:
    answer = api("PUT", "/v1/workspaces/tenant/quota", json=limits)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def usage(calls: Api) -> dict[str, int]:
    found: dict[str, int] = calls("GET", "/v1/me/quota").json()["usage"]
    return found


def refused(answer: requests.Response, words: str) -> None:
    assert (answer.status_code, answer.json()["code"]) == (429, "quota_exceeded"), answer.text
    assert words in answer.json()["error"] and "Retry-After" not in answer.headers


def test_quotas_are_the_admins_to_set_and_the_tenants_to_see(api: Api, tenant: Api) -> None:
    set_to = allow(api, sandboxes=3, rate_per_second=100.5)
    assert set_to["workspace"] == "tenant" and set_to["limits"]["sandboxes"] == 3 and set_to["own"]["disk_mb"] is None
    assert tenant("GET", "/v1/me/quota").json() == set_to == tenant("GET", "/v1/workspaces/tenant/quota").json()
    assert set_to["usage"] == {"sandboxes": 0, "memory_mb": 0, "disk_mb": 0}
    for answer in (tenant("PUT", "/v1/workspaces/tenant/quota", json={}), tenant("GET", "/v1/workspaces/default/quota")):
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    wishes: list[dict[str, object]] = [{"sandboxes": -1}, {"sandboxes": 1.5}, {"memory_mb": "1"}, {"rate_burst": 0}]
    for wrong in [*wishes, {"rate_per_second": 1e9}, {"colour": 1}]:
        assert api("PUT", "/v1/workspaces/tenant/quota", json=wrong).status_code == 400, wrong
    assert api("PUT", "/v1/workspaces/no%20name/quota", json={}).status_code == 400
    assert tenant("GET", "/v1/me/quota").json() == set_to, "a wrong wish changed something"


def test_parallel_creates_forks_and_wakes_stay_within_the_quota(api: Api, tenant: Api) -> None:
    allow(api, sandboxes=2)
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda _: tenant("POST", "/v1/sandboxes", json={"template": "base"}), range(8)))
    made = [answer.json()["id"] for answer in answers if answer.status_code == 201]
    assert len(made) == 2, [answer.text for answer in answers]
    for answer in answers:
        if answer.status_code != 201:
            refused(answer, "max sandboxes reached")
    assert usage(tenant) == {"sandboxes": 2, "memory_mb": 4096, "disk_mb": 2 * 10240}
    refused(tenant("POST", f"/v1/sandboxes/{made[0]}/fork"), "max sandboxes reached")
    allow(api, sandboxes=3)
    refused(tenant("POST", f"/v1/sandboxes/{made[0]}/fork-tree", json={"count": 2}), "2 more")
    assert len(tenant("GET", "/v1/sandboxes").json()) == 2

    # Memory is that of those awake: one that sleeps makes room, and then stays asleep until there is some again.
    allow(api, memory_mb=4096)
    assert tenant("POST", f"/v1/sandboxes/{made[0]}/hibernate").status_code == 200
    child = tenant("POST", f"/v1/sandboxes/{made[1]}/fork")
    assert child.status_code == 201, child.text
    refused(tenant("POST", f"/v1/sandboxes/{made[0]}/wake"), "max memory reached")
    refused(tenant("POST", f"/v1/sandboxes/{made[0]}/exec", json={"cmd": "true"}), "max memory reached")
    assert tenant("GET", f"/v1/sandboxes/{made[0]}").json()["status"] == "hibernated"
    assert tenant("DELETE", f"/v1/sandboxes/{child.json()['children'][0]}").status_code == 204
    assert tenant("POST", f"/v1/sandboxes/{made[0]}/exec", json={"cmd": "echo up"}).json()["stdout"] == "up\n"

    # Disk is what is promised to sandboxes, and what snapshots really take.
    allow(api, disk_mb=2 * 10240)
    refused(tenant("POST", f"/v1/sandboxes/{made[1]}/snapshots"), "max disk reached")
    allow(api, disk_mb=2 * 10240 + 1)
    refused(tenant("POST", f"/v1/sandboxes/{made[1]}/snapshots"), "max disk reached")  # of some MiB, as it turns out
    assert tenant("GET", "/v1/snapshots").json() == {"snapshots": []}
    allow(api, disk_mb=2 * 10240 + 2000)
    taken = tenant("POST", f"/v1/sandboxes/{made[1]}/snapshots")
    assert taken.status_code == 201, taken.text
    assert usage(tenant)["disk_mb"] == 2 * 10240 - (-taken.json()["size_bytes"] >> 20)


class Watched(pandastack.Client):
    """The published client, and the refusals after which it tried again."""

    def __init__(self, url: str, token: str, budget_s: float = 60) -> None:
        self.tried_again: list[Any] = []
        super().__init__(
            api_key=token, api_url=url, max_create_retry_seconds=budget_s, on_create_retry=self.tried_again.append
        )


def test_the_client_does_not_try_a_full_quota_again(api: Api, tenant: Api) -> None:
    allow(api, memory_mb=1)
    client = Watched(tenant.url, tenant.token)
    with pytest.raises(BadRequestError, match="max memory reached"):
        client.sandboxes.create("base")
    assert client.tried_again == []


def test_the_client_waits_out_the_rate_limit(api: Api, tenant: Api) -> None:
    allow(api, rate_per_second=0.5, rate_burst=1, memory_mb=1)
    tenant("GET", "/v1/me")
    answer = tenant("POST", "/v1/sandboxes", json={"template": "base"})
    assert (answer.status_code, answer.json()["code"]) == (429, "rate_limited")
    assert 1 <= int(answer.headers["Retry-After"]) <= 2
    root = tenant("GET", "/sandboxes")
    assert (root.status_code, root.json()["code"]) == (429, 429) and root.headers["Retry-After"]
    client = Watched(tenant.url, tenant.token)
    with pytest.raises(BadRequestError, match="max memory reached"):  # its turn came, and the quota is what it met then
        client.sandboxes.create("base")
    assert client.tried_again
    assert api("GET", "/v1/me").status_code == 200, "another workspace is not held up"


def test_the_client_comes_again_when_too_many_starts_wait(own_home: Path) -> None:
    server = Server(own_home, BELLJAR_MAX_QUEUED_STARTS="1")
    try:
        assert server.token is not None

        def live(_: int) -> int:
            client = Watched(server.url, str(server.token))
            box = client.sandboxes.create("base")
            box.kill()
            return len(client.tried_again)

        with ThreadPoolExecutor(7) as threads:
            tried_again = list(threads.map(live, range(7)))
        assert sum(tried_again) > 0, "the queue was never full"
        told = [line for line in server.log() if line.get("code") == "host_busy"]
        assert told and {(line["status"], line["route"]) for line in told} == {(503, "/v1/sandboxes")}
    finally:
        server.stop()


def test_a_host_without_room_says_when_to_come_again(own_home: Path) -> None:
    server = Server(own_home, BELLJAR_HOST_MEMORY_RESERVE_MIB=str(2**24))
    try:
        calls = Api(server.url, str(server.token))
        short = calls("POST", "/v1/sandboxes", json={"template": "base"})
        assert (short.status_code, short.json()["code"]) == (507, "host_memory_short")
        assert int(short.headers["Retry-After"]) > 0 and isinstance(short.json()["error"], str)
        client = Watched(server.url, str(server.token), budget_s=5)
        with pytest.raises(ServerError, match="memory"):
            client.sandboxes.create("base")
        assert client.tried_again
    finally:
        server.stop()
