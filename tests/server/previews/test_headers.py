"""Headers to and from a guest, and the names of previews: pure functions."""

from __future__ import annotations

from typing import Any, cast

import pytest
from starlette.requests import HTTPConnection

from belljar.server.previews.addresses import PreviewHost, find_preview, origin_of, preview_url
from belljar.server.previews.headers import from_guest, to_guest, without_our_parameters
from belljar.server.previews.target import Target

TOKEN = "pds_" + "0a" * 16


def connection(headers: dict[str, str], client: str = "127.0.0.1", scheme: str = "http") -> HTTPConnection:
    raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
    address = {"client": (client, 1), "server": ("127.0.0.1", 8080), "path": "/", "query_string": b""}
    return HTTPConnection({"type": "http", "scheme": scheme, "headers": raw, **address})


def target(prefix: str = "") -> Target:
    return Target(cast(Any, None), "sb-1", 3000, b"/", prefix)


def sent(headers: dict[str, str], prefix: str = "", **options: str) -> dict[str, str]:
    return {name.decode(): value.decode("latin-1") for name, value in to_guest(connection(headers, **options), target(prefix))}


@pytest.mark.parametrize(
    ("host", "found"),
    [
        ("3000-sb-1.localhost:8080", PreviewHost("3000", "sb-1")), ("3000-SB-1.Example.COM", PreviewHost("3000", "sb-1")),
        ("99999-x", PreviewHost("99999", "x")), ("0-x.y.", PreviewHost("0", "x")),
        ("localhost:8080", None), ("127.0.0.1", None), ("[::1]:80", None), ("", None), ("api.3000-sb-1.localhost", None),
        ("-x.y", None), ("3000-.y", None), ("123456-x.y", None), ("3000-x_y.z", None), ("٣-x.y", None), ("3000--x.y", None),
    ],
)  # fmt: skip
def test_the_first_label_decides(host: str, found: PreviewHost | None) -> None:
    assert find_preview(host) == found


@pytest.mark.parametrize(
    ("host", "domain", "url"),
    [
        ("127.0.0.1:8080", "auto", "http://3000-sb-1.localhost:8080/"), ("localhost", "auto", "http://3000-sb-1.localhost/"),
        ("[::1]:8080", "auto", "http://3000-sb-1.localhost:8080/"), ("api.example.com", "auto", "http://3000-sb-1.example.com/"),
        ("boxes.example.com:81", "auto", "http://3000-sb-1.boxes.example.com:81/"), ("192.0.2.1:80", "auto", None),
        ("192.0.2.1:80", "p.example.com", "http://3000-sb-1.p.example.com/"), ("x:y", "auto", None),
    ],
)  # fmt: skip
def test_addresses_of_previews(host: str, domain: str, url: str | None) -> None:
    found = preview_url(connection({"Host": host}), domain, "sb-1", 3000)
    # What is no host at all must not be an error; what is shown then does not matter.
    assert found == url or host == "x:y"


def test_a_proxy_of_this_machine_is_believed_and_nobody_else() -> None:
    told = {"Host": "a.example", "X-Forwarded-Proto": "https", "X-Forwarded-For": "203.0.113.9"}
    assert origin_of(connection(told)) == "https://a.example"
    assert origin_of(connection(told, client="198.51.100.1")) == "http://a.example"
    assert origin_of(connection({**told, "X-Forwarded-Proto": "javascript"})) == "http://a.example"
    assert sent(told)["x-forwarded-for"] == "203.0.113.9, 127.0.0.1"
    stranger = sent(told, client="2001:db8::1")
    assert (stranger["x-forwarded-for"], stranger["x-forwarded-proto"]) == ("2001:db8::1", "http")
    assert stranger["forwarded"] == 'for="[2001:db8::1]";host="a.example";proto=http'
    assert origin_of(connection({"Host": "a.example"}, scheme="wss")) == "https://a.example"


def test_what_is_ours_does_not_reach_the_guest() -> None:
    ours = {"Authorization": f"Bearer {TOKEN}", "X-API-Key": TOKEN, "Cookie": "belljar_preview=x"}
    assert not sent({"Host": "h", **ours}).keys() & {"authorization", "x-api-key", "cookie"}
    own = {"Authorization": "Bearer own", "X-API-Key": "own", "Cookie": "a=1;belljar_preview=x;  b=2"}
    by_host = sent({"Host": "h", **own})
    assert (by_host["authorization"], by_host["x-api-key"], by_host["cookie"]) == ("Bearer own", "own", "a=1; b=2")
    assert not sent({"Host": "h", **own}, "/v1/x").keys() & {"authorization", "x-api-key"}


def test_parameters_of_ours_are_taken_out_of_a_query() -> None:
    query = f"a=1&belljar_token=x.y&access_token={TOKEN}&access_token=own&b&=&belljar_token&c=%26".encode()
    assert without_our_parameters(query) == b"a=1&access_token=own&b&=&c=%26"
    assert without_our_parameters(f"belljar%5ftoken=x&a&access%5Ftoken=%70{TOKEN[1:]}".encode()) == b"a"
    assert without_our_parameters(b"belljar_token=x") == without_our_parameters(b"") == b""


def test_what_concerns_one_connection_stays_there() -> None:
    given = [(b"Connection", b"close, X-A"), (b"X-A", b"1"), (b"Keep-Alive", b"1"), (b"Transfer-Encoding", b"chunked")]
    given += [(b"Content-Length", b"5"), (b"Trailer", b"x"), (b"Upgrade", b"h2c"), (b"X-B", b"2"), (b"Date", b"now")]
    assert from_guest(given, target()) == [(b"x-b", b"2")]
    assert from_guest([(b"Content-Length", b"5")], target()) == [(b"content-length", b"5")]


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("/a", "/v1/p/t/a"), ("/", "/v1/p/t/"), ("a", "a"), ("//evil.example", "//evil.example"), ("https://x/", "https://x/"),
        ("http://localhost:3000/a", "/v1/p/t/a"), ("http://127.0.0.1:3000", "/v1/p/t/"),
        ("http://localhost:30001/", "http://localhost:30001/"),
    ],
)  # fmt: skip
def test_redirects_below_a_path_stay_below_it(given: str, shown: str) -> None:
    headers = dict(from_guest([(b"Location", given.encode())], target("/v1/p/t")))
    assert headers[b"location"] == shown.encode()
    assert headers[b"content-security-policy"].startswith(b"sandbox ") and b"same-origin" not in headers[b"content-security-policy"]


@pytest.mark.parametrize(
    ("given", "by_host", "by_path"),
    [
        ("a=1", "a=1", "a=1"), ("a=1; path=/", "a=1; path=/", "a=1; Path=/p/"), ("a=1; Path=x", "a=1; Path=x", "a=1; Path=/p/"),
        ("a=1;DOMAIN=.example.com; Secure", "a=1; Secure", "a=1; Secure"), ("a=b; HttpOnly", "a=b; HttpOnly", "a=b; HttpOnly"),
        ("a=1; ;Domain=x", "a=1;", "a=1;"),
    ],
)  # fmt: skip
def test_cookies_are_for_one_preview(given: str, by_host: str, by_path: str) -> None:
    for prefix, wanted in (("", by_host), ("/p", by_path)):
        assert (b"set-cookie", wanted.encode()) in from_guest([(b"Set-Cookie", given.encode())], target(prefix))
    assert from_guest([(b"Set-Cookie", b"belljar_preview=forged")], target()) == []
