"""net.ports: which TCP ports of the guest are listened on, and by whom, as /proc tells it."""

# Paths stay strings, as in the rest of the agent.
# ruff: noqa: PTH115, PTH208

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final, NamedTuple

from belljar.guest.accounts import Accounts

MAX_PORTS: Final = 512  # what fits one message

_TABLES: Final = (("/proc/net/tcp", socket.AF_INET), ("/proc/net/tcp6", socket.AF_INET6))
_LISTENING: Final = "0A"


class Listener(NamedTuple):
    port: int
    address: str
    uid: int
    inode: str


def list_listeners(own: Collection[str] = ()) -> list[Listener]:
    """All listeners but those whose inode is in `own`, by port."""
    found: list[Listener] = []
    for path, family in _TABLES:
        try:
            lines = Path(path).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            _, local, _, state, _, _, _, uid, _, inode, *_ = line.split()
            if state == _LISTENING and inode not in own:
                address, _, port = local.partition(":")
                found.append(Listener(int(port, 16), _parse_address(address, family), int(uid), inode))
    return sorted(found)


def describe_ports(accounts: Accounts, own: Collection[str]) -> dict[str, Any]:
    """The answer to net.ports. Looks into every process, so it is for a thread."""
    listeners = list_listeners(own)
    shown = listeners[:MAX_PORTS]
    owners = _find_owners({listener.inode for listener in shown})
    ports = []
    for listener in shown:
        pid, process = owners.get(listener.inode, (None, None))
        facts = {"port": listener.port, "address": listener.address, "pid": pid, "process": process}
        ports.append({**facts, "user": accounts.owner_name(listener.uid)})
    return {"ports": ports, "truncated": len(listeners) > len(shown)}


def _parse_address(text: str, family: int) -> str:
    """The kernel prints each group of four bytes as one number of its own byte order."""
    words = [int(text[start : start + 8], 16) for start in range(0, len(text), 8)]
    return socket.inet_ntop(family, struct.pack(f"={len(words)}I", *words))


def _find_owners(inodes: set[str]) -> dict[str, tuple[int, str]]:
    """Process id and name, of one process for each socket: the oldest that holds it."""
    missing = {f"socket:[{inode}]": inode for inode in inodes}
    found: dict[str, tuple[int, str]] = {}
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdecimal()):
        if not missing:
            break
        try:
            with os.scandir(f"/proc/{pid}/fd") as entries:
                held = {_read_link(entry.path) for entry in entries}
            name = Path(f"/proc/{pid}/comm").read_text(errors="replace").rstrip("\n")
        except OSError:  # it has ended
            continue
        for link in held & missing.keys():
            found[missing.pop(link)] = (pid, name)
    return found


def _read_link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
