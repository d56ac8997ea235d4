"""What is under way when the right to it ends: it ends too, at once, and says why where it can."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pandastack
import pytest
import requests
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

from tests.server.conftest import Api, MakeBox, Server, eventually
from tests.server.previews.conftest import PORT, Visitor, link, start_web
from tests.server.previews.test_sockets import TIMEOUT_S, dial

POLICY_VIOLATION, BROKEN = 1008, 1011


def echoes(opened: ClientConnection) -> bool:
    opened.send("still there")
    return opened.recv(TIMEOUT_S) == "still there"


def greet(*opened: ClientConnection) -> None:
    for each in opened:
        each.recv(TIMEOUT_S)  # what the guest's server says first


def how_it_ended(opened: ClientConnection) -> tuple[int | None, str | None]:
    with pytest.raises(ConnectionClosed):
        opened.recv(TIMEOUT_S)
    return opened.close_code, opened.close_reason


def share(api: Api, box: pandastack.Sandbox, **wishes: object) -> None:
    assert api("POST", f"/v1/sandboxes/{box.id}/ports", json={"port": PORT, **wishes}).status_code == 201


def withdraw(api: Api, box: pandastack.Sandbox) -> None:
    assert api("DELETE", f"/v1/sandboxes/{box.id}/ports/{PORT}").status_code == 204


def test_a_withdrawn_port_cuts_visitors_off_and_not_its_owner(
    api: Api, server: Server, web: pandastack.Sandbox, visitor: Visitor
) -> None:
    made, host = link(api, web), visitor.host
    by_path = f"/v1/p/{made['token']}/ws"
    own = {"Authorization": f"Bearer {api.token}"}
    share(api, web, public=True)
    with (
        dial(server, "/ws", host) as public,
        dial(server, by_path) as linked,
        dial(server, "/ws", f"{PORT}-{web.id}.localhost", additional_headers=own) as owner_by_host,
        dial(server, f"/v1/sandboxes/{web.id}/proxy/{PORT}/ws", additional_headers=own) as owner,
    ):
        greet(public, linked, owner_by_host, owner)
        share(api, web, public=False)
        assert how_it_ended(public) == (POLICY_VIOLATION, "this preview was made private")
        assert echoes(linked) and echoes(owner)
        withdraw(api, web)
        assert how_it_ended(linked) == (POLICY_VIOLATION, "this preview was made private")
        assert echoes(owner)
        # While a port is public nobody is asked for a token, so this one came as everybody does.
        assert how_it_ended(owner_by_host)[0] == POLICY_VIOLATION


def test_an_answer_under_way_breaks_off_and_one_not_begun_is_refused(
    api: Api, server: Server, web: pandastack.Sandbox, visitor: Visitor
) -> None:
    another = Visitor(server, web.id)
    share(api, web, public=True)
    with ThreadPoolExecutor() as threads, visitor("GET", "/forever", stream=True) as endless:
        pieces = endless.iter_content(65536)
        next(pieces)
        waiting = threads.submit(another, "GET", "/never")
        eventually(lambda: web.exec("ss -Htn state established sport = :8000 | wc -l").stdout.strip() >= "2", "both requests")
        withdraw(api, web)
        with pytest.raises(requests.exceptions.RequestException):
            for _ in pieces:
                pass
        refused = waiting.result(TIMEOUT_S)
    assert refused.status_code == 401 and "private" in refused.json()["error"]
    eventually(lambda: web.exec("ss -Htn state established sport = :8000 | wc -l").stdout.strip() == "0", "the end in the guest")


def test_a_link_ends_what_it_opened_when_its_time_is_over(api: Api, server: Server, web: pandastack.Sandbox) -> None:
    short, long = link(api, web, ttl_seconds=20), link(api, web)
    with (
        dial(server, f"/v1/p/{short['token']}/ws") as first,
        dial(server, f"/v1/p/{long['token']}/ws") as second,
    ):
        greet(first, second)
        code, reason = how_it_ended(first)
        assert code == POLICY_VIOLATION and "expired" in (reason or "")
        assert echoes(second)


def test_the_end_of_a_sandbox_ends_everything(api: Api, server: Server, make: MakeBox) -> None:
    box = make()
    start_web(box)
    visitor = Visitor(server, box.id)
    own = {"Authorization": f"Bearer {api.token}"}
    made = link(api, box)
    with (
        dial(server, f"/v1/p/{made['token']}/ws") as linked,
        dial(server, "/ws", visitor.host, additional_headers=own) as owner,
        dial(server, f"/v1/sandboxes/{box.id}/ports/{PORT}/connect", additional_headers=own) as raw,
        visitor("GET", f"/forever?belljar_token={made['token']}", stream=True) as endless,
    ):
        greet(linked, owner)
        pieces = endless.iter_content(65536)
        next(pieces)
        box.kill()
        assert [how_it_ended(each)[0] for each in (linked, owner, raw)] == [BROKEN] * 3
        with pytest.raises(requests.exceptions.RequestException):
            for _ in pieces:
                pass
    assert requests.get(made["url"], timeout=TIMEOUT_S).status_code == 401


def test_a_revoked_token_is_cut_off_at_previews_too(api: Api, server: Server, web: pandastack.Sandbox, visitor: Visitor) -> None:
    made = api("POST", "/v1/me/tokens", json={"label": "leaked"}).json()
    token = {"Authorization": f"Bearer {made['token']}"}
    with (
        dial(server, "/ws", visitor.host, additional_headers=token) as by_host,
        dial(server, f"/v1/sandboxes/{web.id}/proxy/{PORT}/ws", additional_headers=token) as by_path,
    ):
        greet(by_host, by_path)
        assert api("DELETE", f"/v1/me/tokens/{made['prefix']}").status_code == 204
        how_it_ended(by_host)
        how_it_ended(by_path)
