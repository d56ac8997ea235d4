"""A sandbox with a web server in it, and visitors who come without a token."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pandastack
import pytest
import requests

from tests.server.conftest import Api, Server, eventually

GUEST_SERVER = Path(__file__).parent / "guest_server.py"
PORT = 8000
HTML = {"Accept": "text/html,*/*"}


def start_web(box: pandastack.Sandbox, port: int = PORT) -> None:
    box.filesystem.write("/tmp/guest_server.py", GUEST_SERVER.read_text())
    box.exec(f"setsid nohup python3 /tmp/guest_server.py {port} >/tmp/web.log 2>&1 &")
    probe = f"exec 3<>/dev/tcp/127.0.0.1/{port}"
    eventually(lambda: box.exec(f"bash -c '{probe}'").exit_code == 0, "a server in the sandbox")


@pytest.fixture(scope="session")
def web(api: Api, client: pandastack.Client) -> Iterator[pandastack.Sandbox]:
    """A sandbox with a web server on port 8000, which is private. Tests leave both as they were."""
    box = client.sandboxes.create("base")
    start_web(box)
    yield box
    box.kill()


class Visitor:
    """Someone without a token, in front of one preview."""

    def __init__(self, server: Server, sandbox_id: str, port: int = PORT) -> None:
        self.url = server.url
        self.host = f"{port}-{sandbox_id}.localhost:{urlsplit(server.url).port}"
        self.session = requests.Session()

    def __call__(self, method: str, path: str = "/", headers: dict[str, str] | None = None, **options: object) -> requests.Response:
        sent = {"Host": self.host, **(headers or {})}
        options.setdefault("allow_redirects", False)
        return self.session.request(method, self.url + path, headers=sent, timeout=120, **options)  # type: ignore[arg-type]


@pytest.fixture
def visitor(server: Server, web: pandastack.Sandbox) -> Visitor:
    return Visitor(server, web.id)


@pytest.fixture
def public(api: Api, web: pandastack.Sandbox, visitor: Visitor) -> Iterator[Visitor]:
    """A visitor while the port is open to everyone."""
    assert api("POST", f"/v1/sandboxes/{web.id}/ports", json={"port": PORT, "public": True}).status_code == 201
    yield visitor
    assert api("DELETE", f"/v1/sandboxes/{web.id}/ports/{PORT}").status_code == 204


def link(api: Api, box: pandastack.Sandbox, **wishes: object) -> dict[str, str]:
    made = api("POST", f"/v1/sandboxes/{box.id}/preview-token", json={"port": PORT, **wishes})
    assert made.status_code == 201, made.text
    found: dict[str, str] = made.json()
    return found
