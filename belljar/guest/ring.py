"""The last part of what a process wrote, with absolute offsets, so that a reader can say from where it wants to go on."""

from __future__ import annotations

from typing import Final

RING_SIZE: Final = 1024 * 1024
TOTAL_SIZE: Final = 32 * 1024 * 1024
_SLACK: Final = 128 * 1024  # trimmed in steps of this, not at every write


class Ring:
    __slots__ = ("_data", "_keep", "start")

    def __init__(self, keep: int = RING_SIZE) -> None:
        self._data = bytearray()
        self._keep = keep
        self.start = 0  # offset of the oldest byte kept = how much was dropped

    @property
    def end(self) -> int:
        return self.start + len(self._data)

    def append(self, data: bytes) -> None:
        if len(data) >= self._keep:
            self.start += len(self._data) + len(data) - self._keep
            self._data[:] = memoryview(data)[len(data) - self._keep :]
            return
        self._data += data
        if len(self._data) > self._keep + _SLACK:
            self.trim(self._keep)

    def trim(self, keep: int) -> None:
        excess = len(self._data) - keep
        if excess > 0:
            del self._data[:excess]
            self.start += excess

    def read(self, offset: int, size: int) -> bytes:
        first = max(0, offset - self.start)
        return bytes(self._data[first : first + size])

    def __len__(self) -> int:
        return len(self._data)
