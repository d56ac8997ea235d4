"""Memory images that are shared: loaded once, and never left without an owner."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest

from belljar.fleet.images import ImageCache
from belljar.vm.memory import MemoryImage, new_memory, no_pages, seal
from belljar.vm.spec import PAGE


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
    cache, began, may_end = ImageCache(), threading.Event(), threading.Event()
    made: list[MemoryImage] = []

    def load() -> MemoryImage:
        made.append(make_image())
        began.set()
        assert may_end.wait(60), "nobody let the load end"
        return made[0]

    asking = asyncio.create_task(cache.get("a", load))
    assert await asyncio.to_thread(began.wait, 60), "the load did not begin"
    asking.cancel()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert made[0].fd == -1, "the image is still open, and nobody can close it any more"
    again = await cache.get("a", make_image)
    assert os.fstat(again.fd).st_size == PAGE
    again.close()
    cache.close()
