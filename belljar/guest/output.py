"""What a process writes: from its pipe into a ring, and from the ring to whoever is attached.

With a consumer attached nothing is lost: the pipe is read only as far as the consumer keeps up, so a process that writes too fast
blocks in its write. Without one the ring keeps the newest part, and the process never waits.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Final

from belljar.guest.channel import Channel
from belljar.guest.ring import Ring

_READ_SIZE: Final = 64 * 1024
_READ_AHEAD: Final = 64 * 1024  # kept for an attached consumer that is slow
_AFTER_EXIT: Final = 1024 * 1024  # what one pipe can hold at most: more than this was written by a survivor


class Output:
    """One stream of one process."""

    def __init__(self, fd: int, stream: int, on_progress: Callable[[], None]) -> None:
        self.stream = stream
        self.ring = Ring()
        self._fd = fd
        self._on_progress = on_progress
        self._loop = asyncio.get_running_loop()
        self._reading = False
        self._channel: Channel | None = None
        self.position = 0  # of the attached consumer
        self._allowance = -1  # bytes still to be read for the exit report; -1 while the process runs
        self.dropped = 0  # what the attached consumer has missed
        self.ended = False
        self.settled = False  # ended, or nothing more is owed to the exit report

    # -- consumers

    def attach(self, channel: Channel, offset: int | None) -> int:
        """Send from `offset` on (None: from the oldest byte kept). Returns where it really begins."""
        wanted = 0 if offset is None else min(offset, self.ring.end)
        self.position = max(wanted, self.ring.start)
        self.dropped = self.position - wanted
        self._channel = channel
        return self.position

    def detach(self) -> None:
        self._channel = None
        self._balance()

    def shrink(self, keep: int) -> None:
        """Make room for others, without touching what an attached consumer still has to get."""
        unsent = self.ring.end - self.position if self._channel is not None else 0
        self.ring.trim(max(keep, unsent))

    @property
    def delivered(self) -> bool:
        return self._channel is None or self.position >= self.ring.end

    def pump(self) -> None:
        """Send what the consumer has room for, then read or stop reading accordingly."""
        channel = self._channel
        while channel is not None and self.position < self.ring.end and (room := channel.room()):
            sent = channel.send_now(self.ring.read(self.position, room), self.stream)
            self.position += sent
            if not sent:
                break
        self._balance()

    # -- the pipe

    def _balance(self) -> None:
        behind = self._channel is not None and self.ring.end - self.position >= _READ_AHEAD
        want = not self.ended and not behind
        if want and not self._reading:
            self._loop.add_reader(self._fd, self._on_readable)
        elif self._reading and not want:
            self._loop.remove_reader(self._fd)
        self._reading = want

    def _on_readable(self) -> None:
        try:
            data = os.read(self._fd, _READ_SIZE)
        except BlockingIOError:
            return
        except OSError:  # EIO: every end of the terminal was closed
            data = b""
        if not data:
            self.close()
        else:
            self._take(data)
        self._on_progress()

    def _take(self, data: bytes) -> None:
        channel = self._channel
        if channel is not None and self.position == self.ring.end:
            self.position += channel.send_now(data, self.stream)  # the common case: not read back from the ring
        self.ring.append(data)
        if self._allowance >= 0:
            self._allowance = max(0, self._allowance - len(data))
            self.settled = self.settled or not self._allowance
        self.pump()

    def close(self) -> None:
        if self.ended:
            return
        self.ended = self.settled = True
        if self._reading:
            self._loop.remove_reader(self._fd)
            self._reading = False
        os.close(self._fd)

    # -- after the process has exited

    def process_exited(self) -> None:
        self._allowance = _AFTER_EXIT

    def settle(self) -> None:
        """The grace after the exit is over: a pipe that is empty now is held open by a survivor, which is not waited for."""
        while not self.settled and self._reading:
            try:
                data = os.read(self._fd, _READ_SIZE)
            except BlockingIOError:
                self.settled = True
                return
            except OSError:
                data = b""
            if data:
                self._take(data)
            else:
                self.close()
