"""Ports of sandboxes as others may reach them: which are shared, who may look, and connections that keep a sandbox awake."""

from __future__ import annotations

import asyncio
import builtins
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal

from belljar.errors import InvalidInput, SandboxNotFound, Unauthorized
from belljar.fleet.ports import MAX_PORT, ListeningPort, PortStream
from belljar.fleet.recovery import UNFINISHED
from belljar.service.links import DEFAULT_TTL_S, MAX_TTL_S, Link, Links, check_paths
from belljar.service.visits import OWNER, Right, Visits
from belljar.service.workspace import Parts, Workspace
from belljar.store.db import SandboxRecord
from belljar.store.ports import PortRecord, SharedPorts

WITHDRAWN = "this preview was made private"
MAX_LABEL_CHARS = 200
# A port can also be named when a sandbox is created: metadata `port.8000` is its label.
LABEL_PREFIX = "port."


@dataclass(frozen=True)
class Port:
    """A port as its owner sees it. `source` says whether somebody named it or it was only found listening."""

    port: int
    label: str
    listening: bool
    source: Literal["user", "detected"]
    public: bool
    process: str | None = None


class Previews:
    """The ports of all workspaces of one service."""

    def __init__(self, parts: Parts, ports: SharedPorts, links: Links) -> None:
        self._parts = parts
        self._ports = ports
        self._links = links
        self._visits = Visits()

    # -- what there is ------------------------------------------------------------------------------------------------------

    async def list(self, workspace: Workspace, sandbox_id: str) -> builtins.list[Port]:
        """Named ports and those that something listens on. Only a guest that runs is asked: looking wakes nobody."""
        record = await workspace.get(sandbox_id)
        named = {port: PortRecord(sandbox_id, port, label=label) for port, label in _labels(record)}
        named |= {shared.port: shared for shared in await asyncio.to_thread(self._ports.list, sandbox_id)}
        listening = {each.port: each for each in await self._listening(workspace, record)}
        found = []
        for port in sorted(named.keys() | listening.keys()):
            known, heard = named.get(port), listening.get(port)
            process = heard.process if heard else None
            found.append(
                Port(port, known.label, heard is not None, "user", known.public, process)
                if known
                else Port(port, "", True, "detected", False, process)
            )
        return found

    async def _listening(self, workspace: Workspace, record: SandboxRecord) -> builtins.list[ListeningPort]:
        if record.state != "running":
            return []
        async with workspace.guest(record.id) as sandbox:
            try:
                return await sandbox.ports.list()
            except InvalidInput:
                return []  # an agent from before there were ports; it lives on in sandboxes that were made then

    # -- sharing ------------------------------------------------------------------------------------------------------------

    async def share(self, workspace: Workspace, sandbox_id: str, port: int, *, public: bool, label: str) -> Port:
        check_port(port)
        if len(label) > MAX_LABEL_CHARS:
            raise InvalidInput(f"label may have at most {MAX_LABEL_CHARS} characters")
        record = await workspace.get(sandbox_id)
        await asyncio.to_thread(self._ports.share, sandbox_id, port, public=public, label=label)
        if not public:
            self._visits.cut(sandbox_id, port, lambda right: right.public, WITHDRAWN)
        await self._parts.journal.note(record, "port.shared", port=port, public=public, label=label)
        return next(each for each in await self.list(workspace, sandbox_id) if each.port == port)

    async def withdraw(self, workspace: Workspace, sandbox_id: str, port: int) -> None:
        """Private again, and the links that were made for it are no longer good. Who looks by one of them is cut off."""
        check_port(port)
        record = await workspace.get(sandbox_id)
        await asyncio.to_thread(self._ports.withdraw, sandbox_id, port)
        self._visits.cut(sandbox_id, port, lambda right: not right.is_owners, WITHDRAWN)
        await self._parts.journal.note(record, "port.withdrawn", port=port)

    async def make_link(
        self, workspace: Workspace, sandbox_id: str, port: int, *, ttl_s: float | None = None, paths: Sequence[str] = ()
    ) -> tuple[str, Link]:
        """A signed link, and what it says. It ends with its time, with the sandbox, or when the port is withdrawn."""
        check_port(port)
        ttl_s = DEFAULT_TTL_S if ttl_s is None else ttl_s
        if not 0 < ttl_s <= MAX_TTL_S:
            raise InvalidInput(f"ttl_seconds must be more than 0 and at most {MAX_TTL_S:.0f} (7 days)")
        record, allowed, now = await workspace.get(sandbox_id), check_paths([*paths]), time.time()
        link = Link(workspace.name, sandbox_id, port, now, now + ttl_s, allowed)
        await self._parts.journal.note(record, "port.linked", port=port, expires_at=link.expires_at, paths=list(allowed))
        return self._links.sign(link), link

    # -- who may look -------------------------------------------------------------------------------------------------------

    async def check_link(self, token: str) -> Link:
        """What a link allows, if all of it still holds."""
        link = self._links.read(token)
        await self._check_still_good(link)
        return link

    async def _check_still_good(self, link: Link) -> None:
        record, port = await asyncio.to_thread(self._look_up, link.sandbox_id, link.port)
        if record is None or record.workspace != link.workspace:
            raise Unauthorized("the sandbox that this link led to has ended")
        if link.issued_at < port.links_since:
            raise Unauthorized("the link to this preview was withdrawn; ask for a new one")

    async def find_public(self, sandbox_id: str, port: int) -> Workspace | None:
        """The workspace of a port that anyone may look at."""
        record, shared = await asyncio.to_thread(self._look_up, sandbox_id, port)
        return Workspace(self._parts, record.workspace) if record is not None and shared.public else None

    def _look_up(self, sandbox_id: str, port: int) -> tuple[SandboxRecord | None, PortRecord]:
        record = self._parts.records.find_sandbox(sandbox_id)
        if record is not None and record.state in UNFINISHED:
            record = None
        return record, self._ports.find(sandbox_id, port)

    # -- using --------------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def connect(self, workspace: Workspace, sandbox_id: str, port: int, right: Right = OWNER) -> AsyncIterator[PortStream]:
        """A connection to the port. It wakes a hibernated sandbox, and as long as it is open the sandbox stays awake.

        When the right to it ends, whoever reads or writes gets Unauthorized.
        """
        check_port(port)
        with self._visits.visiting(sandbox_id, port, right) as visit:
            async with workspace.guest(sandbox_id, "stream") as sandbox, await sandbox.ports.connect(port) as stream:
                await self._check_right(sandbox_id, port, right)
                visit.begin(stream)
                yield stream

    async def _check_right(self, sandbox_id: str, port: int, right: Right) -> None:
        """Once more: it may have ended after it was found good and before this visit was known."""
        if right.link is not None:
            await self._check_still_good(right.link)
        elif right.public and await self.find_public(sandbox_id, port) is None:
            raise Unauthorized(WITHDRAWN)


def check_port(port: int) -> int:
    if not 1 <= port <= MAX_PORT:
        raise InvalidInput(f"port must be from 1 to {MAX_PORT}")
    return port


def parse_port(text: str) -> int:
    """A port out of a path or a host; what is none is as little there as a sandbox that never was."""
    if not text.isascii() or not text.isdecimal() or len(text) > 5 or not 1 <= int(text) <= MAX_PORT:
        raise SandboxNotFound(f"there is no port {text[:20]!r}; ports are numbers from 1 to {MAX_PORT}")
    return int(text)


def _labels(record: SandboxRecord) -> builtins.list[tuple[int, str]]:
    found = []
    for name, label in record.metadata.items():
        if not name.startswith(LABEL_PREFIX):
            continue
        try:
            found.append((parse_port(name.removeprefix(LABEL_PREFIX)), label[:MAX_LABEL_CHARS]))
        except SandboxNotFound:
            continue  # a label of somebody's own
    return found
