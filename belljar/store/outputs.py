"""What the programs of a sandbox wrote, in the sandbox's own folder: two files, of which the older goes when the newer is full.

One line of a file is one line of output behind a letter, so that a line cut short by a crash costs that line alone:

    o<text>                         stdout
    e<text>                         stderr
    p<process> <stdout> <stderr>    so many bytes of a background process's output are in the lines before this one
"""

from __future__ import annotations

import os
from pathlib import Path

FILE_BYTES = 1024 * 1024
STDOUT, STDERR, POSITION = b"o", b"e", b"p"


class OutputLog:
    """The log of one sandbox. Calls block; run them in a thread. A folder that is gone has no log, and takes none."""

    def __init__(self, folder: Path) -> None:
        self._new, self._old = folder / "output.log", folder / "output.log.1"

    def append(self, lines: bytes, head: bytes = b"") -> None:
        """Add whole lines, in one write. A new file begins with `head`, which must not be lost with the old one."""
        try:
            fd = self._open()
            try:
                size = os.fstat(fd).st_size
                if size and size + len(lines) > FILE_BYTES:
                    self._new.replace(self._old)
                    full, fd = fd, self._open()
                    os.close(full)
                    size, lines = 0, head + lines
                if size and os.pread(fd, 1, size - 1) != b"\n":
                    lines = b"\n" + lines  # its last writer was killed in the middle of a line
                os.write(fd, lines)
            finally:
                os.close(fd)
        except FileNotFoundError:
            pass

    def read(self) -> list[bytes]:
        """The lines that are kept, oldest first and about FILE_BYTES in all."""
        content = b"".join(self._content(path) for path in (self._old, self._new))
        if len(content) > FILE_BYTES:
            content = content[-FILE_BYTES:].partition(b"\n")[2]
        return [line for line in content.split(b"\n") if line]

    def _open(self) -> int:
        return os.open(self._new, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def _content(self, path: Path) -> bytes:
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return b""
        return content if content.endswith(b"\n") or not content else content + b"\n"
