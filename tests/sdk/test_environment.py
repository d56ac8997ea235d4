"""Where the server is, and what its previews are called."""

from __future__ import annotations

import pytest

from belljar.sdk.environment import find_place
from belljar.sdk.errors import InvalidArgument
from belljar.sdk.previews import preview_url
from belljar.sdk.requests import route, websocket_url


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "BELLJAR_API_URL",
        "PANDASTACK_API",
        "BELLJAR_API_KEY",
        "PANDASTACK_API_KEY",
        "BELLJAR_PREVIEW_HOST",
        "PANDASTACK_PREVIEW_HOST",
    ):
        monkeypatch.delenv(name, raising=False)


def test_an_argument_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (find_place(None, None).url, find_place(None, None).key) == ("http://127.0.0.1:8080", None)
    monkeypatch.setenv("PANDASTACK_API", "https://panda.example")
    monkeypatch.setenv("PANDASTACK_API_KEY", "pds_p")
    assert (find_place(None, None).url, find_place(None, None).key) == ("https://panda.example", "pds_p")
    monkeypatch.setenv("BELLJAR_API_URL", "https://jar.example/")
    monkeypatch.setenv("BELLJAR_API_KEY", "pds_b")
    assert (find_place(None, None).url, find_place(None, None).key) == ("https://jar.example", "pds_b")
    assert (find_place("http://other", "k").url, find_place("http://other", "k").key) == ("http://other", "k")


@pytest.mark.parametrize(
    ("url", "api"),
    [("http://h", "http://h/v1"), ("http://h/v1/", "http://h/v1"), ("http://h/api", "http://h/api/v1")],
)
def test_the_version_is_part_of_the_path_once(url: str, api: str) -> None:
    assert find_place(url, None).api == api


@pytest.mark.parametrize("url", ["", "example.com", "ftp://x", "http://", "http://h:99999", "http://[::1"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(InvalidArgument):
        find_place(url, None)


def test_a_key_with_a_line_break_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="line break"):
        find_place(None, "pds_x\n")


def test_what_a_name_contains_never_becomes_a_path() -> None:
    assert route("sandboxes", "../me?x=1#y", "exec") == "/sandboxes/..%2Fme%3Fx%3D1%23y/exec"
    for empty in ("", ".", ".."):
        with pytest.raises(InvalidArgument):
            route("sandboxes", empty)


def test_websockets_are_at_the_same_place() -> None:
    assert websocket_url(find_place("https://h/api", None), "/x", {"a": 1, "b": None}) == "wss://h/api/v1/x?a=1"


def test_preview_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    assert preview_url("https://api.example.com", None, "sb-1", 3000, None) == "https://3000-sb-1.example.com"
    assert preview_url("http://127.0.0.1:8080", None, "sb-1", 3000, None) == "http://3000-sb-1.localhost:8080"
    assert preview_url("http://h", "p.example:1", "sb-1", 80, "https") == "https://80-sb-1.p.example:1"
    monkeypatch.setenv("BELLJAR_PREVIEW_HOST", ".jar.example")
    assert preview_url("http://h", None, "sb-1", 80, None) == "http://80-sb-1.jar.example"
    for port in (0, 65536, True, "80"):
        with pytest.raises(InvalidArgument):
            preview_url("http://h", None, "sb-1", port, None)  # type: ignore[arg-type]
