"""Threads for what may block: file work, with the permissions of the user it is done for.

The kernel checks file access against the file-system uid, gid and groups of the calling *thread*. setfsuid and setfsgid are per
thread in the C library; its setgroups is not (it changes every thread), so that one is a raw system call. Leaving uid 0 also takes
CAP_DAC_OVERRIDE and its kin out of the thread's effective set, and coming back restores them.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import platform
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, ParamSpec, TypeVar

from belljar.guest.accounts import Account

P = ParamSpec("P")
R = TypeVar("R")

_THREADS: Final = 8
_SETGROUPS: Final = {"x86_64": 116, "aarch64": 159}.get(platform.machine())
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def _set_groups(groups: tuple[int, ...]) -> None:
    numbers = (ctypes.c_uint32 * len(groups))(*groups)
    if _SETGROUPS is None or _LIBC.syscall(_SETGROUPS, len(groups), numbers) != 0:
        raise PermissionError("cannot take on the user's groups")


def _as_user(account: Account, work: Callable[..., R], args: tuple[Any, ...], kwargs: dict[str, Any]) -> R:
    try:
        _set_groups(account.groups)
        _LIBC.setfsgid(account.gid)
        _LIBC.setfsuid(account.uid)
        return work(*args, **kwargs)
    finally:
        _LIBC.setfsuid(0)
        _LIBC.setfsgid(0)
        _set_groups(())


class Workers:
    """A few threads. When all of them hang in a broken file system, file work stops, and everything else goes on."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_THREADS, "file")
        self._may_switch = os.geteuid() == 0

    def warm(self) -> None:
        """Start a first thread now rather than in the first request after a restore."""
        self._pool.submit(int)

    async def run(self, account: Account, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """`work` in a thread, as `account`. An agent that is not root acts as itself."""
        loop = asyncio.get_running_loop()
        if account.uid == 0 or not self._may_switch:
            return await loop.run_in_executor(self._pool, lambda: work(*args, **kwargs))
        return await loop.run_in_executor(self._pool, _as_user, account, work, args, kwargs)
