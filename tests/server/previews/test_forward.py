"""`belljar forward` as a command of its own, through a server that holds the sandbox."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pandastack
import requests

from tests.server.conftest import ROOT, Api, Server
from tests.server.previews.conftest import PORT


def command(server: Server, token: str, *words: str) -> subprocess.Popen[str]:
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "BELLJAR_API_KEY": token}
    argv = [sys.executable, "-m", "belljar.cli.main", "forward", *words, "--server", server.url]
    return subprocess.Popen(argv, env=environ, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@contextmanager
def forwarding(server: Server, token: str, *words: str) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    running = command(server, token, *words)
    try:
        assert running.stdout is not None
        found = re.search(r"forwarding 127\.0\.0\.1:(\d+) to port", running.stdout.readline())
        assert found, running.communicate(timeout=60)
        yield int(found.group(1)), running
    finally:
        running.terminate()
        running.communicate(timeout=60)
    assert running.returncode == 143


def test_a_port_of_this_machine_leads_into_the_sandbox(server: Server, api: Api, web: pandastack.Sandbox) -> None:
    with forwarding(server, api.token, web.id, f"0:{PORT}") as (local, _):
        seen = requests.post(f"http://127.0.0.1:{local}/raw", data=b"x" * 2_000_000, timeout=120).json()
        headers = {name.lower() for name, _ in seen["headers"]}
        assert seen["size"] == 2_000_000 and not [name for name in headers if name.startswith("x-forwarded")]
        assert len(requests.get(f"http://127.0.0.1:{local}/big?{4 * 1024 * 1024}", timeout=120).content) == 4 * 1024 * 1024


def test_a_closed_port_is_told_and_others_go_on(server: Server, api: Api, web: pandastack.Sandbox) -> None:
    with forwarding(server, api.token, web.id, "0:8098") as (local, running):
        for _ in range(2):
            try:
                requests.get(f"http://127.0.0.1:{local}/", timeout=60)
            except requests.exceptions.ConnectionError:
                pass
            assert running.stderr is not None and "port 8098" in running.stderr.readline()


def test_what_the_server_will_not_have_is_one_line(server: Server, api: Api, other: Api, web: pandastack.Sandbox) -> None:
    for token, name, words in (
        (other.token, web.id, "no sandbox"),
        (api.token, "sb-0", "no sandbox"),
        ("pds_" + "0" * 32, web.id, "token is not valid"),
        ("", web.id, "missing token"),
    ):
        ran = command(server, token, name, str(PORT))
        out, err = ran.communicate(timeout=60)
        assert ran.returncode == 1 and out == "" and words in err and err.count("\n") == 1, err
