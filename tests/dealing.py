"""In which order tests run, and which of them in one process, where several share the work."""

from __future__ import annotations

from pathlib import PurePath

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.clients.book import SOURCES

# The page about all calls is compared when all have been made, by the process that made them.
CLIENTS = [f"test_{name}.py" for name in (*SOURCES, "compatibility")]


class ByFile(LoadScopeScheduling):
    """Deals tests out by file, because those of one file share what is costly to make."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return "clients" if PurePath(file).name in CLIENTS else file


def in_order(items: list[pytest.Item]) -> None:
    """What takes long goes first, so that the processes end together: the clients, then all files with virtual machines."""
    costly = {item.path for item in items if "own_settings" in getattr(item, "fixturenames", ())}

    def place(item: pytest.Item) -> int:
        if item.path.name in CLIENTS:
            return CLIENTS.index(item.path.name)
        return len(CLIENTS) + (item.path not in costly)

    items.sort(key=place)
