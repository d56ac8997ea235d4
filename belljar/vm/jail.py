"""The namespaces around a VMM process.

A guest that takes QEMU over finds: no network, no other processes, no capability, and a file system of read-only system
libraries. What it may touch was opened for it: its memory, its root image (read-only), its own disk and its two sockets.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

NOBODY = 65534
_FILES = [
    "--ro-bind",
    "/usr",
    "/usr",
    "--symlink",
    "usr/lib",
    "/lib",
    "--symlink",
    "usr/lib64",
    "/lib64",
    "--proc",
    "/proc",
    "--dev",
    "/dev",
]


# Where a jailed VMM finds its root image, when it is shown one by path.
ROOT_IN_JAIL = "/root.ext4"


def jailed(argv: list[str], *, info_fd: int, kvm: bool, root: Path | None) -> list[str]:
    """The command line that runs `argv` in its own namespaces and reports its pid on `info_fd`."""
    devices = ["--dev-bind", "/dev/kvm", "/dev/kvm"] if kvm else []
    if root is not None:
        devices += ["--ro-bind", str(root), ROOT_IN_JAIL]
    # As PID 1 of its namespace QEMU needs no second bubblewrap process as its init.
    return [
        "bwrap",
        "--unshare-all",
        *_FILES,
        *devices,
        "--cap-drop",
        "ALL",
        "--as-pid-1",
        "--info-fd",
        str(info_fd),
        "--",
        *argv,
    ]


def probe_jail() -> tuple[bool, str]:
    """Whether a process can be jailed here, by jailing one."""
    if not shutil.which("bwrap"):
        return False, "bubblewrap is not installed; install the package bubblewrap"
    argv = ["bwrap", "--unshare-all", *_FILES, "--cap-drop", "ALL", "--as-pid-1", "--", "/usr/bin/true"]
    # Tried without privileges on purpose: as root, VMMs are started under a uid of their own.
    user = NOBODY if os.geteuid() == 0 else None
    try:
        tried = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
            user=user,
            group=user,
            extra_groups=[] if user else None,
        )
    except (OSError, subprocess.SubprocessError) as problem:
        return False, f"bubblewrap did not run: {problem}"
    if tried.returncode:
        return False, f"user namespaces are not usable: {tried.stderr.strip()[:200]}"
    return True, "bubblewrap works"
