"""A real server in a process of its own, with real sandboxes, and the published client to talk to it."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pandastack
import pytest
import requests

from belljar.fleet.sandboxes import Fleet
from belljar.settings import Settings
from tests.clients.book import BOOK
from tests.clients.nodejs import NodeClient
from tests.clients.observing import observe
from tests.conftest import borrowed_home

ROOT = Path(__file__).parent.parent.parent
START_DEADLINE_S = 120
# What tests do not ask for only costs them time: machines started ahead, and limits on how fast they may call.
QUIET = {"BELLJAR_POOL_SIZE": "0", "BELLJAR_QUOTA_RATE_PER_S": "0", "BELLJAR_LOG_FORMAT": "json"}

observe()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call":
        BOOK.settle(report.passed)


def eventually(done: Callable[[], bool], what: str) -> None:
    for _ in range(600):
        if done():
            return
        time.sleep(0.1)
    pytest.fail(f"{what} never came to be")


class Server:
    """`belljar serve` on a free port."""

    def __init__(self, home: Path, *options: str, **environ: str) -> None:
        self._command = [sys.executable, "-m", "belljar.cli.main", "serve", "--port", "0", *options]
        self._environ = {**os.environ, **QUIET, "BELLJAR_HOME": str(home), "PYTHONPATH": str(ROOT), **environ}
        self.lines: list[str] = []
        self._log_file = home / "server.log"
        self.start()

    def start(self) -> None:
        with self._log_file.open("ab") as log:
            self.process = subprocess.Popen(
                self._command, env=self._environ, cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self.process.stdout is not None
        self.lines = []
        for line in self.process.stdout:
            self.lines.append(line.strip())
            if found := re.search(r"listening on (http://\S+)", line):
                self.url = found.group(1)
                return
        pytest.fail(f"the server ended with {self.process.wait(START_DEADLINE_S)}: {self._log_file.read_text()[-2000:]}")

    def log(self) -> list[dict[str, Any]]:
        """What all servers on this home have logged so far."""
        return [json.loads(line) for line in self.log_text().splitlines() if line.startswith("{")]

    def log_text(self) -> str:
        return self._log_file.read_text()

    @property
    def token(self) -> str | None:
        """The token that this start printed."""
        return next((found.group() for line in self.lines if (found := re.search(r"pds_\w+", line))), None)

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        code = self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


class Api:
    """Plain HTTP with a token, for what the client does not show."""

    def __init__(self, url: str, token: str) -> None:
        self.url, self.token = url, token
        self._session = requests.Session()
        self._session.headers["Authorization"] = f"Bearer {token}"

    def __call__(self, method: str, path: str, **options: object) -> requests.Response:
        return self._session.request(method, self.url + path, timeout=120, **options)  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def admin_token(settings: Settings) -> str:
    """What the first start on this home said. It says so only once, so one start is made for it."""
    first = Server(settings.home)
    token = first.token
    assert first.stop() == 0
    assert token is not None
    return token


@pytest.fixture(scope="session")
def server(settings: Settings, admin_token: str) -> Iterator[Server]:
    running = Server(settings.home, BELLJAR_IDLE_TIMEOUT_S="3600")
    yield running
    if running.process.poll() is None:
        running.stop()


@pytest.fixture
def own_home(own_settings: Settings) -> Iterator[Path]:
    """A home for a server of one test. What runs in it at the end is ended."""
    with borrowed_home(own_settings) as home:
        yield home
        with ThreadPoolExecutor(1) as elsewhere:  # the tests' own event loop is not to be touched
            elsewhere.submit(asyncio.run, _end_all(dataclasses.replace(own_settings, home=home))).result()


async def _end_all(settings: Settings) -> None:
    async with await Fleet.open(settings, maintain=False) as fleet:
        for record in await fleet.list():
            await fleet.kill(record.id)


@pytest.fixture(scope="session")
def api(server: Server, admin_token: str) -> Iterator[Api]:
    """The admin's. What tests forgot to end is ended here."""
    calls = Api(server.url, admin_token)
    yield calls
    for sandbox in calls("GET", "/v1/sandboxes").json():
        calls("DELETE", f"/v1/sandboxes/{sandbox['id']}")


@pytest.fixture(scope="session")
def client(server: Server, admin_token: str, api: Api) -> pandastack.Client:
    return pandastack.Client(api_key=admin_token, api_url=server.url)


@pytest.fixture(scope="session")
def node(own_settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> NodeClient:
    """The published TypeScript client; its modules stay in the store's cache."""
    return NodeClient(own_settings.home / "cache" / "clients", tmp_path_factory.mktemp("node"))


@pytest.fixture(scope="session")
def other(server: Server, api: Api) -> Api:
    """The same server, as another workspace sees it."""
    made = api("POST", "/v1/me/tokens", json={"label": "other", "workspace": "other"}).json()
    return Api(server.url, made["token"])


MakeBox = Callable[..., pandastack.Sandbox]


@pytest.fixture
def make(client: pandastack.Client) -> Iterator[MakeBox]:
    """Creates sandboxes that end with the test."""
    made: list[pandastack.Sandbox] = []

    def make_one(template: str = "base", **wishes: object) -> pandastack.Sandbox:
        made.append(client.sandboxes.create(template, **wishes))
        return made[-1]

    yield make_one
    for box in made:
        box.kill()


@pytest.fixture(scope="session")
def box(client: pandastack.Client) -> Iterator[pandastack.Sandbox]:
    """One sandbox for all tests that leave it as it was."""
    made = client.sandboxes.create("base", metadata={"purpose": "shared"})
    yield made
    made.kill()
