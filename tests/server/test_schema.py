"""Every call of the API, asked all sorts of things by schemathesis: what the server describes of itself holds for whatever is sent.

A run sends a few thousand requests, the same ones each time. BELLJAR_FUZZ_EXAMPLES asks for more of each call, and for others each
time.
"""

from __future__ import annotations

import hashlib
import os
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import schemathesis
from hypothesis import HealthCheck
from schemathesis.checks import CHECKS
from schemathesis.config import SchemathesisConfig
from schemathesis.core.parameters import ParameterLocation
from schemathesis.generation import GenerationMode

from belljar.server.app import make_routes
from belljar.server.openapi import document
from belljar.settings import Settings
from belljar.store.layout import Layout
from tests.conftest import borrowed_home
from tests.server.conftest import Api, Server, eventually

EXAMPLES = int(os.environ.get("BELLJAR_FUZZ_EXAMPLES", "0"))
FEW = 6
CONFIG = {
    "generation": {"max-examples": EXAMPLES or FEW, "deterministic": not EXAMPLES, "with-security-parameters": False},
    "phases": {"coverage": {"unexpected-methods": ["PUT", "TRACE"]}},
}
DESCRIBED = document(make_routes(), "0")
API = schemathesis.openapi.from_dict(DESCRIBED, config=SchemathesisConfig.from_dict(CONFIG)).exclude(
    lambda context: context.operation.definition.raw.get("x-websocket", False)
)
schemathesis.serializer.alias("application/x-tar", "application/octet-stream")
# Whether a 5xx is allowed is for the description to say: 502 to 504 and 507 are refusals with codes of their own.
UNWANTED = ("not_a_server_error", "positive_data_acceptance", "ignored_auth", "use_after_free", "ensure_resource_availability")
CHECKED = [check for check in CHECKS.get_all() if check.__name__ not in UNWANTED]

# Calls that go on for ever once they have begun: only what they refuse is asked for here.
ENDLESS = ("fs/watch",)
# Calls that cost a machine, or seconds. Only one in so many of them is about a real sandbox or template.
HEAVY, ONE_IN = ("fork", "fork-tree", "hibernate", "stop", "wake", "start", "snapshots", "pause", "connect"), 8


class World:
    """What there is to ask about: a sandbox with a context and a process, and a snapshot."""

    def __init__(self, url: str, token: str) -> None:
        self.api = Api(url, token)
        self.url, self.token = url, token
        self.sandbox = self._make("/sandboxes", {"template": "base", "metadata": {"purpose": "fuzzed"}})
        of_it = f"/sandboxes/{self.sandbox}"
        self.snapshot = self._make(f"{of_it}/snapshots")
        self.session = self._make(f"{of_it}/repl/sessions", {"language": "python"})
        self.process = self._make(f"{of_it}/processes", {"cmd": "echo over"})

    def _make(self, path: str, body: dict[str, Any] | None = None) -> str:
        made = self.api("POST", f"/v1{path}", json=body)
        assert made.status_code == 201, made.text
        return str(made.json()["id"])

    def place(self, name: str, method: str, path: str, generated: str) -> str:
        """What stands for a placeholder: something real, or what was made up."""
        last = path.rpartition("/")[2]
        if path.endswith("/snapshots/{id}"):
            return self.snapshot if method == "GET" else generated
        rare = last in HEAVY and not chosen(generated)
        if name == "id" and (rare or path.endswith(ENDLESS) or (method == "DELETE" and last == "{id}")):
            return generated
        if method == "DELETE" and name in ("session", "context", "process"):
            return generated
        real = {"id": self.sandbox, "session": self.session, "context": self.session, "process": self.process, "name": "base"}
        return real.get(name, generated)

    def tidy(self) -> None:
        """As it was, after a call that may have changed something."""
        for sandbox in self.api("GET", "/v1/sandboxes").json():
            if sandbox["id"] != self.sandbox:
                self.api("DELETE", f"/v1/sandboxes/{sandbox['id']}")
        for snapshot in self.api("GET", "/v1/snapshots").json()["snapshots"]:
            if snapshot["id"] != self.snapshot:
                self.api("DELETE", f"/v1/snapshots/{snapshot['id']}")
        life = self.api("PATCH", f"/v1/sandboxes/{self.sandbox}/lifecycle", json={"ttl_seconds": 0, "persistent": False}).json()
        assert life.get("status") in ("running", "paused", "hibernated"), f"the sandbox did not outlive it: {life}"
        if life["status"] != "running":
            self.api("POST", f"/v1/sandboxes/{self.sandbox}/wake")
            self.api("POST", f"/v1/sandboxes/{self.sandbox}/resume")

    def end(self) -> None:
        self.tidy()
        self.api("DELETE", f"/v1/snapshots/{self.snapshot}")
        self.api("DELETE", f"/v1/sandboxes/{self.sandbox}")

    def revoke(self, prefixes: list[str]) -> None:
        for prefix in prefixes:
            if not self.token.startswith(prefix):
                self.api("DELETE", f"/v1/me/tokens/{prefix}")


@pytest.fixture(scope="module")
def home(own_settings: Settings) -> Iterator[Path]:
    with borrowed_home(own_settings) as path:
        yield path


@pytest.fixture(scope="module")
def fuzzed(home: Path) -> Iterator[Server]:
    running = Server(home, BELLJAR_IDLE_TIMEOUT_S="3600", BELLJAR_QUOTA_RATE_PER_S="0", BELLJAR_LOG_LEVEL="error")
    yield running
    if running.process.poll() is None:
        running.stop()


@pytest.fixture(scope="module")
def world(fuzzed: Server) -> Iterator[World]:
    assert fuzzed.token is not None
    made = World(fuzzed.url, fuzzed.token)
    yield made
    for sandbox in made.api("GET", "/v1/sandboxes").json():  # of a run that was broken off
        made.api("DELETE", f"/v1/sandboxes/{sandbox['id']}")


def flat_error(ctx: Any, response: Any, case: Any) -> None:
    """Whatever is wrong is told in one text."""
    if response.status_code >= 400 and response.request.method != "HEAD":
        said = response.json()
        assert isinstance(said["error"], str) and 0 < len(said["error"]) < 5000, said


def is_wrong(case: schemathesis.Case, part: ParameterLocation) -> bool:
    """Whether this part was made up to be refused."""
    found = case.meta.components.get(part) if case.meta is not None else None
    return found is not None and found.mode.is_negative


def chosen(generated: object) -> bool:
    """One in a few, and always the same ones."""
    return hashlib.sha256(repr(generated).encode()).digest()[0] % ONE_IN == 0


def make_cheaper(body: dict[str, Any]) -> None:
    """Two machines of a fork are as good as sixteen, and a create need not succeed each time."""
    if isinstance(body.get("count"), int) and 2 < body["count"] <= 16:
        body["count"] = 2
    for name in ("template", "templateID"):
        if body.get(name) == "base" and not chosen(body):
            body[name] = "unknown"


# Why something of the right shape may be refused all the same.
REASONS = re.compile(
    r"time limit must be|ttl_seconds|no user|either cmd|either input|not a child of|signal is called|not base64|multipart|"
    r"not look like a tar|cursor must be what|program's name is empty|template name|workspace's name|"
    r"is no rule|of a secret|the value of|belongs to the connection|each of paths must|^one of mode|give egress or"
)


def not_refused_without_reason(ctx: Any, response: Any, case: schemathesis.Case) -> None:
    """What fits its shape is not called malformed: the shape says all there is to say, but for what only the server can know."""
    positive = case.meta is not None and case.meta.generation.mode is GenerationMode.POSITIVE
    if positive and response.status_code == 400:
        assert REASONS.search(response.json()["error"]), response.json()


@API.parametrize()
@hypothesis.settings(
    max_examples=EXAMPLES or FEW,
    derandomize=not EXAMPLES,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
)
def test_whatever_is_sent_the_answer_is_as_described(case: schemathesis.Case, world: World) -> None:
    method = case.operation.method.upper()
    if not is_wrong(case, ParameterLocation.PATH):
        for name, generated in case.path_parameters.items():
            case.path_parameters[name] = world.place(name, method, case.operation.path, str(generated))
    for name in [name for name, value in (case.query or {}).items() if name == "follow" and str(value).lower() in ("1", "true")]:
        del case.query[name]
    if isinstance(case.body, dict):
        make_cheaper(case.body)
    response = case.call(base_url=world.url, headers={"Authorization": f"Bearer {world.token}"}, timeout=120)
    if method != "GET" and not 400 <= response.status_code < 500:
        world.tidy()
    case.validate_response(response, checks=CHECKED, additional_checks=[flat_error, not_refused_without_reason])


def machines(home: Path) -> list[str]:
    """Processes that have something of this home open, and are not the server."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_bytes()
            links = [os.readlink(link) for link in (process / "fd").iterdir()]
        except OSError:
            continue
        if b"qemu" in line and any(link.startswith(str(home)) for link in links):
            found.append(process.name)
    return found


def test_afterwards_nothing_is_left(world: World, fuzzed: Server, home: Path) -> None:
    """Runs last: what was made is ended, and then there is no machine, folder or record of anything."""
    layout = Layout(home)
    records = sqlite3.connect(f"file:{layout.database}?mode=ro", uri=True)
    world.end()
    world.revoke([prefix for (prefix,) in records.execute("SELECT prefix FROM tokens")])
    eventually(lambda: machines(home) == [], "the end of all machines")
    assert list(layout.sandboxes.iterdir()) == [] and list(layout.snapshots.iterdir()) == []
    assert [path.name for path in layout.tmp.iterdir()] == []
    counts = {name: records.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in ("sandboxes", "snapshots", "tokens")}
    records.close()
    assert counts == {"sandboxes": 0, "snapshots": 0, "tokens": 1}
    assert fuzzed.process.poll() is None, "the server ended"
