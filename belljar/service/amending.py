"""The event log brought in line with the records, when a server starts.

An event is written after what it tells of was done. A server that is killed in between has done something that nobody was told
of; and what the command line does without a server is in no log at all. Both are told by the next start, late but once.
"""

from __future__ import annotations

import asyncio

from belljar.fleet.recovery import UNFINISHED
from belljar.service.workspace import Parts

FOUND = "found when the server started"
# What a sandbox is after each of these; others change nothing.
STATE_AFTER = {
    "sandbox.created": "running",
    "sandbox.paused": "paused",
    "sandbox.resumed": "running",
    "sandbox.hibernated": "hibernated",
    "sandbox.woken": "running",
    "sandbox.died": "dead",
}
# How a sandbox came to be in a state, where the log ends with another.
KINDS = {"paused": "sandbox.paused", "hibernated": "sandbox.hibernated"}
BACK = {"paused": "sandbox.resumed", "hibernated": "sandbox.woken"}


async def amend_journal(parts: Parts) -> None:
    """To be called before anybody else changes anything."""
    for workspace, sandbox_id in await parts.journal.unended():
        await parts.journal.note_of(workspace, sandbox_id, "sandbox.deleted", reason=FOUND)
    last = await parts.journal.last_of(tuple(STATE_AFTER))
    for record in await asyncio.to_thread(parts.records.list_sandboxes):
        if record.state in UNFINISHED:
            continue
        if record.id not in last:
            await parts.journal.note(record, "sandbox.created", template=record.template, reason=FOUND)
        told = STATE_AFTER[last.get(record.id, "sandbox.created")]
        kind = KINDS.get(record.state) or (BACK.get(told) if record.state == "running" else None)
        if told != record.state and kind is not None:
            await parts.journal.note(record, kind, reason=FOUND)
