"""Write an initrd: a cpio archive in the "newc" format, the same bytes for the same content.

    header   "070701" and 13 fields of 8 hex digits: inode, mode, uid, gid, links, mtime, size, device (2), special device (2),
             length of the name with its NUL, checksum (0)
    name     NUL-terminated, padded so that header and name end on 4 bytes
    data     padded to 4 bytes
    end      an entry named TRAILER!!!

Left uncompressed: a guest under emulation inflates more slowly than it copies.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Entry:
    """One file or directory. `mode` includes the type."""

    name: str
    mode: int
    data: bytes = b""


def directory(name: str) -> Entry:
    return Entry(name, stat.S_IFDIR | 0o755)


def file(name: str, data: bytes, executable: bool = False) -> Entry:
    return Entry(name, stat.S_IFREG | (0o755 if executable else 0o644), data)


def archive(entries: Iterable[Entry]) -> bytes:
    """The archive of `entries`, sorted by name so that a directory comes before what is in it; owned by root, dated 1970."""
    out = bytearray()
    inode = 0
    for inode, entry in enumerate(sorted(entries, key=lambda entry: entry.name), start=1):
        _append(out, inode, entry)
    _append(out, inode + 1, Entry("TRAILER!!!", 0))
    return bytes(out)


def _append(out: bytearray, inode: int, entry: Entry) -> None:
    name = entry.name.encode() + b"\0"
    links = 2 if stat.S_ISDIR(entry.mode) else 1
    fields = (inode, entry.mode, 0, 0, links, 0, len(entry.data), 0, 0, 0, 0, len(name), 0)
    out += b"070701" + b"".join(b"%08X" % field for field in fields) + name
    _pad(out)
    out += entry.data
    _pad(out)


def _pad(out: bytearray) -> None:
    out += bytes(-len(out) % 4)
