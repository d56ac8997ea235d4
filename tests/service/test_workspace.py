"""What a workspace sees of its sandboxes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from belljar.errors import SandboxNotFound
from belljar.fleet.recovery import UNFINISHED
from belljar.service.workspace import VISIBLE, Workspace
from belljar.store.db import Records, SandboxRecord


async def test_what_is_not_yet_or_no_longer_there_is_not_found_by_asking_for_its_state(tmp_path: Path) -> None:
    records = Records(tmp_path / "belljar.db")
    for state in (*VISIBLE, *UNFINISHED):
        records.insert_sandbox(SandboxRecord(state, "base", "d", state, 1.0, 1, 128, 128, workspace="w"))
    parts: Any = SimpleNamespace(records=records)
    workspace = Workspace(parts, "w")
    for state in VISIBLE:
        assert [record.id for record in await workspace.list(state=state)] == [state]
    for state in (*UNFINISHED, "", "nonsense"):
        assert await workspace.list(state=state) == [], state
        with pytest.raises(SandboxNotFound):
            await workspace.get(state)
    assert {record.id for record in await workspace.list()} == set(VISIBLE)
    records.close()
