"""What a sandbox wrote, read and followed. Nothing is woken for it, and it does not count as use.

Output of commands and cells passes through this process and is written down on its way. That of background processes is caught up
with whenever the log is read, while it is followed, and before the sandbox sleeps.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from belljar.errors import SandboxNotFound
from belljar.service.background import catch_up
from belljar.service.logs import Line
from belljar.service.workspace import Workspace


async def read_log(workspace: Workspace, sandbox_id: str) -> list[Line]:
    await _catch_up(workspace, sandbox_id)
    return await workspace.parts.logs.read(sandbox_id)


async def follow_log(workspace: Workspace, sandbox_id: str) -> AsyncGenerator[list[Line], None]:
    """What is kept, then what comes, until the sandbox is gone. An empty list when for a while nothing came."""
    await _catch_up(workspace, sandbox_id)
    async with aclosing(workspace.parts.logs.follow(sandbox_id)) as batches:
        async for batch in batches:
            yield batch
            if not batch:
                try:
                    await _catch_up(workspace, sandbox_id)
                except SandboxNotFound:
                    return


async def _catch_up(workspace: Workspace, sandbox_id: str) -> None:
    record = await workspace.get(sandbox_id)
    if record.state == "running":
        await catch_up(workspace.parts.logs, workspace.handle(record))
