"""Unix sockets at paths of any length.

The kernel takes 107 bytes of path; a state directory may be deeper than that. Going through the directory's descriptor keeps
what the kernel sees short.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from belljar.errors import SandboxGone


@contextmanager
def short_path(path: Path) -> Iterator[str]:
    """Another name of `path`, short enough for a socket address, while the block lasts."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def listen_unix(path: Path) -> socket.socket:
    """A listening socket, to be handed to a child: it can be connected to before the child has even started."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with short_path(path) as short:
        listener.bind(short)
    path.chmod(0o600)
    listener.listen(1)
    return listener


async def connect_unix(path: Path) -> socket.socket:
    """A connected, non-blocking socket."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        with short_path(path) as short:
            await asyncio.get_running_loop().sock_connect(sock, short)
    except OSError as problem:
        sock.close()
        raise SandboxGone(f"nothing listens at {path.name}: the machine has ended ({problem.strerror})") from problem
    return sock
