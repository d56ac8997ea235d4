"""What one sandbox may use: connections at a time, bytes a second, bytes in all. And what all of them may use together."""

from __future__ import annotations

import asyncio
import resource
import time
from contextlib import suppress

from belljar.egress.policy import Limits

# The rest is for clients, machines and files.
SOCKETS_OF_DESCRIPTORS = 0.25
MAX_SOCKETS = 100_000


class Room:
    """Sockets for all sandboxes of this process together: descriptors that run out would be missed by everybody.

    No sandbox gets more of them than are still free. So the fuller it is, the less any one may hold, and there is always some room
    for another: the first may take half, the next a quarter, and so on.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.used = 0

    def has_room_for(self, own: int) -> bool:
        """Whether a sandbox that has `own` sockets may have one more."""
        return own < self.most - self.used


def find_room() -> Room:
    """What the limit of this process leaves for sandboxes."""
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if descriptors == resource.RLIM_INFINITY:
        return Room(MAX_SOCKETS)
    return Room(min(MAX_SOCKETS, int(descriptors * SOCKETS_OF_DESCRIPTORS)))


class Bucket:
    """Lets so many bytes a second through, after a first second's worth at once. A rate of 0 lets everything through."""

    def __init__(self, rate: int) -> None:
        self.rate = rate
        self._level = float(rate)
        self._at = time.monotonic()
        self._changed = asyncio.Event()

    def change(self, rate: int) -> None:
        self._refill()
        self._level = min(self._level, float(rate)) if self.rate else float(rate)
        self.rate = rate
        # Those who wait do so by the old rate; they are let go.
        self._changed.set()
        self._changed = asyncio.Event()

    def piece(self, most: int) -> int:
        """How much to move at a time, so that a slow sandbox gets a steady trickle and not a gulp a minute."""
        return most if not self.rate else max(1, min(most, self.rate // 8 or 1))

    async def take(self, size: int) -> None:
        """Wait until `size` bytes may have been moved. Each goes into debt at once, so those who come first are served first."""
        if not self.rate:
            return
        self._refill()
        self._level -= size
        if (until := self._at - self._level / self.rate) <= self._at:
            return
        with suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), until - time.monotonic())

    def _refill(self) -> None:
        now = time.monotonic()
        self._level = min(float(self.rate), self._level + (now - self._at) * self.rate)
        self._at = now


class Usage:
    """The limits in force, and how much of them is used."""

    def __init__(self, limits: Limits, used_bytes: int = 0) -> None:
        self.limits = limits
        self.connections = 0
        self.used_bytes = used_bytes
        self.incoming = Bucket(limits.bytes_per_second)
        self.outgoing = Bucket(limits.bytes_per_second)

    def change(self, limits: Limits) -> None:
        self.limits = limits
        for bucket in (self.incoming, self.outgoing):
            bucket.change(limits.bytes_per_second)

    @property
    def spent(self) -> bool:
        """No byte may be moved any more."""
        return bool(self.limits.bytes) and self.used_bytes >= self.limits.bytes

    def grant(self, size: int) -> int:
        """How many of so many bytes may be moved; those count as moved. 0 if none may."""
        granted = min(size, max(0, self.limits.bytes - self.used_bytes)) if self.limits.bytes else size
        self.used_bytes += granted
        return granted

    def find_refusal(self) -> tuple[str, str] | None:
        """Why no connection can be opened now: the limit, and the reason in words."""
        if self.spent:
            return "limit bytes", f"the sandbox has used the {self.limits.bytes} bytes that it may move"
        if self.limits.connections and self.connections >= self.limits.connections:
            return "limit connections", f"the sandbox has {self.connections} connections open, and may have no more"
        return None
