"""Running the programs that build images: one place for their failures, their deadlines and the privileges they need.

Trees of a Debian system hold files of many owners. Root makes them directly; anybody else makes them in a user namespace where
root is the caller and the other ids come out of /etc/subuid. Either way in a mount namespace of their own, so that whatever is
mounted for a build is gone with the build, and removing a tree can never reach through a mount.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

from belljar.errors import BuildFailed, HostSetup

Progress = Callable[[str], None]

STEP_DEADLINE_S = 1800.0
LOCK_DEADLINE_S = 3600.0
TAIL_LINES = 30
USER_NAMESPACE = ("unshare", "--user", "--map-root-user", "--map-auto", "--mount")

# Program -> the Debian package that has it.
PACKAGES = {
    "mmdebstrap": "mmdebstrap",
    "mke2fs": "e2fsprogs",
    "unshare": "util-linux",
    "chroot": "coreutils",
    "cp": "coreutils",
    "chown": "coreutils",
    "rm": "coreutils",
    "sync": "coreutils",
    "find": "findutils",
    "sh": "dash",
}


def find_program(name: str) -> str:
    """Absolute path of a program; administration programs are found even when the caller's PATH lacks /sbin."""
    found = shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin", "/usr/bin", "/bin")))
    if found is None:
        package = PACKAGES.get(name, name)
        raise HostSetup(f"{name} is not installed; run: apt-get install {package}", program=name, package=package)
    return found


def run_step(
    step: str,
    argv: Sequence[str | Path],
    *,
    progress: Progress,
    env: Mapping[str, str] | None = None,
    keep_fds: Sequence[int] = (),
    ok: Sequence[int] = (0,),
    deadline_s: float = STEP_DEADLINE_S,
) -> list[str]:
    """Run one program and tell how long it took. Returns its output's lines; failure is BuildFailed with the last of them."""
    command = [find_program(str(argv[0])), *map(str, argv[1:])]
    began = time.monotonic()
    lines: list[str] = []
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "LC_ALL": "C.UTF-8", **(env or {})},
        pass_fds=keep_fds,
        start_new_session=True,
        text=True,
        errors="replace",
    )
    late = threading.Event()

    def expire() -> None:
        late.set()
        _kill_group(process)

    timer = threading.Timer(deadline_s, expire)
    timer.daemon = True
    timer.start()
    try:
        assert process.stdout is not None
        lines.extend(line.rstrip("\n") for line in process.stdout)
        code = process.wait()
    except BaseException:
        _kill_group(process)
        process.wait()
        raise
    finally:
        timer.cancel()
        if process.stdout is not None:
            process.stdout.close()
    if late.is_set() or code not in ok:
        reason = f"no end after {deadline_s:.0f} s" if late.is_set() else f"exit code {code}"
        tail = "\n".join(deque((line for line in lines if line.strip()), TAIL_LINES))
        raise BuildFailed(f"{step} failed ({reason}):\n{tail or '(no output)'}", step=step, exit_code=code)
    progress(f"{step}: {time.monotonic() - began:.1f} s")
    return lines


def as_root(*argv: str | Path) -> list[str | Path]:
    """`argv` with the rights of root over the trees that are built, and with mounts of its own."""
    if os.geteuid() == 0:
        return ["unshare", "--mount", *argv]
    _require_user_namespaces()
    return [*USER_NAMESPACE, *argv]


def remove_as_root(path: Path) -> None:
    """Remove a directory whose files may have any owner."""
    shutil.rmtree(path, ignore_errors=True)
    if not path.exists():
        return
    run_step("remove", as_root("rm", "-rf", "--one-file-system", path), progress=lambda _: None)


def directory_writable(path: Path) -> None:
    """Fail early, and in words, when the store cannot be written to."""
    if not os.access(path, os.W_OK | os.X_OK):
        raise HostSetup(f"{path} is not writable for this user; set BELLJAR_HOME to a folder of your own", path=str(path))


@cache
def _require_user_namespaces() -> None:
    try:
        run_step("user namespace", [*USER_NAMESPACE, "true"], progress=lambda _: None, deadline_s=30)
    except BuildFailed as failure:
        raise HostSetup(
            "building images needs root, or user namespaces with a range of ids for this user: run the build once as root, or "
            "install uidmap, give this user a line in /etc/subuid and /etc/subgid (usermod --add-subuids 100000-165535 "
            f"--add-subgids 100000-165535 USER) and allow unprivileged user namespaces. What was said: {failure.message}"
        ) from failure


def _kill_group(process: subprocess.Popen[str]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
