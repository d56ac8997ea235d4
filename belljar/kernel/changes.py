"""The files below the working directory that a cell has made, changed or removed."""

from __future__ import annotations

import os
import time
from typing import Any

MAX_ENTRIES = 20_000
MAX_LISTED = 500
MAX_SCAN_S = 2.0
# Kept by tools for themselves, and by far the largest trees that people have.
SKIPPED = frozenset({".git", "node_modules", "__pycache__", ".venv", ".ipynb_checkpoints", ".cache", ".ipython"})

Stamp = tuple[int, int, int]


class FilesBefore:
    """How the files were before a cell."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._files, self._complete = scan(root)

    def compare(self) -> dict[str, Any]:
        now, complete = scan(self._root)
        added = [path for path in now if path not in self._files]
        changed = [path for path, stamp in now.items() if path in self._files and self._files[path] != stamp]
        removed = [path for path in self._files if path not in now]
        longest = max(len(added), len(changed), len(removed))
        return {
            "added": [{"path": path, "size": now[path][1]} for path in sorted(added)[:MAX_LISTED]],
            "changed": [{"path": path, "size": now[path][1]} for path in sorted(changed)[:MAX_LISTED]],
            "removed": sorted(removed)[:MAX_LISTED],
            "complete": complete and self._complete and longest <= MAX_LISTED,
        }


def scan(root: str) -> tuple[dict[str, Stamp], bool]:
    """Files by path, each with what changes when it is written: (mtime, size, inode). False: there are more than we look at."""
    found: dict[str, Stamp] = {}
    deadline = time.monotonic() + MAX_SCAN_S
    try:
        device = os.stat(root).st_dev  # noqa: PTH116
    except OSError:
        return found, False
    folders = [root]
    seen = 0
    while folders:
        try:
            entries = list(os.scandir(folders.pop(0)))
        except OSError:
            continue  # not ours to read, or gone
        for entry in entries:
            seen += 1
            if seen > MAX_ENTRIES or time.monotonic() > deadline:
                return found, False
            try:
                stat = entry.stat(follow_symlinks=False)
                if entry.is_dir(follow_symlinks=False):
                    if entry.name not in SKIPPED and stat.st_dev == device:  # neither /proc nor /sys
                        folders.append(entry.path)
                elif len(entry.path) < 1024:
                    found[entry.path] = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            except OSError:
                continue
    return found, True
