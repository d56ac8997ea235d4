"""Forks and fork trees: children that know where they come from, and one of them that is kept.

Metadata that a child carries: `fork_parent_id`; in a tree also `fork_tree_id`, `fork_tree_role` and `fork_index`. Nothing of it is
inherited from a parent that is itself a child.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from belljar.errors import BelljarError, InvalidInput
from belljar.fleet.checks import check_metadata
from belljar.fleet.sandbox import Sandbox
from belljar.service.workspace import Workspace
from belljar.store.db import SandboxRecord

MAX_CHILDREN = 16
OF_A_FORK = frozenset({"fork_parent_id", "fork_tree_id", "fork_tree_role", "fork_index", "explore", "explore_ttl"})


@dataclass(frozen=True)
class Promotion:
    """What became of a tree whose winner was chosen."""

    winner: str
    tree_id: str
    deleted: list[str] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)


async def fork(workspace: Workspace, sandbox_id: str, metadata: Mapping[str, str] | None = None) -> SandboxRecord:
    """One child."""
    return (await _fork(workspace, sandbox_id, 1, check_metadata(metadata), None))[0]


async def fork_tree(
    workspace: Workspace, sandbox_id: str, count: int, metadata: Mapping[str, str] | None = None
) -> tuple[str, list[SandboxRecord]]:
    """The new tree's id, and its children, all of one instant."""
    if not 1 <= count <= MAX_CHILDREN:
        raise InvalidInput(f"count must be from 1 to {MAX_CHILDREN}")
    tree_id = f"tree-{secrets.token_hex(8)}"
    return tree_id, await _fork(workspace, sandbox_id, count, check_metadata(metadata), tree_id)


async def _fork(
    workspace: Workspace, sandbox_id: str, count: int, metadata: Mapping[str, str], tree_id: str | None
) -> list[SandboxRecord]:
    async with workspace.machine(sandbox_id) as sandbox:
        parent = sandbox.record
        inherited = {name: value for name, value in parent.metadata.items() if name not in OF_A_FORK}
        with workspace.parts.quotas.ticket(workspace.name) as ticket:
            await ticket.admit(count, parent.memory_mib, parent.disk_mib)
            children = await sandbox.fork(count, metadata, ticket=ticket)
    try:
        records = [
            await _mark(workspace, parent, child, inherited, metadata, tree_id, index) for index, child in enumerate(children)
        ]
    except BaseException:
        # The caller will never learn of these children, and nobody else would end them.
        await asyncio.gather(*(workspace.kill(child.id, "its fork failed") for child in children), return_exceptions=True)
        raise
    await workspace.parts.journal.note(parent, "sandbox.forked", children=[record.id for record in records], tree=tree_id)
    return records


async def _mark(
    workspace: Workspace,
    parent: SandboxRecord,
    child: Sandbox,
    inherited: Mapping[str, str],
    metadata: Mapping[str, str],
    tree_id: str | None,
    index: int,
) -> SandboxRecord:
    """Write down where a child comes from, and when it ends."""
    labels = {**inherited, **metadata, "fork_parent_id": parent.id}
    if tree_id is not None:
        labels |= {"fork_tree_id": tree_id, "fork_tree_role": "child", "fork_index": str(index)}
    expiry = parent.expires_at
    if own_life_s := _seconds(metadata.get("explore_ttl")):  # whoever explores may die before it cleans up
        expiry = min(time.time() + own_life_s, expiry if expiry is not None else float("inf"))
    workspace.parts.activity.touch(child.id)
    child.record = await workspace.change(child.id, metadata=labels, expires_at=expiry)
    await workspace.parts.journal.note(child.record, "sandbox.created", parent=parent.id, tree=tree_id)
    return child.record


async def promote(workspace: Workspace, sandbox_id: str, *, tree_id: str | None, cleanup: bool) -> Promotion:
    """Make a child a sandbox in its own right, and end its siblings if asked."""
    record = await workspace.get(sandbox_id)
    own_tree = record.metadata.get("fork_tree_id")
    if own_tree is None:
        raise InvalidInput(f"sandbox {sandbox_id} is not a child of a fork tree")
    if tree_id is not None and tree_id != own_tree:
        raise InvalidInput(f"sandbox {sandbox_id} is not a child of tree {tree_id[:80]!r}")
    expires_at = record.created_at + record.ttl_s if record.ttl_s is not None else None
    labels = {**record.metadata, "fork_tree_role": "promoted"}
    promoted = await workspace.change(sandbox_id, metadata=labels, expires_at=expires_at)
    await workspace.parts.journal.note(promoted, "sandbox.promoted", tree=own_tree)
    promotion = Promotion(sandbox_id, own_tree)
    if cleanup:
        siblings = await workspace.list({"fork_tree_id": own_tree, "fork_tree_role": "child"})
        await asyncio.gather(*(_end_sibling(workspace, sibling.id, promotion) for sibling in siblings))
    return promotion


async def _end_sibling(workspace: Workspace, sandbox_id: str, promotion: Promotion) -> None:
    try:
        await workspace.kill(sandbox_id, f"{promotion.winner} was promoted")
        promotion.deleted.append(sandbox_id)
    except BelljarError as problem:
        promotion.failures[sandbox_id] = problem.message


def _seconds(text: str | None) -> float | None:
    return float(text) if text and text.isascii() and text.isdecimal() and 0 < len(text) < 9 and int(text) else None
