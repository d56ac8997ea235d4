"""Growing the writable disk's file system to the size of its device, while it is mounted."""

from __future__ import annotations

import fcntl
import os
import struct
from pathlib import Path
from typing import Final

from belljar.guest.failure import Failure, from_os_error
from belljar.guest.syscalls import MS_NOATIME, mount, unmount

_DEVICE: Final = "/dev/vdb"
_BLKGETSIZE64: Final = 0x80081272
_EXT4_IOC_RESIZE_FS: Final = 0x40086610


def grow_disk(device: str = _DEVICE) -> None:
    """A block device that is mounted already can be mounted again: it is the same file system, reached at a place we know."""
    place = Path("/run/belljar/disk")
    try:
        place.mkdir(parents=True, exist_ok=True)
        mount(device, str(place), "ext4", MS_NOATIME)
        try:
            _grow(device, place)
        finally:
            unmount(str(place))
    except OSError as error:
        raise Failure("file_error", f"the disk could not be grown: {from_os_error(error, device).message}") from None


def _grow(device: str, place: Path) -> None:
    disk = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
    root = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        size = struct.unpack("Q", fcntl.ioctl(disk, _BLKGETSIZE64, bytes(8)))[0]
        fcntl.ioctl(root, _EXT4_IOC_RESIZE_FS, struct.pack("Q", size // os.fstatvfs(root).f_bsize))
    finally:
        os.close(disk)
        os.close(root)
