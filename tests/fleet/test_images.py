"""Memory images that are shared: loaded once, and never left without an owner."""

from __future__ import annotations

import asyncio
import os

from belljar.fleet.images import ImageCache
from belljar.vm.memory import MemoryImage, new_memory, no_pages, seal
from belljar.vm.spec import PAGE
from tests.calling_off import Gate


def make_image() -> MemoryImage:
    return MemoryImage(seal(new_memory(PAGE)), PAGE, no_pages(PAGE))


async def test_many_who_ask_at_once_share_one_load() -> None:
    cache, loads = ImageCache(), []

    def load() -> MemoryImage:
        loads.append(1)
        return make_image()

    images = await asyncio.gather(*(cache.get("a", load) for _ in range(5)))
    assert len(loads) == 1 and len({image.identity for image in images}) == 1
    for image in images:
        image.close()
    cache.close()


async def test_a_load_whose_caller_is_cancelled_leaves_no_memory_behind() -> None:
    cache, gate = ImageCache(), Gate()
    made: list[MemoryImage] = []

    def load() -> MemoryImage:
        made.append(make_image())
        gate.wait()
        return made[0]

    await gate.call_off(asyncio.create_task(cache.get("a", load)))
    assert made[0].fd == -1, "the image is still open, and nobody can close it any more"
    again = await cache.get("a", make_image)
    assert os.fstat(again.fd).st_size == PAGE
    again.close()
    cache.close()
