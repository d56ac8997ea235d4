"""Users of the guest, read from /etc/passwd and /etc/group without the C library's name services.

Those load shared objects on first use, which fails in a guest that has deleted them; a file that is gone leaves the last
answer standing, so a sandbox after `rm -rf /` still runs what is left as the right user.
"""

# Paths stay strings: it is faster, and a Path would drop the final slash that the kernel must see.
# ruff: noqa: PTH116

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from belljar.guest.failure import invalid


@dataclass(frozen=True, slots=True)
class Account:
    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str
    shell: str


class Accounts:
    """All accounts, read again when one of the two files has changed."""

    def __init__(self, etc: Path = Path("/etc")) -> None:
        self._files = (str(etc / "passwd"), str(etc / "group"))
        self._stamp: tuple[int, ...] = ()
        self._by_name: dict[str, Account] = {}
        self._users: dict[int, str] = {0: "root"}
        self._groups: dict[int, str] = {0: "root"}
        self._refresh()

    def get(self, name: str) -> Account:
        self._refresh()
        account = self._by_name.get(name)
        if account is None:
            raise invalid(f"there is no user {name!r} in this sandbox")
        return account

    def owner_name(self, uid: int) -> str:
        return self._users.get(uid) or str(uid)

    def group_name(self, gid: int) -> str:
        return self._groups.get(gid) or str(gid)

    def _refresh(self) -> None:
        try:
            stats = [os.stat(path) for path in self._files]
            stamp = tuple(value for stat in stats for value in (stat.st_mtime_ns, stat.st_ino))
            if stamp == self._stamp:
                return
            passwd, group = (Path(path).read_text(errors="surrogateescape") for path in self._files)
        except OSError:
            return
        self._stamp = stamp
        self._parse(passwd, group)

    def _parse(self, passwd: str, group: str) -> None:
        members: dict[str, list[int]] = {}
        groups: dict[int, str] = {}
        for name, _, gid, users in _rows(group, 4):
            if gid.isdecimal():
                groups.setdefault(int(gid), name)
                for user in users.split(","):
                    members.setdefault(user, []).append(int(gid))
        accounts: dict[str, Account] = {}
        for name, _, uid, gid, _, home, shell in _rows(passwd, 7):
            if uid.isdecimal() and gid.isdecimal():
                extra = tuple(sorted({int(gid), *members.get(name, ())}))
                accounts.setdefault(name, Account(name, int(uid), int(gid), extra, home or "/", shell or "/bin/sh"))
        if accounts:
            self._by_name, self._groups = accounts, groups
            self._users = {account.uid: account.name for account in reversed(accounts.values())}


def _rows(text: str, columns: int) -> list[list[str]]:
    return [row for line in text.splitlines() if len(row := line.split(":")) == columns]
