"""Refused connections as events: one per target and minute, with their number, so that a busy guest does not fill the log."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from dataclasses import dataclass

from belljar.egress.log import Connection
from belljar.errors import BelljarError
from belljar.service.journal import Journal
from belljar.store.db import Records

log = logging.getLogger(__name__)

AGAIN_AFTER_S = 60.0
# Targets of one sandbox that are told of within that time: a guest that makes up names gets no further, and harms no other.
MAX_TARGETS = 50
# Of all sandboxes; the oldest are forgotten first.
MAX_KEPT = 10_000


@dataclass
class _Target:
    line: Connection
    told: float
    waiting: int = 0


class Denials:
    """Told of every denial by the fleet; `run` writes them down."""

    def __init__(self, journal: Journal, records: Records) -> None:
        self._journal = journal
        self._records = records
        self._targets: OrderedDict[tuple[str, str], _Target] = OrderedDict()
        self._per_sandbox: dict[str, int] = {}
        self._news = asyncio.Event()

    def take(self, sandbox_id: str, line: Connection) -> None:
        """Called for each denial; only counts."""
        key = (sandbox_id, line.target)
        target = self._targets.get(key)
        if target is None:
            if self._per_sandbox.get(sandbox_id, 0) >= MAX_TARGETS:
                return
            target = self._targets[key] = _Target(line, float("-inf"))
            self._per_sandbox[sandbox_id] = self._per_sandbox.get(sandbox_id, 0) + 1
            while len(self._targets) > MAX_KEPT:
                self._forget(next(iter(self._targets)))
        target.line = line
        target.waiting += 1
        self._news.set()

    async def run(self) -> None:
        while True:
            try:
                await asyncio.wait_for(self._news.wait(), AGAIN_AFTER_S / 4)
            except TimeoutError:
                pass
            self._news.clear()
            try:
                await self.write()
            except BelljarError as problem:
                log.warning("refused connections could not be written down: %s", problem.message)
            await asyncio.sleep(0.1)  # what comes in a burst is read in one go

    async def write(self) -> None:
        """The events that are due."""
        now = time.monotonic()
        for key, target in list(self._targets.items()):
            if now - target.told < AGAIN_AFTER_S:
                continue
            if not target.waiting:
                self._forget(key)
                continue
            count, target.waiting, target.told = target.waiting, 0, now
            await self._tell(key[0], target.line, count)

    async def _tell(self, sandbox_id: str, line: Connection, count: int) -> None:
        record = await asyncio.to_thread(self._records.find_sandbox, sandbox_id)
        if record is not None:
            told = {"name": line.name, "address": line.address, "port": line.port, "reason": line.reason, "rule": line.rule}
            await self._journal.note(record, "egress.denied", **told, count=count)

    def _forget(self, key: tuple[str, str]) -> None:
        if self._targets.pop(key, None) is not None:
            left = self._per_sandbox.get(key[0], 0) - 1
            if left > 0:
                self._per_sandbox[key[0]] = left
            else:
                self._per_sandbox.pop(key[0], None)
