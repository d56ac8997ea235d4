"""The few things that only root of a machine of its own can do. Tests hand the agent another one of these."""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import struct
import time
from pathlib import Path
from typing import Final

_RNDADDENTROPY: Final = 0x40085203
_RNDRESEEDCRNG: Final = 0x5207
_OOM_NEVER: Final = "-1000"
_AGENT_NICE: Final = -10


class Machine:
    """The guest as root sees it."""

    def __init__(self, etc: Path = Path("/etc")) -> None:
        self._etc = etc
        self._random = os.open("/dev/urandom", os.O_RDWR | os.O_CLOEXEC)

    def set_clock(self, time_ns: int) -> None:
        time.clock_settime_ns(time.CLOCK_REALTIME, time_ns)

    def add_entropy(self, entropy: bytes) -> None:
        """Credit fresh bytes to the kernel and reseed at once: two forks must not draw the same numbers."""
        fcntl.ioctl(self._random, _RNDADDENTROPY, struct.pack("ii", len(entropy) * 8, len(entropy)) + entropy)
        fcntl.ioctl(self._random, _RNDRESEEDCRNG)

    def set_hostname(self, name: str) -> None:
        socket.sethostname(name)
        self._write("hostname", f"{name}\n")
        self._write("hosts", f"127.0.0.1\tlocalhost\n127.0.1.1\t{name}\n::1\tlocalhost ip6-localhost ip6-loopback\n")

    def set_machine_id(self, machine_id: str) -> None:
        self._write("machine-id", f"{machine_id}\n")

    def _write(self, name: str, text: str) -> None:
        """In place and without O_TRUNC (ext4 would flush the file on close). A guest that broke its /etc keeps it broken."""
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            fd = os.open(self._etc / name, flags, 0o644)
        except OSError:
            return
        try:
            if stat.S_ISREG(os.fstat(fd).st_mode):
                data = text.encode("ascii", "replace")
                os.pwrite(fd, data, 0)
                os.ftruncate(fd, len(data))
        except OSError:
            pass
        finally:
            os.close(fd)

    def protect_agent(self) -> None:
        """The agent is the last to be killed for memory and the first to run."""
        Path("/proc/self/oom_score_adj").write_text(_OOM_NEVER)
        os.setpriority(os.PRIO_PROCESS, 0, _AGENT_NICE)

    def unprotect_child(self) -> None:
        """The reverse, in a child that is about to become somebody's program. Plain calls: this is after a fork."""
        fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
        os.write(fd, b"0")
        os.close(fd)
        os.setpriority(os.PRIO_PROCESS, 0, 0)
