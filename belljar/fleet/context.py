"""What every part of the fleet works with: settings, paths, records, host facts and memory images. Made once per process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from belljar.egress.log import Connection
from belljar.egress.outlet import Ground
from belljar.fleet.images import ImageCache
from belljar.settings import Settings
from belljar.store.db import Records
from belljar.store.layout import Layout
from belljar.store.manifest import Manifest, SavedMachine
from belljar.vm.host import HostFacts
from belljar.vm.memory import MemoryImage
from belljar.vm.spec import Shape


@dataclass
class Context:
    """The fleet's shared pieces."""

    settings: Settings
    layout: Layout
    records: Records
    facts: HostFacts
    images: ImageCache = field(default_factory=ImageCache)
    # Held from the question whether there is room to the record that takes it; `waking` is what records do not tell yet.
    admission: threading.Lock = field(default_factory=threading.Lock)
    waking: dict[str, int] = field(default_factory=dict)
    ground: Ground = field(default_factory=Ground)
    on_denied: Callable[[str, Connection], None] | None = None  # told of each connection that was refused, with the sandbox's id

    @property
    def uids(self) -> range | None:
        """The uids that VMMs run under: one per sandbox where the server is root, the server's own elsewhere."""
        if not self.facts.is_root:
            return None
        return range(self.settings.uid_base, self.settings.uid_base + self.settings.uid_count)


class Ticket(Protocol):
    """Somebody else's word in what may be created, kept by whoever looks after workspaces."""

    async def admit(self, machines: int, memory_mib: int, disk_mib: int) -> None:
        """Raises if so many machines of that size are too many."""

    def claim(self, sandbox_id: str) -> None:
        """Called before a record with that id belongs to the workspace."""


@dataclass(frozen=True)
class Wish:
    """What a new sandbox is to be, checked."""

    env: Mapping[str, str]
    metadata: Mapping[str, str]
    expires_at: float | None
    parent: str | None = None
    origin_snapshot: str | None = None
    ttl_s: float | None = None
    workspace: str = "default"
    persistent: bool = False
    ticket: Ticket | None = None
    egress: Mapping[str, Any] = field(default_factory=dict)
    egress_secrets: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Origin:
    """What a machine starts from: a saved machine, and its memory as an image. Create, fork, restore and wake differ only in it."""

    saved: SavedMachine
    manifest: Manifest
    image: MemoryImage

    @property
    def shape(self) -> Shape:
        return Shape(self.manifest.vcpus, self.manifest.memory_mib)
