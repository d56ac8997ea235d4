"""What a workspace's sandboxes may connect to: read and changed, also of one that sleeps."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from belljar.egress.log import Connection, Counters
from belljar.egress.policy import Limits, Policy, parse_policy
from belljar.errors import BelljarError
from belljar.fleet.recovery import LIVE
from belljar.fleet.sandbox import Sandbox
from belljar.fleet.sandboxes import Fleet
from belljar.service.workspace import Workspace

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EgressView:
    """The state of one sandbox's way out, as it may be shown."""

    policy: Policy
    limits: Limits
    secrets: list[dict[str, str]]
    counters: Counters
    connections: list[Connection]


async def show_egress(workspace: Workspace, sandbox_id: str) -> EgressView:
    """Never wakes anything."""
    record = await workspace.get(sandbox_id)
    egress = (await workspace.parts.fleet.get(record.id)).egress
    return EgressView(egress.policy, egress.limits, egress.secrets, egress.counters, egress.log())


async def change_policy(workspace: Workspace, sandbox_id: str, changes: Mapping[str, Any]) -> None:
    """Change the fields that are given. A list of what is allowed, without a mode, means that nothing else is."""
    async with _changing(workspace, sandbox_id) as sandbox:
        now = sandbox.egress.policy.to_json()
        if changes.get("allow") is not None and changes.get("mode") is None:
            now["mode"] = "allow-list"
        wanted = parse_policy({**now, **{name: value for name, value in changes.items() if value is not None}})
        await sandbox.egress.set_policy(wanted)
    told = wanted.to_json()
    await workspace.parts.journal.note(sandbox.record, "egress.changed", mode=told["mode"], allow=told["allow"], deny=told["deny"])


async def set_secret(workspace: Workspace, sandbox_id: str, host: str, header: str, value: str) -> None:
    async with _changing(workspace, sandbox_id) as sandbox:
        await sandbox.egress.set_secret(host, header, value)
    await workspace.parts.journal.note(sandbox.record, "egress.secret_set", host=host, header=header)


async def remove_secret(workspace: Workspace, sandbox_id: str, host: str, header: str) -> None:
    async with _changing(workspace, sandbox_id) as sandbox:
        await sandbox.egress.remove_secret(host, header)
    await workspace.parts.journal.note(sandbox.record, "egress.secret_removed", host=host, header=header)


@asynccontextmanager
async def _changing(workspace: Workspace, sandbox_id: str) -> AsyncIterator[Sandbox]:
    """The sandbox as it is, awake or not; it does not change its state meanwhile."""
    await workspace.get(sandbox_id)
    activity = workspace.parts.activity
    with activity.using(sandbox_id):
        async with activity.lock(sandbox_id):
            record = await workspace.get(sandbox_id)
            sandbox = await workspace.parts.fleet.get(sandbox_id)
            sandbox.record = record
            yield sandbox


async def attach_all(fleet: Fleet) -> None:
    """Guests that ran while no server did get their network back."""
    try:
        for record in await fleet.list():
            if record.state in LIVE:
                await _attach(fleet, record.id)
    except Exception:
        log.exception("sandboxes that run already have no network before they are used")


async def _attach(fleet: Fleet, sandbox_id: str) -> None:
    try:
        await (await fleet.get(sandbox_id)).attach()
    except BelljarError as problem:
        # In use by another process, or gone: whoever uses it next finds out.
        log.info("sandbox %s was not attached to: %s", sandbox_id, problem.message)
