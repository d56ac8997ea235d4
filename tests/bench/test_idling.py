from __future__ import annotations

import mmap
import os

from belljar.vm.memory import new_memory
from bench.idling import read_cost

SIZE = 8 << 20


def test_pages_of_the_image_are_not_counted_and_private_copies_are() -> None:
    fd = new_memory(SIZE)
    os.pwrite(fd, b"x" * SIZE, 0)
    before = read_cost(os.getpid())
    with mmap.mmap(fd, SIZE, flags=mmap.MAP_PRIVATE) as ram:
        assert sum(ram[offset] for offset in range(0, SIZE, 4096))
        shared = read_cost(os.getpid())
        ram[: SIZE // 2] = b"y" * (SIZE // 2)
        written = read_cost(os.getpid())
    os.close(fd)
    assert shared.guest == before.guest
    assert written.guest - before.guest == SIZE // 2
