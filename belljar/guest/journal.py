"""What a cell has said so far, in order, and those who are being told.

A client gets a cell's events as they come; one that attaches later gets the same ones from the start. So events are kept, and each
reader has a place of its own in them. Budgets bound what one cell keeps, and `Memory` what all cells of all contexts keep together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from belljar.guest.channel import Channel

MAX_ENTRIES: Final = 16384
MAX_READERS: Final = 16
_CHUNK_SIZE: Final = 64 * 1024
_TOTAL: Final = 64 * 1024 * 1024


class Memory:
    """A limit for all journals together. Those of cells that are over make room for others, the oldest first."""

    def __init__(self, limit: int = _TOTAL) -> None:
        self._limit = limit
        self._used = 0
        self._over: dict[Journal, None] = {}

    def reserve(self, size: int) -> bool:
        while self._used + size > self._limit:
            oldest = next((journal for journal in self._over if not journal.readers), None)
            if oldest is None:
                return False
            oldest.discard()
        self._used += size
        return True

    def release(self, size: int) -> None:
        self._used -= size

    def retire(self, journal: Journal) -> None:
        self._over[journal] = None

    def forget(self, journal: Journal) -> None:
        self._over.pop(journal, None)


class Chunk:
    """Bytes of one stream: those of text may grow, those of a result are complete."""

    __slots__ = ("data", "stream")

    def __init__(self, stream: int, data: bytes | bytearray) -> None:
        self.stream = stream
        self.data = data


class Journal:
    """Messages and chunks of bytes. The last chunk may still grow."""

    __slots__ = ("_memory", "_size", "_unwanted", "closed", "discarded", "entries", "readers")

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._size = 0
        self._unwanted = False
        self.entries: list[dict[str, Any] | Chunk] = []
        self.readers: list[Reader] = []
        self.closed = False
        self.discarded = False

    @property
    def is_full(self) -> bool:
        return len(self.entries) >= MAX_ENTRIES

    def reserve(self, size: int) -> bool:
        if not self._memory.reserve(size):
            return False
        self._size += size
        return True

    def message(self, body: dict[str, Any]) -> None:
        self.entries.append(body)

    def text(self, stream: int, data: bytes) -> None:
        last = self.entries[-1] if self.entries else None
        if type(last) is Chunk and last.stream == stream and len(last.data) < _CHUNK_SIZE:
            last.data += data
        else:
            self.entries.append(Chunk(stream, bytearray(data)))

    def result(self, body: dict[str, Any], stream: int, blob: bytes) -> None:
        self.entries.append(body)
        if blob:
            self.entries.append(Chunk(stream, blob))

    def collect(self, stream: int) -> bytes:
        return b"".join(entry.data for entry in self.entries if type(entry) is Chunk and entry.stream == stream)

    def pump(self) -> None:
        for reader in self.readers[:]:
            reader.pump()

    def close(self) -> None:
        """No more events: readers end when they have got what there is."""
        self.closed = True
        self._memory.retire(self)
        self.pump()
        self.leave(None)

    def drop(self) -> None:
        """Nobody will ask for this any more; those who are reading it may go on."""
        self._unwanted = True
        self.leave(None)

    def leave(self, reader: Reader | None) -> None:
        if reader is not None:
            self.readers.remove(reader)
        if self._unwanted and self.closed and not self.readers:
            self.discard()

    def discard(self) -> None:
        self._memory.forget(self)
        self._memory.release(self._size)
        self._size = 0
        self.discarded = True
        self.entries = []


class Reader:
    """A channel on its way through a journal."""

    __slots__ = ("_index", "_journal", "_offset", "channel")

    def __init__(self, journal: Journal, channel: Channel, on_left: Callable[[bool], None]) -> None:
        self._journal = journal
        self._index = 0
        self._offset = 0
        self.channel = channel
        journal.readers.append(self)

        def left(by_host: bool) -> None:
            journal.leave(self)
            on_left(by_host)

        channel.on_left = left
        channel.on_room = self.pump

    def pump(self) -> None:
        channel, entries = self.channel, self._journal.entries
        while self._index < len(entries):
            entry = entries[self._index]
            if type(entry) is Chunk:
                while self._offset < len(entry.data):
                    piece = bytes(entry.data[self._offset : self._offset + channel.room()])
                    sent = channel.send_now(piece, entry.stream)
                    if not sent:
                        return
                    self._offset += sent
                if self._index == len(entries) - 1 and not self._journal.closed:
                    return  # it may still grow
            elif channel.is_stuck:
                return
            elif isinstance(entry, dict):
                channel.message(entry)
            self._index += 1
            self._offset = 0
        if self._journal.closed:
            channel.disconnect()
            channel.end()
            self._journal.leave(self)
