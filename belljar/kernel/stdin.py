"""Standard input of a cell: the text that came with the run, or an error at once instead of a wait that nobody can end."""

from __future__ import annotations

import getpass
import io
import sys
from typing import NoReturn, TextIO


class StdinNotGiven(EOFError):
    """The cell reads from stdin, and the run brought none. An EOFError, so that pdb and loops over input() end."""


class AbsentStdin(io.TextIOBase):
    """What sys.stdin is when there is nothing to read."""

    encoding = "utf-8"

    def fileno(self) -> int:
        return 0  # /dev/null, for a process that is started with stdin=sys.stdin

    def readable(self) -> bool:
        return True

    def readline(self, _size: int = -1) -> NoReturn:  # type: ignore[override]
        raise StdinNotGiven("the cell asks for input, but this run was given no stdin: pass stdin= with the text it should read")

    def read(self, _size: int | None = -1) -> NoReturn:
        self.readline()

    def __next__(self) -> NoReturn:
        self.readline()


def open_stdin(text: str | None) -> TextIO:
    if text is None:
        return AbsentStdin()  # type: ignore[return-value]
    return io.TextIOWrapper(io.BytesIO(text.encode("utf-8", "surrogatepass")), encoding="utf-8", errors="surrogateescape")


def read_password(prompt: str = "Password: ", stream: TextIO | None = None) -> str:
    """getpass.getpass without a terminal to hide anything on."""
    print(prompt, end="", file=stream or sys.stdout, flush=True)
    line = sys.stdin.readline()
    if not line:
        raise EOFError("the stdin given with this run has ended")
    return line.rstrip("\n")


def install() -> None:
    getpass.getpass = read_password
