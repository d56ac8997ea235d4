"""What a freshly booted guest lacks: mounts, device links, the loopback interface, control groups."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from contextlib import suppress
from pathlib import Path
from typing import Final

from belljar.guest.syscalls import MS_NODEV, MS_NOEXEC, MS_NOSUID, mount

CGROUPS: Final = Path("/sys/fs/cgroup")

_SIOCSIFFLAGS: Final = 0x8914
_IFF_UP: Final = 1
_KEPT_FOR_AGENT: Final = 96 * 1024 * 1024
_MAX_PROCESSES: Final = 4096

_SAFE: Final = MS_NOSUID | MS_NODEV | MS_NOEXEC
_MOUNTS: Final = (
    ("proc", "/proc", "proc", _SAFE, ""),
    ("sysfs", "/sys", "sysfs", _SAFE, ""),
    ("devtmpfs", "/dev", "devtmpfs", MS_NOSUID, "mode=0755"),
    ("devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "gid=5,mode=620,ptmxmode=666"),
    ("tmpfs", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777"),
    ("tmpfs", "/run", "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755"),
    ("cgroup2", str(CGROUPS), "cgroup2", _SAFE, ""),
)
# What udev would make; bash needs /dev/fd for <(...).
_LINKS: Final = (
    ("/dev/fd", "/proc/self/fd"),
    ("/dev/stdin", "/proc/self/fd/0"),
    ("/dev/stdout", "/proc/self/fd/1"),
    ("/dev/stderr", "/proc/self/fd/2"),
)


def mount_all() -> None:
    for source, target, kind, flags, options in _MOUNTS:
        if not Path(target).is_mount():
            with suppress(OSError):
                Path(target).mkdir(parents=True, exist_ok=True)
            with suppress(OSError):  # a guest without one of these is poorer, not dead
                mount(source, target, kind, flags, options)
    for link, target in _LINKS:
        with suppress(OSError):
            Path(link).symlink_to(target)
    with suppress(OSError):
        Path("/run/lock").mkdir(mode=0o1777, exist_ok=True)


def raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock, suppress(OSError):
        fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("16sH22x", b"lo", _IFF_UP))


def make_cgroups() -> Path | None:
    """The group under which users' processes run, bounded so that they hit their own limits before the agent feels it.

    The agent has a group of its own because a weight only counts among siblings: a fork bomb of thousands then gets a small
    share of the processor together, not each of them. None if this kernel has no usable cgroup v2.
    """
    try:
        (CGROUPS / "cgroup.subtree_control").write_text("+cpu +memory +pids")
        work, agent = CGROUPS / "work", CGROUPS / "agent"
        work.mkdir(exist_ok=True)
        agent.mkdir(exist_ok=True)
        (agent / "cpu.weight").write_text("10000")
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        (work / "memory.max").write_text(str(max(total - _KEPT_FOR_AGENT, total // 2)))
        (work / "pids.max").write_text(str(_MAX_PROCESSES))
        (work / "cgroup.subtree_control").write_text("+memory")
    except OSError as error:
        print(f"belljar init: no control groups: {error}", flush=True)
        return None
    return work


def join_agent_group() -> None:
    with suppress(OSError):
        (CGROUPS / "agent" / "cgroup.procs").write_text("0")
