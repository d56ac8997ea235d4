"""Memory images that are in use, so that machines of one template share their pages.

An image is held as long as someone asks for it again soon, and by every machine that runs on it. A new process first looks whether
a live machine of the same template can lend its image, which costs nothing and shares pages; else it is loaded from disk.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable

from belljar.vm.finishing import in_thread
from belljar.vm.memory import MemoryImage

# Images of snapshots are big and rarely wanted twice; templates are few. The oldest go first.
MAX_IMAGES = 8


class ImageCache:
    """Images by key. Loads happen once even when many ask at the same time."""

    def __init__(self) -> None:
        self._images: OrderedDict[str, MemoryImage] = OrderedDict()
        self._loading: dict[str, asyncio.Lock] = {}

    async def get(self, key: str, load: Callable[[], MemoryImage]) -> MemoryImage:
        """The image called `key`; `load` runs in a thread if it is not here. The caller gets a handle of its own to close."""
        async with self._loading.setdefault(key, asyncio.Lock()):
            if key not in self._images:
                self._images[key] = await in_thread(load, undo=MemoryImage.close)
                self._evict()
            self._images.move_to_end(key)
            return self._images[key].duplicate()

    def forget(self, key: str) -> None:
        if image := self._images.pop(key, None):
            image.close()
        self._loading.pop(key, None)

    def _evict(self) -> None:
        while len(self._images) > MAX_IMAGES:
            self.forget(next(iter(self._images)))

    def close(self) -> None:
        for key in list(self._images):
            self.forget(key)
