"""`belljar cp`: files and folders between this machine and a sandbox."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from belljar.cli.opening import open_fleet
from belljar.cli.render import one_line
from belljar.errors import FileMissing, InvalidInput, NotADirectory

if TYPE_CHECKING:
    from belljar.cli.opening import Commands
    from belljar.fleet.files import Files


@dataclass(frozen=True)
class Remote:
    """A path inside a sandbox."""

    sandbox: str
    path: str


def register(commands: Commands) -> None:
    cp = commands.add_parser(
        "cp",
        help="copy files or folders into or out of a sandbox",
        description="One side is ID:PATH. Into a folder that exists, under the same name.",
    )
    cp.add_argument("source", metavar="SRC", help="PATH or ID:PATH")
    cp.add_argument("target", metavar="DST", help="ID:PATH or PATH")
    cp.add_argument("-u", "--user", help="guest user whose rights are used; default: the template's ordinary user")
    cp.set_defaults(handler=copy)


def parse_place(word: str) -> Path | Remote:
    """`ID:PATH` is inside a sandbox. A slash before the colon makes it a local path, so `./a:b` names a file here."""
    before, colon, path = word.partition(":")
    if colon and before and "/" not in before and before not in (".", ".."):
        return Remote(before, path or ".")
    if not word:
        raise InvalidInput("a path is empty; give PATH or ID:PATH")
    return Path(word)


async def copy(args: argparse.Namespace) -> int:
    source, target = parse_place(args.source), parse_place(args.target)
    if isinstance(source, Remote) == isinstance(target, Remote):
        raise InvalidInput("exactly one side must be in a sandbox, written ID:PATH (a local name with a colon: ./NAME)")
    remote = source if isinstance(source, Remote) else target
    assert isinstance(remote, Remote)
    async with open_fleet() as fleet:
        files = (await fleet.get(remote.sandbox)).files
        if isinstance(target, Remote):
            local = Path(args.source)
            goal = await _remote_goal(files, target.path, local.resolve().name, args.user)
            done = await files.upload(local, goal, user=args.user)
        else:
            done = await files.download(remote.path, _local_goal(args.target, remote.path), user=args.user)
    for skipped in done.skipped:
        print(f"belljar: skipped {one_line(skipped.path)}: {one_line(skipped.reason)}", file=sys.stderr)
    return 0


async def _remote_goal(files: Files, path: str, name: str, user: str | None) -> str:
    inside = f"{path.rstrip('/')}/{name}"
    if path.endswith("/"):
        return inside
    try:
        # The dot follows a link to a folder; of anything else it is an error or not there.
        is_folder = (await files.stat(f"{path}/.", user=user)).type == "dir"
    except (FileMissing, NotADirectory):
        return path
    return inside if is_folder else path


def _local_goal(word: str, remote: str) -> Path:
    path, name = Path(word), remote.rstrip("/").rpartition("/")[2]
    if not path.is_dir() and not word.endswith("/"):
        return path
    if name in ("", ".", ".."):
        return path
    return path / name
