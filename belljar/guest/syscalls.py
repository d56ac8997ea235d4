"""System calls that Python 3.11 has no name for."""

from __future__ import annotations

import ctypes
import os
from typing import Final

MS_NOSUID: Final = 2
MS_NODEV: Final = 4
MS_NOEXEC: Final = 8
MS_NOATIME: Final = 1024
_MNT_DETACH: Final = 2

_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: str, kind: str, flags: int = 0, options: str = "") -> None:
    _LIBC.mount.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p)
    if _LIBC.mount(source.encode(), os.fsencode(target), kind.encode(), flags, options.encode()) != 0:
        _raise(target)


def unmount(target: str) -> None:
    if _LIBC.umount2(os.fsencode(target), _MNT_DETACH) != 0:
        _raise(target)


def inotify_init() -> int:
    fd: int = _LIBC.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if fd < 0:
        _raise("inotify")
    return fd


def inotify_add_watch(fd: int, path: str, mask: int) -> int:
    watch: int = _LIBC.inotify_add_watch(fd, os.fsencode(path), ctypes.c_uint32(mask))
    if watch < 0:
        _raise(path)
    return watch


def _raise(what: str) -> None:
    number = ctypes.get_errno()
    raise OSError(number, os.strerror(number), what)
