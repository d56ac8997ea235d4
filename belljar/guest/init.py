"""PID 1 of a sandbox: sets the guest up, keeps an agent running, and reaps whatever is orphaned.

The agent is forked, never exec'd: all its code is in memory before the first fork, so a guest that has deleted every
file it has can still start another one. PID 1 opens the port and keeps it, so an agent that dies takes no bytes with it.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Final, NoReturn

if __name__ == "__main__":  # run as a file, isolated: nothing has put our own package on the path
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from belljar.guest import mounts
from belljar.guest.cgroups import ControlGroups, SessionGroups
from belljar.guest.context import Context
from belljar.guest.machine import Machine
from belljar.guest.main import serve
from belljar.guest.net.setup import Sockets, set_up
from belljar.guest.net.trust import Trust

PORT_NAME: Final = "org.belljar.agent"

_PORT_DEADLINE_S: Final = 60.0
_OPEN_FILES: Final = 65536
_LONGEST_PAUSE_S: Final = 1.0
_LIVED_WELL_S: Final = 10.0


def open_port() -> int:
    """The virtio port named PORT_NAME. There is no udev to make links: sysfs says which device it is."""
    deadline = time.monotonic() + _PORT_DEADLINE_S
    while True:
        for folder in Path("/sys/class/virtio-ports").glob("*"):
            name = folder / "name"
            if name.exists() and name.read_text().strip() == PORT_NAME:
                return os.open(f"/dev/{folder.name}", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        if time.monotonic() > deadline:
            raise RuntimeError(f"there is no virtio port named {PORT_NAME}")
        time.sleep(0.01)


def run_agent(port: int, work: Path | None, sockets: Sockets | None, count: int) -> NoReturn:
    """In the child: never returns."""
    status = 1
    try:
        machine = Machine()
        machine.protect_agent()
        mounts.join_agent_group()
        groups = ControlGroups(work) if work is not None else SessionGroups()
        context = Context(machine, groups, agent_start=count, sockets=sockets)
        asyncio.run(serve(port, context, until_eof=False))
        status = 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(status)


def keep_agent(port: int, work: Path | None, sockets: Sockets | None) -> NoReturn:
    count, pause = 0, 0.0
    while True:
        time.sleep(pause)
        count += 1
        print(f"BELLJAR-AGENT-START {count}", flush=True)
        started = time.monotonic()
        try:
            pid = os.fork()
        except OSError:
            pause = _LONGEST_PAUSE_S
            continue
        if pid == 0:
            run_agent(port, work, sockets, count)
        _reap_until(pid)
        lived_well = time.monotonic() - started > _LIVED_WELL_S
        pause = 0.0 if lived_well else min(_LONGEST_PAUSE_S, max(0.05, pause * 2))


def _reap_until(agent: int) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, 0)
        except ChildProcessError:
            return
        if pid == agent:
            print(f"belljar init: the agent ended with status {status}", flush=True)
            return


def set_up_network() -> Sockets | None:
    """A guest without it is poorer, not dead; the console says why."""
    try:
        Trust().set_up()
        return set_up()
    except OSError as error:
        print(f"belljar init: no network: {error}", flush=True)
        return None


def main() -> NoReturn:
    """Never returns: the kernel panics when PID 1 ends."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # which for PID 1 means that it is ignored
    mounts.mount_all()
    mounts.raise_loopback()
    work = mounts.make_cgroups()
    sockets = set_up_network()
    resource.setrlimit(resource.RLIMIT_NOFILE, (_OPEN_FILES, _OPEN_FILES))
    os.chdir("/")
    while True:
        try:
            keep_agent(open_port(), work, sockets)
        except Exception:
            traceback.print_exc()
            time.sleep(_LONGEST_PAUSE_S)


if __name__ == "__main__":
    main()
