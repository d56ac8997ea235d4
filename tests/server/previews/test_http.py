"""Requests to real servers in real sandboxes, by host name and by path."""

from __future__ import annotations

import hashlib
import socket
import time
from urllib.parse import urlsplit

import pandastack
import pytest
import requests

from tests.server.conftest import Api, MakeBox, Server, eventually
from tests.server.previews.conftest import HTML, PORT, Visitor, start_web


def test_a_request_arrives_as_it_was_sent_without_what_is_ours(public: Visitor) -> None:
    sent = {
        "Authorization": "Basic own", "X-Custom": "1", "Connection": "x-gone", "X-Gone": "1", "TE": "trailers", "Proxy": "evil",
        "X-Forwarded-For": "203.0.113.7", "Cookie": "own=1", "Accept": "application/x",
    }  # fmt: skip
    seen = public("POST", "/a%2Fb//c?q=%20&q&access_token=mine", headers=sent, data=b"body").json()
    headers = {name.lower(): value for name, value in seen["headers"]}
    assert (seen["method"], seen["target"]) == ("POST", "/a%2Fb//c?q=%20&q&access_token=mine")
    assert seen["size"] == 4 and seen["sha256"] == hashlib.sha256(b"body").hexdigest()
    assert headers["host"] == public.host == headers["x-forwarded-host"]
    assert headers["authorization"] == "Basic own" and headers["x-custom"] == "1" and headers["accept"] == "application/x"
    assert headers["x-forwarded-for"] == "203.0.113.7, 127.0.0.1" and headers["x-forwarded-proto"] == "http"
    assert not headers.keys() & {"x-gone", "te", "proxy", "x-forwarded-prefix"} and headers["connection"] == "close"


def test_by_path_the_same_with_a_token(api: Api, other: Api, server: Server, web: pandastack.Sandbox) -> None:
    prefix = f"/v1/sandboxes/{web.id}/proxy/{PORT}"
    seen = api("GET", f"{prefix}/a/b?c=d&access_token={api.token}")
    assert seen.status_code == 200 and api.token not in seen.text
    headers = {name.lower(): value for name, value in seen.json()["headers"]}
    assert seen.json()["target"] == "/a/b?c=d"
    assert headers["x-forwarded-prefix"] == prefix and headers["host"] == f"localhost:{PORT}"
    assert seen.headers["Content-Security-Policy"].startswith("sandbox")
    for method in ("PUT", "PATCH", "DELETE", "OPTIONS", "REPORT"):
        assert api(method, f"{prefix}/x", data=b"12").json()["method"] == method
    assert other("GET", f"{prefix}/").status_code == 404 == other("GET", f"/v1/sandboxes/sb-0/proxy/{PORT}/").status_code
    assert requests.get(f"{server.url}{prefix}/", timeout=60).status_code == 401
    assert api("GET", f"/v1/sandboxes/{web.id}/proxy/99999/").status_code == 404
    assert api("GET", f"/v1/sandboxes/{web.id}/proxy/x/").status_code == 404


def test_answers_are_relieved_of_orders_that_are_not_theirs(api: Api, web: pandastack.Sandbox, public: Visitor) -> None:
    by_host = public("GET", "/orders")
    assert by_host.status_code == 302 and by_host.headers["Location"] == "/next"
    assert by_host.headers["Set-Cookie"] == "a=1; Path=/x" and "Strict-Transport-Security" in by_host.headers
    by_path = api("GET", f"/v1/sandboxes/{web.id}/proxy/{PORT}/orders", allow_redirects=False)
    prefix = f"/v1/sandboxes/{web.id}/proxy/{PORT}"
    assert by_path.headers["Location"] == f"{prefix}/next" and by_path.headers["Set-Cookie"] == f"a=1; Path={prefix}/x"
    assert "Strict-Transport-Security" not in by_path.headers
    for answer in (by_host, by_path):
        assert not answer.headers.keys() & {"X-Accel-Redirect", "X-Private", "Keep-Alive"}


def test_head_and_early_answers(public: Visitor) -> None:
    head = public("HEAD", "/x")
    assert head.status_code == 200 and int(head.headers["Content-Length"]) > 50 and head.content == b""
    early = public("POST", "/early", data=b"x" * 3_000_000)
    assert early.status_code == 413 and early.text == "no"


def test_large_bodies_pass_whole_in_both_directions(public: Visitor) -> None:
    size, piece = 24 * 1024 * 1024, 64 * 1024
    wanted, got, received = hashlib.sha256(), hashlib.sha256(), 0
    for number in range(size // piece):
        wanted.update(number.to_bytes(4, "big") * (piece // 4))
    answer = public("GET", f"/big?{size}", stream=True)
    for part in answer.iter_content(piece):
        got.update(part)
        received += len(part)
    assert received == size and got.digest() == wanted.digest()
    for body in (b"ab" * 4_000_000, iter([b"cd" * 1_000_000] * 4)):  # with a length, and in chunks
        seen = public("PUT", "/up", data=body).json()
        assert seen["size"] == 8_000_000
        assert seen["sha256"] == hashlib.sha256((b"ab" if isinstance(body, bytes) else b"cd") * 4_000_000).hexdigest()


def test_events_arrive_one_by_one(web: pandastack.Sandbox, public: Visitor) -> None:
    web.exec("rm -f /tmp/go-*; mkfifo /tmp/go-0 /tmp/go-1")
    answer = public("GET", "/events", stream=True)
    assert answer.headers["Content-Type"] == "text/event-stream"
    events = answer.iter_content(None)
    for number in range(3):
        assert next(events) == b"data: %d\n\n" % number  # the next one is not even written yet
        if number < 2:
            web.exec(f"echo > /tmp/go-{number}")
    assert list(events) == []


def test_a_visitor_who_leaves_ends_the_work_in_the_guest(web: pandastack.Sandbox, public: Visitor) -> None:
    web.exec("rm -f /tmp/forever*")
    answer = public("GET", "/forever", stream=True)
    pieces = answer.iter_content(65536)  # whoever forgets it hangs up
    assert len(next(pieces)) > 0
    assert not web.filesystem.exists("/tmp/forever-ended"), web.filesystem.read("/tmp/forever-ended")
    answer.close()
    eventually(lambda: web.filesystem.exists("/tmp/forever-ended"), "the end of an answer that nobody reads")


def test_a_visitor_who_does_not_read_is_not_read_for(server: Server, web: pandastack.Sandbox, public: Visitor) -> None:
    """What the guest's server may send ahead is bounded by the windows on the way, not by this host's memory."""
    web.exec("rm -f /tmp/forever*")
    address = urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port), timeout=60) as stalled:
        stalled.sendall(f"GET /forever HTTP/1.1\r\nHost: {public.host}\r\n\r\n".encode())
        seen = [""]

        def stands_still() -> bool:
            seen.append(web.exec("sleep 1; cat /tmp/forever").stdout)
            return seen[-1] == seen[-2] != ""

        eventually(stands_still, "a server that waits for its reader")
        assert int(seen[-1]) < 64 * 1024 * 1024
        assert public("GET", "/others").status_code == 200
    eventually(lambda: web.filesystem.exists("/tmp/forever-ended"), "the end of an answer that nobody reads")


def test_broken_answers_are_told_as_broken(public: Visitor) -> None:
    nonsense = public("GET", "/nonsense")
    assert nonsense.status_code == 502 and "web server" in nonsense.json()["error"]
    with pytest.raises(requests.exceptions.ChunkedEncodingError):
        public("GET", "/cut")


def test_a_port_that_nothing_listens_on_says_so(api: Api, server: Server, web: pandastack.Sandbox) -> None:
    visitor = Visitor(server, web.id, 8099)
    token = {"X-API-Key": api.token}
    plain, page = visitor("GET", headers=token), visitor("GET", headers={**token, **HTML})
    assert plain.status_code == page.status_code == 502
    assert plain.json()["code"] == "port_closed" and "8099" in plain.json()["error"] and str(PORT) not in plain.json()["error"]
    assert "Nothing answers here yet" in page.text and "8099" in page.text
    assert Visitor(server, web.id, 99999)("GET", headers=token).status_code == 404


def test_a_hit_wakes_a_hibernated_sandbox_and_a_look_does_not(api: Api, server: Server, make: MakeBox) -> None:
    box = make(persistent=True)
    start_web(box)
    api("POST", f"/v1/sandboxes/{box.id}/ports", json={"port": PORT, "public": True, "label": "site"})
    box.hibernate()
    (found,) = api("GET", f"/v1/sandboxes/{box.id}/ports").json()
    assert (found["listening"], found["label"], found["public"]) == (False, "site", True)
    assert Visitor(server, box.id, 8001)("GET").status_code == 401  # private: nobody is woken for that
    assert box.refresh().status == "hibernated"
    visitor = Visitor(server, box.id)
    assert visitor("GET", "/hello").json()["target"] == "/hello"
    assert box.refresh().status == "running"
    box.exec("rm -f /tmp/forever*")
    answer = visitor("GET", "/forever", stream=True)
    pieces = answer.iter_content(65536)
    next(pieces)
    time.sleep(1.2)
    assert api("GET", f"/v1/sandboxes/{box.id}/lifecycle").json()["open_streams"] == 1
    answer.close()
    box.pause()
    paused = visitor("GET", headers=HTML)
    assert paused.status_code == 409 and "not running" in paused.text
    box.resume()


def test_forks_are_private_and_old_connections_end(api: Api, server: Server, public: Visitor, web: pandastack.Sandbox) -> None:
    child = web.fork()
    try:
        assert Visitor(server, child.id)("GET").status_code == 401
        seen = Visitor(server, child.id)("GET", "/child", headers={"X-API-Key": api.token})
        assert seen.json()["target"] == "/child"
    finally:
        child.kill()
