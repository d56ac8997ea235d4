"""Whether the server can do its work: write its records, and write to its disk."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from belljar.errors import BelljarError
from belljar.service.service import Service

# Anybody may ask, so the answer is kept for a moment.
KEPT_S = 1.0
PATIENCE_S = 5.0


class Health:
    """What is wrong, in a few words each; no word of it is about anybody's data."""

    def __init__(self, service: Service) -> None:
        self._home = str(service.settings.home)
        self._probes = {"the database": service.parts.records.probe, "the disk": service.probe_disk}
        self._asked: dict[str, asyncio.Task[None]] = {}
        self._lock = asyncio.Lock()
        self._found: tuple[float, list[str]] | None = None

    async def reasons(self) -> list[str]:
        async with self._lock:
            if self._found is None or time.monotonic() - self._found[0] > KEPT_S:
                found = [await self._ask(what, probe) for what, probe in self._probes.items()]
                self._found = (time.monotonic(), [reason for reason in found if reason])
            return self._found[1]

    async def _ask(self, what: str, probe: Callable[[], None]) -> str | None:
        # A probe that hangs is waited for, and not joined by others: threads are few.
        task = self._asked.get(what) or asyncio.create_task(asyncio.to_thread(probe), name=f"health of {what}")
        self._asked[what] = task
        done, _ = await asyncio.wait([task], timeout=PATIENCE_S)
        if not done:
            return f"{what} does not answer"
        del self._asked[what]
        try:
            task.result()
        except BelljarError as problem:
            return f"{what}: {problem.message.replace(self._home, '$BELLJAR_HOME')}"
        except OSError as problem:
            return f"{what}: {problem.strerror}"
        return None
