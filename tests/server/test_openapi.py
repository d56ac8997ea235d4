"""The description of the API is of this API: every route is in it, nothing else is, and the file in the repository is current."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import requests

from belljar.server.app import make_routes
from belljar.server.openapi import described, document, undescribed
from belljar.server.page import render_page
from tests.server.conftest import Server

ROOT = Path(__file__).parent.parent.parent


def test_every_route_is_described() -> None:
    assert undescribed(make_routes()) == []


def test_the_file_is_current() -> None:
    ran = subprocess.run([sys.executable, str(ROOT / "scripts/openapi"), "--check"], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


def test_every_call_has_what_a_reader_needs() -> None:
    routes = make_routes()
    found = document(routes, "0")
    operations = [operation for methods in found["paths"].values() for operation in methods.values()]
    assert len(operations) == len(list(described(routes)))
    names = [operation["operationId"] for operation in operations]
    assert len(set(names)) == len(names)
    for operation in operations:
        assert operation["summary"] and operation["tags"] and operation["responses"], operation["operationId"]
    references = set(re.findall(r'"\$ref": "#/components/(\w+)/(\w+)"', json.dumps(found)))
    assert references and all(name in found["components"][kind] for kind, name in references)


def test_both_are_served_without_a_token(server: Server) -> None:
    served = requests.get(f"{server.url}/openapi.json", timeout=30).json()
    assert served["paths"] == document(make_routes(), "0")["paths"]
    page = requests.get(f"{server.url}/docs", timeout=30)
    assert page.status_code == 200 and page.headers["Content-Type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["Content-Security-Policy"]


def test_the_page_shows_every_call_and_loads_nothing() -> None:
    found = document(make_routes(), "0")
    page = render_page(found)
    for path, methods in found["paths"].items():
        assert path in page
        for operation in methods.values():
            assert f'id="{operation["operationId"]}"' in page
    assert not re.search(r"<script|<link|<img|<iframe|@import|url\(|src=", page)
    assert all(link.startswith("#") or link == "openapi.json" for link in re.findall(r'href="([^"]*)"', page))
    assert page.count("<pre><code>") == sum(len(methods) for methods in found["paths"].values()), "an example for each"
