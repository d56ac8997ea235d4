"""The page docs/compatibility.md says what the tests of this run have seen."""

from __future__ import annotations

import importlib.metadata
import os
from pathlib import Path

import pytest

from tests.clients.book import BOOK, PAGE, SOURCES, Chapter, render
from tests.clients.nodejs import NODE, NodeClient
from tests.clients.observing import PYTHON, SANDBASE, python_surface, sandbase_surface
from tests.server.examples import EXAMPLES, NOT_YET, example_rows


def test_the_page_is_what_the_tests_have_seen(request: pytest.FixtureRequest, node: NodeClient) -> None:
    chosen = request.config.option
    collected = {item.path.name for item in request.session.items}
    missing = [name for name in SOURCES if f"test_{name}.py" not in collected]
    if missing or chosen.keyword or chosen.markexpr or any("::" in argument for argument in request.config.args):
        pytest.skip("only a run with all tests of the clients has seen every call")
    chapters = [
        Chapter(f"`pandastack` {importlib.metadata.version('pandastack')} (PyPI)", PYTHON, python_surface()),
        Chapter(f"`{NODE}` {node.version(NODE)} (npm)", NODE, node.surface()),
        Chapter("SandBase", SANDBASE, sandbase_surface()),
        Chapter("Examples of the published documents", EXAMPLES, example_rows(), "example"),
    ]
    undriven = [f"{each.title}: {call}" for each in chapters for call in each.calls if BOOK.verdict(each.client, call) is None]
    assert not undriven, "no test that passed has made these calls:\n" + "\n".join(undriven)
    written = render(BOOK, chapters, NOT_YET)
    if os.environ.get("BELLJAR_WRITE_COMPATIBILITY"):
        PAGE.write_text(written, encoding="utf-8")
    committed = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    changed = sorted(set(written.splitlines()) ^ set(committed.splitlines()))
    where = Path(PAGE).name
    assert written == committed, f"{where} is not what the tests have seen; scripts/compatibility writes it:\n" + "\n".join(changed)
