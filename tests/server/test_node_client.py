"""The published `@pandastack/sdk`, unmodified, under Node.js against a real server. The cases are in tests/clients/node/cases."""

from __future__ import annotations

import pytest

from tests.clients.book import BOOK, Ending
from tests.clients.nodejs import CASES, NODE, NodeClient
from tests.server.conftest import Api, Server


def test_it_is_the_version_that_is_promised(node: NodeClient) -> None:
    assert node.version("@pandastack/sdk") == "0.9.0"


@pytest.mark.parametrize("case", CASES)
def test_case(case: str, node: NodeClient, server: Server, api: Api) -> None:
    for made in node.run_case(case, server.url, api.token):
        problem = made.get("error")
        BOOK.note(NODE, made["call"], Ending(problem["name"], problem["message"]) if problem else Ending())
