"""How the agent describes a file to the host."""

# Paths stay strings: it is faster, and a Path would drop the final slash that the kernel must see.
# ruff: noqa: PTH115, PTH119

from __future__ import annotations

import os
import stat
from typing import Any

from belljar.guest.accounts import Accounts


def describe(path: str, status: os.stat_result, accounts: Accounts) -> dict[str, Any]:
    """An entry for `path`, of which `status` is the lstat."""
    mode = status.st_mode
    entry: dict[str, Any] = {
        "name": os.path.basename(path.rstrip("/")) or "/",
        "path": path,
        "type": _kind(mode),
        "size": status.st_size,
        "mode": stat.S_IMODE(mode),
        "mtime_ns": status.st_mtime_ns,
        "owner": accounts.owner_name(status.st_uid),
        "group": accounts.group_name(status.st_gid),
    }
    if stat.S_ISLNK(mode):
        try:
            entry["target"] = os.readlink(path)
        except OSError:
            entry["target"] = None
    return entry


def _kind(mode: int) -> str:
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "dir"
    return "symlink" if stat.S_ISLNK(mode) else "other"
