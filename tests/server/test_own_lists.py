"""Lists in pages and by labels; what a create can be told; what a sandbox uses."""

from __future__ import annotations

from typing import Any

import pandastack
import pytest

from tests.server.conftest import Api, MakeBox


def pages(api: Api, path: str, key: str | None = None) -> list[list[str]]:
    """The ids of each page."""
    found, cursor = [], ""
    while True:
        answer = api("GET", path + cursor)
        assert answer.status_code == 200, answer.text
        listed = answer.json()[key] if key else answer.json()
        found.append([each["id"] for each in listed])
        if "X-Next-Cursor" not in answer.headers:
            return found
        cursor = f"&cursor={answer.headers['X-Next-Cursor']}"


def test_sandboxes_by_label_status_and_page(api: Api, other: Api, make: MakeBox) -> None:
    one, two = make(metadata={"team": "a b&c", "n": "1"}), make(metadata={"team": "a b&c", "n": "2"})
    three = two.fork(metadata={"n": "3"})
    try:
        path = "/v1/sandboxes?metadata.team=a%20b%26c"
        assert pages(api, path) == [[one.id, two.id, three.id]]
        assert pages(api, f"{path}&limit=1") == [[one.id], [two.id], [three.id]]
        assert pages(api, f"{path}&limit=2") == [[one.id, two.id], [three.id]]
        assert pages(api, f"{path}&limit=3") == [[one.id, two.id, three.id]]
        assert pages(api, f"{path}&metadata.n=2") == [[two.id]]
        assert pages(api, "/v1/sandboxes?metadata.team=a") == [[]] == pages(api, f"{path}&metadata.none=1")
        assert other("GET", path).json() == []
        one.pause()
        assert pages(api, f"{path}&status=paused&limit=5") == [[one.id]] and pages(api, f"{path}&status=hibernated") == [[]]
        first = api("GET", f"{path}&limit=1")
        one.kill()
        # A page begins where the last one ended, even if what was there is gone.
        rest = api("GET", f"{path}&cursor={first.headers['X-Next-Cursor']}").json()
        assert [each["id"] for each in rest] == [two.id, three.id]
        assert rest[1]["parent_id"] == two.id and rest[0]["workspace"] == "default"
    finally:
        three.kill()


def test_snapshots_by_label_and_page(api: Api, box: pandastack.Sandbox) -> None:
    at = f"/v1/sandboxes/{box.id}/snapshots"
    taken = [api("POST", at, json={"metadata": {"set": "pages", "n": str(n)}}).json()["id"] for n in range(3)]
    try:
        assert pages(api, "/v1/snapshots?metadata.set=pages", "snapshots") == [taken[::-1]]
        assert pages(api, "/v1/snapshots?metadata.set=pages&limit=2", "snapshots") == [[taken[2], taken[1]], [taken[0]]]
        assert pages(api, f"/v1/snapshots?sandbox_id={box.id}&metadata.n=1&limit=1", "snapshots") == [[taken[1]]]
        assert pages(api, "/v1/snapshots?sandbox_id=sb-none", "snapshots") == [[]]
    finally:
        for snapshot in taken:
            assert api("DELETE", f"/v1/snapshots/{snapshot}").status_code == 204


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=-1",
        "limit=1001",
        "limit=ten",
        "cursor=nonsense",
        "cursor=W10",
        "cursor=WzEuMCwgMV0",
        "cursor=%00",
        "cursor=" + "x" * 2000,
        "metadata.=x",
        "metadata." + "n" * 300 + "=x",
        "metadata.a=%00",
    ],
)
def test_bad_pages(api: Api, query: str) -> None:
    for path in ("/v1/sandboxes", "/v1/snapshots"):
        answer = api("GET", f"{path}?{query}")
        assert answer.status_code == 400 and answer.json()["error"], answer.text
    assert api("GET", "/v1/sandboxes?status=sleepy").status_code == 400


def test_a_create_takes_environment_and_disk(api: Api) -> None:
    made = api("POST", "/v1/sandboxes", json={"template": "base", "env": {"GREETING": "hi there"}, "disk_mb": 12288})
    assert made.status_code == 201, made.text
    at = f"/v1/sandboxes/{made.json()['id']}"
    try:
        assert made.json()["disk_mb"] == 12288 and "env" not in made.json() and "hi there" not in made.text
        said = api("POST", f"{at}/exec", json={"cmd": 'echo "$GREETING"; df -m / | tail -1'}).json()["stdout"]
        assert said.startswith("hi there\n") and int(said.split()[3]) > 11000
    finally:
        api("DELETE", at)


@pytest.mark.parametrize(
    "wish",
    [
        {"env": {"A=B": "1"}},
        {"env": {"A": 1}},
        {"env": []},
        {"disk_mb": 1},
        {"disk_mb": 0},
        {"disk_mb": "big"},
        {"ttl": 60},
        {"idle_timeout_seconds": 5},
    ],
)
def test_a_create_that_cannot_be_is_told(api: Api, wish: dict[str, Any]) -> None:
    before = len(api("GET", "/v1/sandboxes").json())
    answer = api("POST", "/v1/sandboxes", json={"template": "base", **wish})
    assert 400 <= answer.status_code < 500 and answer.json()["error"], answer.text
    assert len(api("GET", "/v1/sandboxes").json()) == before


def test_what_a_sandbox_uses_is_told_while_it_runs(api: Api, make: MakeBox) -> None:
    box = make()
    at = f"/v1/sandboxes/{box.id}"
    stats = api("GET", f"{at}/stats").json()
    assert stats["guest"]["memory"]["total"] > 0 and stats["guest"]["cpu"]["count"] >= 1 and stats["host"]
    for move in ("pause", "hibernate"):
        assert api("POST", f"{at}/{move}").status_code in (200, 204)
        assert api("GET", f"{at}/stats").json()["code"] == "wrong_state"
    assert api("GET", at).json()["status"] == "hibernated"
    assert api("GET", "/v1/sandboxes/sb-none/stats").status_code == 404
