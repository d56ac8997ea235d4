"""Ports of a sandbox in the API: found, named, made public, and as the published client sees them."""

from __future__ import annotations

import json
from urllib.parse import urlsplit

import pandastack
import pytest
import requests

from tests.server.conftest import Api, MakeBox, Server
from tests.server.previews.conftest import PORT, Visitor


def test_what_listens_is_found_and_can_be_named(api: Api, server: Server, web: pandastack.Sandbox) -> None:
    path = f"/v1/sandboxes/{web.id}/ports"
    (found,) = api("GET", path).json()
    assert (found["port"], found["listening"], found["source"], found["public"]) == (PORT, True, "detected", False)
    assert found["process"] == "python3"
    assert found["proxy_url"] == f"{server.url}/v1/sandboxes/{web.id}/proxy/{PORT}/"
    assert found["url"] == f"http://{PORT}-{web.id}.localhost:{urlsplit(server.url).port}/"
    named = api("POST", path, json={"port": 9999, "label": "later"})
    assert named.status_code == 201 and named.json()["label"] == "later" and not named.json()["listening"]
    assert [(each["port"], each["source"]) for each in api("GET", path).json()] == [(PORT, "detected"), (9999, "user")]
    assert api("DELETE", f"{path}/9999").status_code == 204
    assert [each["port"] for each in api("GET", path).json()] == [PORT]
    told = [event["type"] for event in api("GET", f"/v1/sandboxes/{web.id}/events").json()["events"]]
    assert "port.shared" in told and "port.withdrawn" in told


def test_a_port_can_be_named_at_create(api: Api, make: MakeBox) -> None:
    box = make(metadata={"port.3000": "web", "port.99999": "no port", "port.x": "no port"})
    (found,) = api("GET", f"/v1/sandboxes/{box.id}/ports").json()
    assert (found["port"], found["label"], found["listening"], found["source"]) == (3000, "web", False, "user")


NO_PORTS: list[dict[str, object]] = [
    {},
    {"port": 0},
    {"port": 65536},
    {"port": "80"},
    {"port": 80, "public": 1},
    {"port": 80, "label": "x" * 201},
]
NO_LINKS: list[dict[str, object]] = [
    {"port": 0},
    {"port": 80, "ttl_seconds": 0},
    {"port": 80, "ttl_seconds": 604801},
    {"port": 80, "paths": ["x"]},
    {"port": 80, "paths": ["/a?b"]},
    {"port": 80, "paths": ["/"] * 17},
    {"port": 80, "paths": "/"},
    {"port": 80, "paths": ["/%2e"]},
]


@pytest.mark.parametrize("body", NO_PORTS)
def test_nonsense_about_ports_is_refused(api: Api, web: pandastack.Sandbox, body: dict[str, object]) -> None:
    assert api("POST", f"/v1/sandboxes/{web.id}/ports", json=body).status_code == 400


@pytest.mark.parametrize("body", NO_LINKS)
def test_nonsense_about_links_is_refused(api: Api, web: pandastack.Sandbox, body: dict[str, object]) -> None:
    assert api("POST", f"/v1/sandboxes/{web.id}/preview-token", json=body).status_code == 400


def test_the_published_clients_addresses_lead_here(
    server: Server, admin_token: str, public: Visitor, web: pandastack.Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    suffix = f"localhost:{urlsplit(server.url).port}"
    monkeypatch.setenv("PANDASTACK_PREVIEW_HOST", suffix)
    box = pandastack.Client(api_key=admin_token, api_url=server.url).sandboxes.get(web.id)
    address = urlsplit(box.preview_url(PORT, scheme="http"))
    assert f"{address.scheme}://{address.netloc}" == f"http://{PORT}-{web.id}.{suffix}"
    assert box.preview_urls() == {PORT: f"https://{PORT}-{web.id}.{suffix}"}
    # Names below localhost are this machine, which not every resolver knows.
    answer = requests.get(f"{server.url}/from/client", headers={"Host": address.netloc}, timeout=60)
    assert answer.json()["target"] == "/from/client"
    assert json.loads(answer.text)["method"] == "GET"
