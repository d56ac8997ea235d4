"""A saved machine on disk: a template, a snapshot, or a sandbox that sleeps. All three are the same kind of folder.

manifest.json    what it is and what can restore it; written last, so a folder without one is rubbish
devices.state    the state of all devices
disk.raw         the writable disk at that instant (a sleeping sandbox's is in its own folder)
root.ext4        the template's read-only root image          } hard links: a template that is removed
memory           the template's memory, a sparse file         } lives on in what was made from it
memory.pages     pages that differ from the template, packed  } absent
memory.map       one bit per page: which ones they are        } in a template
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from belljar.errors import HostSetup


@dataclass(frozen=True)
class Manifest:
    """What a saved machine is. `fingerprint` says which host can restore it."""

    template: str
    template_digest: str
    vcpus: int
    memory_mib: int
    disk_mib: int
    workdir: str
    kernel: str
    fingerprint: Mapping[str, str]
    created_at: float
    packages: Mapping[str, Any] = field(default_factory=dict)
    warm_cells: Sequence[str] = ()  # for the Python context, run again wherever code must be translated anew
    egress: Mapping[str, Any] = field(default_factory=dict)  # the template's own policy; empty for the server's


@dataclass(frozen=True)
class SavedMachine:
    """The folder of a saved machine; the only place that knows its file names."""

    folder: Path

    @property
    def manifest_file(self) -> Path:
        return self.folder / "manifest.json"

    @property
    def devices(self) -> Path:
        return self.folder / "devices.state"

    @property
    def disk(self) -> Path:
        return self.folder / "disk.raw"

    @property
    def root(self) -> Path:
        return self.folder / "root.ext4"

    @property
    def memory(self) -> Path:
        return self.folder / "memory"

    @property
    def pages(self) -> Path:
        return self.folder / "memory.pages"

    @property
    def pagemap(self) -> Path:
        return self.folder / "memory.map"

    def link_template_files(self, other: SavedMachine) -> None:
        """Share `other`'s read-only files by hard link."""
        for source, target in ((other.root, self.root), (other.memory, self.memory)):
            os.link(source, target)

    def write_manifest(self, manifest: Manifest) -> None:
        self.manifest_file.write_text(json.dumps(asdict(manifest), indent=1))

    def check_complete(self, *, delta: bool, disk: bool = True) -> None:
        """Refuse a saved machine that has lost a file, before anything is started from it."""
        needed = [
            self.devices,
            self.root,
            self.memory,
            *([self.disk] if disk else []),
            *([self.pages, self.pagemap] if delta else []),
        ]
        missing = [path.name for path in needed if not path.exists()]
        if missing:
            raise HostSetup(f"{self.folder.name} is damaged: {', '.join(missing)} is missing. Remove it and make it again.")

    def read_manifest(self) -> Manifest:
        try:
            return Manifest(**json.loads(self.manifest_file.read_text()))
        except (OSError, ValueError, TypeError) as problem:
            raise HostSetup(f"{self.folder.name} is damaged: {problem}. Remove it and make it again.") from problem


def folder_bytes(folder: Path) -> int:
    """What a folder's own files take on disk; hard-linked ones are counted where they came from."""
    total = 0
    for entry in os.scandir(folder):
        try:
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue  # it was there a moment ago: the folder is alive
        if entry.is_file(follow_symlinks=False) and status.st_nlink == 1:
            total += status.st_blocks * 512
    return total
