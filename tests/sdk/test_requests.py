"""Requests before they are sent: what goes out, and what is refused here."""

from __future__ import annotations

import json
import math
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

import httpx
import pytest

import belljar
from belljar.sdk.environment import Place
from belljar.sdk.errors import InvalidArgument
from belljar.sdk.requests import Call, address, check_seconds, encode, refusal

HERE = Place("http://h", "pds_secret")


def test_an_address_keeps_names_that_are_no_utf8() -> None:
    assert address(HERE, "/x", {"path": "/a b/\udcff", "n": 1, "none": None}) == "http://h/v1/x?path=%2Fa+b%2F%FF&n=1"
    assert address(HERE, "/x", {"path": PureWindowsPath(r"tmp\a")}) == "http://h/v1/x?path=tmp%2Fa"
    assert address(HERE, "/x", None) == "http://h/v1/x"
    with pytest.raises(InvalidArgument):
        address(HERE, "/x", {"path": "\ud800"})


def test_a_body_is_json_whatever_the_text() -> None:
    for body in ({"a": "grüße 🎉"}, {"a": "\udcff"}, {"a": "\ud800"}, {"a": [None, True, 1.5]}):
        sent = encode(body)
        assert sent is not None and json.loads(sent) == body
    assert encode({"path": PurePosixPath("/a/b")}) == b'{"path":"/a/b"}'
    assert encode(None) is None


@pytest.mark.parametrize("wrong", [math.nan, math.inf, {1, 2}, object(), b"x"])
def test_what_json_does_not_have_is_an_argument_that_is_wrong(wrong: Any) -> None:
    with pytest.raises(InvalidArgument, match="cannot be sent"):
        encode({"a": wrong})


@pytest.mark.parametrize("wrong", [0, -1, math.nan, math.inf, 1e10, "5", None, True])
def test_a_time_limit_is_a_number_of_seconds(wrong: Any) -> None:
    for use in (lambda: check_seconds("timeout", wrong), lambda: belljar.Client("http://127.0.0.1:1", timeout=wrong)):
        with pytest.raises(InvalidArgument, match="timeout must be a number of seconds"):
            use()
    if wrong is not None:
        with pytest.raises(InvalidArgument, match="timeout_seconds must be"):
            belljar.Sandbox(id="sb-1", client=belljar.Client("http://127.0.0.1:1")).exec("true", timeout_seconds=wrong)


@pytest.mark.parametrize("wrong", [0, 65536, -1, "80", True, 80.0, None])
def test_a_port_is_a_number(wrong: Any) -> None:
    ports = belljar.Sandbox(id="sb-1", client=belljar.Client("http://127.0.0.1:1")).ports
    for use in (ports.connect, ports.expose, ports.hide, lambda port: ports.forward(port).__enter__()):
        with pytest.raises(InvalidArgument, match="a port is a number"):
            use(wrong)


def test_a_key_is_not_shown() -> None:
    client = belljar.Client("http://h", "pds_secret")
    assert "pds_secret" not in f"{client!r} {client.transport.place!r}" and repr(client) == "Client('http://h')"


def test_refusals_of_somebody_in_between_are_short_and_lead_on() -> None:
    page = b"<html>" + b"x" * 3000
    assert str(refusal(502, httpx.Headers(), page, Call("GET", "/x"), HERE)) == "the server answered with HTTP 502"
    moved = refusal(301, httpx.Headers({"Location": "https://h/v1/x"}), b"", Call("GET", "/x"), HERE)
    assert "points to https://h/v1/x" in str(moved) and moved.details["location"] == "https://h/v1/x"


@pytest.mark.parametrize("proxy", ["ftp://127.0.0.1:9", "http://[::1"])
def test_a_proxy_that_cannot_be_used_is_said_and_never_asked_for_this_machine(proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, proxy)
    far = belljar.Client("http://belljar.invalid", "k")
    for use in (far.me, belljar.Sandbox(id="sb-1", client=far).terminal):
        with pytest.raises(InvalidArgument, match="proxy"):
            use()
    with pytest.raises(belljar.ConnectionError, match="no Belljar server can be reached"):
        belljar.Client("http://127.0.0.1:1").me()
