"""One connection that is open: bytes between a program in the guest and a server, until one of them is done."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Coroutine
from typing import Any

from belljar.egress.log import Connection
from belljar.egress.outlet import SPENT
from belljar.egress.policy import Address
from belljar.egress.streams import ChannelStream, SocketStream, Spent, Stream, at_once, pump
from belljar.errors import BelljarError

IDLE_S = 2 * 3600.0
# One side is done, and the other says nothing: it has probably forgotten.
HALF_OPEN_IDLE_S = 600.0


class Relay:
    """Runs in the task that called `run`; `cut` ends it from elsewhere."""

    def __init__(
        self, guest: ChannelStream, server: SocketStream, line: Connection, address: Address, names: tuple[str, ...]
    ) -> None:
        self.guest, self.server = guest, server
        self.line = line
        self.address, self.names = address, names
        self._cut: str | None = None
        self._task: asyncio.Task[None] | None = None
        self._half_open = False

    async def run(self, carry: Callable[[], Coroutine[Any, Any, None]] | None = None) -> str:
        """Until it is over; returns why, in words. `carry` moves the bytes, if they are not to be moved as they are."""
        self._task = asyncio.create_task((carry or self._carry)())
        try:
            await self._task
            self.server.close()
            return ""
        except asyncio.CancelledError:
            if self._cut is None or not self._task.done():
                raise
            return self._cut
        except Spent:
            return SPENT
        except BelljarError:
            return "the program in the sandbox closed it"
        except (OSError, ssl.SSLError) as problem:
            return f"it broke: {problem.strerror or type(problem).__name__}"
        finally:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            await self.guest.abort()
            await self.server.abort()

    def cut(self, reason: str) -> None:
        if self._task is not None and not self._task.done():
            self._cut = reason
            self._task.cancel()

    def is_idle(self) -> bool:
        return time.monotonic() - self.server.active > (HALF_OPEN_IDLE_S if self._half_open else IDLE_S)

    async def _carry(self) -> None:
        await at_once(self._pump(self.guest, self.server), self._pump(self.server, self.guest))

    async def _pump(self, source: Stream, sink: Stream) -> None:
        await pump(source, sink)
        self._half_open = True
