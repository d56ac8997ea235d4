"""The examples of published documents, run as they are written there with another address."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients.book import BOOK, Ending
from tests.clients.nodejs import NodeClient
from tests.server.conftest import ROOT, Api, Server
from tests.server.examples import EXAMPLES, OTHERS, PROGRAMS, Example

PROGRAMS_AT = ROOT / "tests" / "clients" / "documents"
PNG = b"\x89PNG"
TRIES = 3


@pytest.mark.parametrize("example", PROGRAMS, ids=lambda example: example.file)
def test_program(example: Example, server: Server, api: Api, tmp_path: Path) -> None:
    before = {found["id"] for found in api("GET", "/v1/sandboxes").json()}
    # The documents give their code 30 seconds, which is little for an emulated machine on a busy host.
    for _ in range(TRIES):
        ran = subprocess.run(
            [sys.executable, str(PROGRAMS_AT / f"{example.file}.py")],
            env={**os.environ, "PANDASTACK_API": server.url, "PANDASTACK_API_KEY": api.token, "HOME": str(tmp_path)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
        )
        if "SandboxTimeout" not in ran.stderr:
            break
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert example.prints in ran.stdout, ran.stdout
    assert all(picture.read_bytes().startswith(PNG) for picture in tmp_path.glob("*.png"))
    assert bool(list(tmp_path.glob("*.png"))) == (example.file in ("interpreter_plot", "results_context"))
    assert {found["id"] for found in api("GET", "/v1/sandboxes").json()} == before, "it left a sandbox behind"
    BOOK.note(EXAMPLES, example.row, Ending())


def test_the_typescript_program(node: NodeClient, server: Server, api: Api) -> None:
    node.run_case("document", server.url, api.token)
    BOOK.note(EXAMPLES, OTHERS["document"], Ending())


def curl(server: Server, token: str, path: str, body: str) -> dict[str, str]:
    """The page's command line."""
    command = ["curl", "--silent", "--show-error", "-X", "POST", f"{server.url}{path}", "-H", f"Authorization: Bearer {token}"]
    ran = subprocess.run(
        [*command, "-H", "Content-Type: application/json", "-d", body], capture_output=True, text=True, timeout=300, check=True
    )
    answer: dict[str, str] = json.loads(ran.stdout)
    return answer


def test_the_curl_lines(server: Server, api: Api) -> None:
    made = curl(server, api.token, "/sandboxes", '{\n"templateID": "code_interpreter",\n"timeout": 300\n}')
    assert (made["templateID"], made["clientID"], made["status"]) == ("code_interpreter", "SandBase", "running")
    body = '{"cmd": "python3", "args": ["-c", "import pandas as pd; print(pd.DataFrame({\\"x\\": [1,2,3]}).describe())"]}'
    ran = curl(server, api.token, f"/sandboxes/{made['sandboxID']}/processes", body)
    assert "mean   2.0" in ran["stdout"], ran
    assert api("DELETE", f"/sandboxes/{made['sandboxID']}").status_code == 204
    BOOK.note(EXAMPLES, OTHERS["curl"], Ending())


def test_the_bodies_with_options(api: Api) -> None:
    labels = {"project": "quarterly-report", "user": "analyst-1"}
    made = api("POST", "/sandboxes", json={"templateID": "code_interpreter", "timeout": 900, "metadata": labels}).json()
    assert made["metadata"] == labels
    api("DELETE", f"/sandboxes/{made['sandboxID']}")
    variables = {"DATABASE_URL": "postgresql://...", "API_TOKEN": "tok_..."}
    made = api("POST", "/sandboxes", json={"templateID": "code_interpreter", "timeout": 300, "envVars": variables}).json()
    program = {"cmd": "python3", "args": ["-c", "import os; print(os.environ['API_TOKEN'], os.environ['DATABASE_URL'])"]}
    ran = api("POST", f"/sandboxes/{made['sandboxID']}/processes", json=program).json()
    assert ran["stdout"] == "tok_... postgresql://...\n"
    api("DELETE", f"/sandboxes/{made['sandboxID']}")
    BOOK.note(EXAMPLES, OTHERS["options"], Ending())
