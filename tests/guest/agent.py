"""The real agent, run on the host over an inherited socket. Only what needs a machine of its own is left out."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from belljar.guest.cgroups import ControlGroups, SessionGroups
from belljar.guest.context import Context
from belljar.guest.machine import Machine
from belljar.guest.main import serve
from belljar.guest.net.setup import Sockets, open_sockets
from belljar.guest.net.trust import Trust


class RecordingMachine(Machine):
    """Writes down what would have been done to the machine, in order."""

    def __init__(self, etc: Path) -> None:
        self._etc = etc
        self._done: list[list[object]] = []

    def _record(self, *what: object) -> None:
        self._done.append(list(what))
        (self._etc / "done.json").write_text(json.dumps(self._done))

    def set_clock(self, time_ns: int) -> None:
        self._record("clock", time_ns)

    def add_entropy(self, entropy: bytes) -> None:
        self._record("entropy", len(entropy))

    def set_hostname(self, name: str) -> None:
        self._record("hostname", name)
        self._write("hostname", f"{name}\n")

    def unprotect_child(self) -> None:
        pass


def main() -> None:
    fd, user, cwd, etc, work, venv = sys.argv[1:]
    groups = ControlGroups(Path(work)) if work else SessionGroups()
    trust = Trust(str(Path(etc).parent))
    trust.set_up()
    # No packets are held on a host, so the names are all that there is of the network.
    datagrams = open_sockets(0).datagrams
    Path(etc, "name-server").write_text(str(datagrams.getsockname()[1]))
    sockets = Sockets(None, datagrams)
    context = Context(RecordingMachine(Path(etc)), groups, user=user, cwd=cwd, venv=venv, trust=trust, sockets=sockets)
    asyncio.run(serve(int(fd), context, until_eof=True))


if __name__ == "__main__":
    main()
