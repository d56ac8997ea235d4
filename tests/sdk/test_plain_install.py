"""`pip install belljar` alone is the client: it needs httpx and websockets, and says what else a command would need."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.server.conftest import Server

ROOT = Path(__file__).parent.parent.parent
# What a plain installation has besides Python itself.
INSTALLED = {"httpx", "httpcore", "h11", "anyio", "sniffio", "certifi", "idna", "websockets", "typing_extensions", "belljar"}
FORWARD = ("-m", "belljar.cli.main", "forward")
BLOCKER = f"""
import importlib.abc, sys

class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in sys.stdlib_module_names and top not in {sorted(INSTALLED)!r} and top != "sitecustomize":
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocker())
"""


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which nothing else can be imported."""
    folder = tmp_path_factory.mktemp("plain")
    (folder / "sitecustomize.py").write_text(BLOCKER)
    return {"PYTHONPATH": f"{folder}:{ROOT}", "PATH": "/usr/bin:/bin", "HOME": str(folder)}


def run(plain: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], env=plain, cwd="/", capture_output=True, text=True, timeout=120)


def test_the_blocker_blocks(plain: dict[str, str]) -> None:
    assert "No module named 'numpy'" in run(plain, "-c", "import numpy").stderr


def test_the_client_works(plain: dict[str, str], sdk_server: Server) -> None:
    code = "import belljar; print(len(belljar.Client().templates.list()), belljar.Sandbox.__name__)"
    told = run({**plain, "BELLJAR_API_URL": sdk_server.url, "BELLJAR_API_KEY": sdk_server.token or ""}, "-c", code)
    assert told.returncode == 0, told.stderr
    assert told.stdout.split()[1] == "Sandbox" and int(told.stdout.split()[0]) >= 1


@pytest.mark.parametrize(("command", "extra"), [("serve", "server"), ("ps", "host"), ("create", "host"), ("doctor", "host")])
def test_other_commands_say_what_they_need(plain: dict[str, str], command: str, extra: str) -> None:
    told = run(plain, "-m", "belljar.cli.main", command)
    assert told.returncode == 1
    assert f"pip install 'belljar[{extra}]'" in told.stderr and "internal error" not in told.stderr, told.stderr


def test_help_needs_nothing(plain: dict[str, str]) -> None:
    assert "serve" in run(plain, "-m", "belljar.cli.main", "--help").stdout


def test_a_port_is_forwarded_without_anything_of_the_host(plain: dict[str, str], sdk_server: Server) -> None:
    told = run({**plain, "BELLJAR_API_KEY": sdk_server.token or ""}, *FORWARD, "sb-none", "80", "--server", sdk_server.url)
    assert told.returncode == 1 and told.stderr == "belljar: no sandbox 'sb-none'\n"
    assert "no Belljar server can be reached" in run(plain, *FORWARD, "sb-none", "80", "--server", "http://127.0.0.1:1").stderr
