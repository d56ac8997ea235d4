"""A fork that fails after its children were made leaves none of them behind."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from belljar.errors import HostDiskShort
from belljar.service import forking
from belljar.service.service import Service
from belljar.service.workspace import Workspace
from belljar.settings import Settings


@pytest.mark.parametrize("problem", [HostDiskShort("no room for a record"), asyncio.CancelledError()], ids=["error", "cancelled"])
async def test_children_that_nobody_will_hear_of_are_ended(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, problem: BaseException
) -> None:
    service = await Service.open(settings)
    try:
        workspace = service.workspace("forks")
        parent = await workspace.create("base")
        marked: list[str] = []
        real = Workspace.change

        async def change(self: Workspace, sandbox_id: str, **changes: Any) -> Any:
            if marked:
                raise problem
            marked.append(sandbox_id)
            return await real(self, sandbox_id, **changes)

        monkeypatch.setattr(Workspace, "change", change)
        with pytest.raises(type(problem)):
            await forking.fork_tree(workspace, parent.id, 2)
        assert len(marked) == 1
        assert [record.id for record in await workspace.list()] == [parent.id]
        await workspace.kill(parent.id)
    finally:
        await service.aclose()
