"""Who may look at a preview, and what its page may not do."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from urllib.parse import urlsplit

import pandastack
import pytest
import requests
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Origin

from tests.server.conftest import Api, MakeBox, Server, eventually
from tests.server.previews.conftest import HTML, PORT, Visitor, link
from tests.server.previews.test_sockets import dial


def test_a_preview_is_private_until_it_is_made_public(api: Api, web: pandastack.Sandbox, visitor: Visitor) -> None:
    refused = visitor("GET")
    assert refused.status_code == 401 and refused.json()["code"] == "unauthorized"
    page = visitor("GET", headers=HTML)
    assert page.status_code == 401 and page.headers["Content-Type"].startswith("text/html")
    assert "private" in page.text and "preview-token" in page.text
    api("POST", f"/v1/sandboxes/{web.id}/ports", json={"port": PORT, "public": True})
    assert visitor("GET").json()["target"] == "/"
    api("DELETE", f"/v1/sandboxes/{web.id}/ports/{PORT}")
    assert visitor("GET").status_code == 401


def test_nobody_learns_which_sandboxes_there_are(server: Server, web: pandastack.Sandbox, visitor: Visitor) -> None:
    nobodys = Visitor(server, "sb-" + "0" * 16)("GET")
    assert nobodys.status_code == 401 and nobodys.text == visitor("GET").text


def test_the_owners_token_opens_a_preview_and_stays_here(api: Api, other: Api, visitor: Visitor) -> None:
    for headers in ({"Authorization": f"Bearer {api.token}"}, {"X-API-Key": api.token}):
        seen = visitor("GET", "/a?b=c", headers=headers)
        assert seen.json()["target"] == "/a?b=c"
        assert api.token not in seen.text
    assert visitor("GET", headers={"X-API-Key": other.token}).status_code == 404
    assert visitor("GET", headers={"X-API-Key": "pds_" + "0" * 32}).status_code == 401


def test_a_link_opens_the_preview_in_a_browser_and_leaves_the_address(
    api: Api, server: Server, web: pandastack.Sandbox, visitor: Visitor
) -> None:
    made = link(api, web)
    assert made["sandbox_id"] == web.id and made["paths"] == [] and made["expires_at"].endswith("Z")
    host_url = urlsplit(made["host_url"])
    assert host_url.netloc == visitor.host
    sent_on = visitor("GET", f"/a/b?x=1&belljar_token={made['token']}&y=2", headers=HTML)
    assert sent_on.status_code == 307
    assert sent_on.headers["Location"] == "/a/b?x=1&y=2"
    cookie = sent_on.headers["Set-Cookie"]
    assert "HttpOnly" in cookie and "SameSite=Lax" in cookie and "Domain" not in cookie
    visitor.session.cookies.clear()
    value = cookie.partition(";")[0]
    seen = visitor("GET", "/a/b?x=1", headers={**HTML, "Cookie": f"own=1; {value}; more=2"})
    assert seen.status_code == 200 and made["token"] not in seen.text
    assert ["cookie", "own=1; more=2"] in [[name.lower(), each] for name, each in seen.json()["headers"]]
    # Another preview's page may have set one for a domain above both.
    assert visitor("GET", headers={"Cookie": f"belljar_preview=x.y; {value}"}).status_code == 200
    # Behind a proxy of this machine that speaks TLS the cookie also works in a frame.
    secure = visitor("GET", f"/?belljar_token={made['token']}", headers={**HTML, "X-Forwarded-Proto": "https"})
    assert "Secure; SameSite=None; Partitioned" in secure.headers["Set-Cookie"]
    assert secure.headers["Location"] == "/"
    visitor.session.cookies.clear()
    # No way to make it send people elsewhere.
    for path in ("//evil.example/", "/\\evil.example/"):
        assert away(server, visitor.host, f"{path}?belljar_token={made['token']}").startswith(f"http://{visitor.host}{path}")


def away(server: Server, host: str, target: str) -> str:
    """Where a browser is sent that asks for this, as it is: a client would tidy the path up first."""
    head = f"GET {target} HTTP/1.1\r\nHost: {host}\r\nAccept: text/html\r\nConnection: close\r\n\r\n"
    found = re.search(rb"\r\nlocation: (.*?)\r\n", plainly(server, head))
    return found.group(1).decode() if found else ""


def plainly(server: Server, head: str) -> bytes:
    address = urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port), timeout=60) as plain:
        plain.sendall(head.encode())
        return b"".join(iter(lambda: plain.recv(65536), b""))


def test_a_link_works_for_programs_at_once(api: Api, web: pandastack.Sandbox, visitor: Visitor, server: Server) -> None:
    made = link(api, web)
    assert visitor("POST", f"/x?belljar_token={made['token']}&a=1", data=b"abc").json()["target"] == "/x?a=1"
    below = requests.get(made["url"] + "deep/er?q=1", timeout=60)
    assert below.json()["target"] == "/deep/er?q=1"
    # It is on the API's own host, so its pages get an origin of their own.
    assert below.headers["Content-Security-Policy"].startswith("sandbox") and "allow-same-origin" not in below.text
    assert below.headers["Referrer-Policy"] == "no-referrer"
    no_slash = requests.get(made["url"].rstrip("/"), timeout=60, allow_redirects=False)
    assert no_slash.status_code == 307 and no_slash.headers["Location"].endswith("/")


def test_links_that_are_not_good_open_nothing(api: Api, server: Server, web: pandastack.Sandbox, make: MakeBox) -> None:
    good = link(api, web)["token"]
    body, _, seal = good.partition(".")
    elsewhere = make()
    foreign = link(api, elsewhere)["token"]
    other_port = link(api, web, port=8001)["token"]
    short = link(api, web, ttl_seconds=0.05)["token"]
    eventually(lambda: requests.get(f"{server.url}/v1/p/{short}/", timeout=60).status_code == 401, "the end of a link")
    changed = ("A" if seal[0] != "A" else "B") + seal[1:]
    forged = [f"{body}x.{seal}", f"{body}.{changed}", f".{seal}", body, "", "x" * 5000, "é.é", f"{body}.", "%00", f"{good}.x"]
    for token in [*forged, foreign, other_port, short]:
        for headers in ({}, {"Cookie": f"belljar_preview={token}"}):
            if headers and not token.isascii():
                continue
            query = f"?belljar_token={token}" if not headers else ""
            assert Visitor(server, web.id)("GET", f"/{query}", headers=headers).status_code == 401, token
    for token in (each for each in forged if each):
        assert requests.get(f"{server.url}/v1/p/{token}/", timeout=60).status_code == 401, token
    # One sandbox's link does open its own.
    assert Visitor(server, web.id)("GET", f"/?belljar_token={good}").status_code == 200
    assert requests.get(f"{server.url}/v1/p/{foreign}/", timeout=60).status_code == 502  # nothing listens there


def test_a_link_ends_when_the_port_is_withdrawn_or_the_sandbox_ends(api: Api, server: Server, make: MakeBox) -> None:
    box = make()
    made = link(api, box)
    assert requests.get(made["url"], timeout=60).status_code == 502
    api("DELETE", f"/v1/sandboxes/{box.id}/ports/{PORT}")
    assert requests.get(made["url"], timeout=60).status_code == 401
    newer = link(api, box)
    assert requests.get(newer["url"], timeout=60).status_code == 502
    box.kill()
    assert requests.get(newer["url"], timeout=60).status_code == 401
    assert Visitor(server, box.id)("GET", headers={"X-API-Key": api.token}).status_code == 404


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api", 200), ("/api/", 200), ("/api/deep?x=/../y", 200), ("/static/a.js", 200),
        ("/api%20x", 403), ("/apix", 403), ("/", 403), ("/v1/api", 403),
        ("/api/../secret", 403), ("/api/%2e%2e/secret", 403), ("/api/..%2fsecret", 403), ("/api/%252e%252e/secret", 403),
        ("/api//secret", 403), ("/api/..;/secret", 403), ("/api/.%2e;x/secret", 403), ("/api\\..\\secret", 403), ("//api", 403),
    ],
)  # fmt: skip
def test_a_link_may_be_for_some_paths_only(api: Api, server: Server, web: pandastack.Sandbox, path: str, status: int) -> None:
    made = link(api, web, paths=["/api", "/static/"])
    assert made["url"].endswith("/api")
    address = urlsplit(server.url)
    for target, host in (
        (f"/v1/p/{made['token']}{path}", address.netloc),
        (f"{path}{'&' if '?' in path else '?'}belljar_token={made['token']}", Visitor(server, web.id).host),
    ):
        answer = plainly(server, f"GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")
        assert int(answer.split(b" ", 2)[1]) == status, answer[:500]


def test_names_of_previews_never_lead_to_the_api(server: Server, api: Api, public: Visitor, web: pandastack.Sandbox) -> None:
    """Not even with a good token: it would be ambient to a page that a guest wrote."""
    token = {"Authorization": f"Bearer {api.token}"}
    for path in ("/healthz", "/metrics", "/version", "/v1/me", "/v1/sandboxes", "/sandboxes", "/v1/p/x/"):
        assert public("GET", path, headers=token).json()["target"] == path
    for host in ("8000-sb-0.localhost", "8000-SB-0.example.com:1", "0-a", "99999-x.y.z", f"{PORT}-{web.id.upper()}.LOCALHOST"):
        answer = requests.get(f"{server.url}/v1/me", headers={"Host": host}, timeout=60)
        assert "auth_method" not in answer.text, host


@pytest.mark.parametrize(
    ("method", "page", "status"),
    [
        # What Chromium sends: its own page, the address bar, a link or a frame on another page.
        ("POST", {"Sec-Fetch-Site": "same-origin", "Origin": "http://OWN"}, 200),
        ("POST", {"Sec-Fetch-Site": "same-origin", "Origin": "null"}, 200),
        ("GET", {"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate"}, 200),
        ("GET", {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "navigate", "Referer": "http://OTHER/"}, 200),
        ("GET", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, 200),
        # A form, a script, a request of somebody else's page.
        ("POST", {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "navigate", "Origin": "http://OTHER"}, 403),
        ("POST", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Origin": "null"}, 403),
        ("GET", {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors", "Referer": "http://OTHER/"}, 403),
        ("GET", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, 403),
        ("GET", {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors", "Origin": "http://OTHER"}, 403),
        # Without TLS, and not below localhost, browsers send no more than the origin.
        ("POST", {"Origin": "http://OWN"}, 200),
        ("POST", {"Origin": "http://OTHER"}, 403),
        ("POST", {"Origin": "http://evil.example"}, 403),
        ("POST", {"Origin": "null"}, 403),
        ("POST", {"Origin": "http://[x"}, 403),
        ("POST", {"Origin": "http://9000-ID.evil.example"}, 403),
        # Another port of the same sandbox is no stranger.
        ("POST", {"Origin": "http://9000-ID.localhost:PORT"}, 200),
        ("GET", {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors", "Referer": "http://9000-ID.localhost:PORT/x"}, 200),
    ],
)
def test_the_cookie_is_not_for_pages_of_others(
    api: Api, web: pandastack.Sandbox, visitor: Visitor, method: str, page: dict[str, str], status: int
) -> None:
    """Previews below one domain are one site to a browser, which sends the cookie for all of them."""
    words = {"OWN": visitor.host, "OTHER": visitor.host.replace(web.id, "sb-" + "0" * 16), "ID": web.id}
    words["PORT"] = visitor.host.rpartition(":")[2]
    headers = {name: re.sub("OWN|OTHER|ID|PORT", lambda found: words[found.group()], value) for name, value in page.items()}
    cookie = {"Cookie": f"belljar_preview={link(api, web)['token']}"}
    assert visitor(method, headers={**headers, **cookie}).status_code == status
    # A token in the address or in a header is not something that a browser adds by itself.
    assert visitor(method, headers={**headers, "X-API-Key": api.token}).status_code == 200


def test_a_page_of_another_sandbox_opens_no_websocket_with_the_cookie(
    api: Api, server: Server, web: pandastack.Sandbox, visitor: Visitor
) -> None:
    cookie = {"Cookie": f"belljar_preview={link(api, web)['token']}"}
    other = Origin(f"http://{visitor.host.replace(web.id, 'sb-' + '0' * 16)}")
    for origin in (other, Origin("http://evil.example"), Origin("null")):
        with pytest.raises(InvalidStatus) as refused:
            dial(server, "/ws", visitor.host, origin=origin, additional_headers=cookie)
        assert refused.value.response.status_code == 403
    with dial(server, "/ws", visitor.host, origin=Origin(f"http://{visitor.host}"), additional_headers=cookie) as opened:
        opened.recv(60)


def test_a_page_below_a_link_may_talk_to_its_own_server(api: Api, web: pandastack.Sandbox) -> None:
    """Its origin is one of its own, so that to a browser its server is somebody else's."""
    made = link(api, web, paths=["/api"])
    asked = {"Origin": "null", "Access-Control-Request-Method": "PUT", "Access-Control-Request-Headers": "content-type,x-own"}
    leave = requests.options(made["url"], headers=asked, timeout=60)
    assert leave.status_code == 204 and not leave.content
    granted = {name: leave.headers[f"Access-Control-Allow-{name}"] for name in ("Origin", "Methods", "Headers")}
    assert granted == {"Origin": "*", "Methods": "PUT", "Headers": "content-type,x-own"}
    done = requests.put(made["url"], headers={"Origin": "null", "X-Own": "1"}, data=b"abc", timeout=60)
    assert done.json()["size"] == 3 and done.headers["Access-Control-Allow-Origin"] == "*"
    assert "Access-Control-Allow-Credentials" not in done.headers
    # Not beyond the link, and not where a token is what counts.
    assert requests.options(made["url"] + "x", headers=asked, timeout=60).status_code == 403
    proxied = api("GET", f"/v1/sandboxes/{web.id}/proxy/{PORT}/", headers={"Origin": "null"})
    assert proxied.status_code == 200 and "Access-Control-Allow-Origin" not in proxied.headers


def test_without_tokens_a_previews_page_still_has_no_rights(own_home: Path) -> None:
    server = Server(own_home, "--dev")
    try:
        me = f"{server.url}/v1/me"
        assert requests.get(me, timeout=30).status_code == 200
        port = urlsplit(server.url).port
        for headers in (
            {"Origin": f"http://8000-sb-1.localhost:{port}"},
            {"Origin": "null"},
            {"Host": f"8000-sb-1.localhost:{port}"},
            {"Sec-Fetch-Site": "same-site"},
            {"Sec-Fetch-Site": "cross-site"},
        ):
            assert requests.get(me, headers=headers, timeout=30).status_code in (401, 403), headers
        assert requests.get(me, headers={"Sec-Fetch-Site": "same-origin"}, timeout=30).status_code == 200
        for origin, status in ((f"http://8000-sb-1.localhost:{port}", 403), ("null", 403), (f"http://localhost:{port}", 404)):
            with pytest.raises(InvalidStatus) as refused:
                connect(f"ws://localhost:{port}/v1/sandboxes/sb-0/ports/80/connect", origin=Origin(origin), proxy=None)
            assert refused.value.response.status_code == status
        # Previews by host are as private as ever.
        assert Visitor(server, "sb-1")("GET").status_code == 401
    finally:
        server.stop()
