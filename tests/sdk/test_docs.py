"""Every example of docs/sdk.md, and those of the README that use the SDK, run against a real server and print what they say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.server.conftest import Server
from tests.test_docs import examples

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = [("docs/sdk.md", number) for number in range(len(examples("docs/sdk.md")))]
EXAMPLES += [("README.md", number) for number, example in enumerate(examples("README.md")) if "from belljar import" in example]


def as_program(example: str) -> str:
    """Those that use no `sandbox` from before are whole programs."""
    if "as sandbox:" in example or "sandbox" not in example:
        return example
    return f'from belljar import Sandbox\n\nwith Sandbox("base") as sandbox:\n{textwrap.indent(example, "    ")}\n'


@pytest.mark.parametrize(("page", "number"), EXAMPLES)
def test_examples_print_what_they_say(page: str, number: int, sdk_server: Server, tmp_path: Path) -> None:
    example = examples(page)[number]
    place = {"BELLJAR_API_URL": sdk_server.url, "BELLJAR_API_KEY": sdk_server.token or "", "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", as_program(example)],
        env={"PATH": os.environ["PATH"], **place},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    said = ran.stdout.replace("\n", " ")
    for promised in re.findall(r"print\(.*\)  # (.+?)$", example, re.M):
        assert promised in said, f"{promised!r} was promised; printed was {ran.stdout}"
