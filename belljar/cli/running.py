"""`belljar run`: code in a sandbox of its own, which ends with it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from belljar.cli.opening import add_egress, add_env, open_fleet, parse_egress, parse_pairs
from belljar.cli.render import one_line
from belljar.errors import InvalidInput

if TYPE_CHECKING:
    from belljar.cli.opening import Commands
    from belljar.fleet.sandbox import Sandbox

PROGRAMS = {"python": "python3", "bash": "bash"}


def register(commands: Commands) -> None:
    run = commands.add_parser("run", help="run code in a new sandbox, and remove the sandbox afterwards")
    what = run.add_mutually_exclusive_group(required=True)
    what.add_argument("file", nargs="?", metavar="FILE", help="program to run; - reads it from stdin")
    what.add_argument("-c", "--code", help="the program itself")
    run.add_argument("--template", default="base", help="default: base")
    run.add_argument("--language", choices=sorted(PROGRAMS), help="default: bash for *.sh, else python")
    run.add_argument("--timeout", type=float, metavar="S", help="kill it after so many seconds (exit code 124)")
    run.add_argument("--keep", action="store_true", help="leave the sandbox running, and print its id to stderr")
    add_env(run)
    add_egress(run)
    run.set_defaults(handler=run_code)


async def run_code(args: argparse.Namespace) -> int:
    from belljar.fleet.checks import check_command, check_env, check_fits, check_timeout

    env = check_env(parse_pairs(args.env, "--env"))
    if args.timeout is not None:
        check_timeout(args.timeout)
    language = args.language or ("bash" if (args.file or "").endswith(".sh") else "python")
    program, from_stdin = PROGRAMS[language], args.file == "-"
    code = args.code if args.code is not None else sys.stdin.read() if from_stdin else None
    source = None if code is not None else _check_file(Path(args.file))
    # In the default folder, where the program's own files would be, and never mistaken for an option.
    command = [program, f"./{source.name}"] if source is not None else [program, "-c", code or ""]
    check_fits(check_command(command))  # now, before there is a sandbox to run it in
    async with open_fleet() as fleet:
        sandbox = await fleet.create(args.template, env=env, egress=parse_egress(args))
        denials = sandbox.egress.watch()
        try:
            if source is not None:
                await sandbox.files.upload(source, f"./{source.name}")
            return await _stream(sandbox, command, args.timeout, stdin=not from_stdin)
        finally:
            for note in denials.notes():
                print(f"belljar: {one_line(note)}", file=sys.stderr)
            if args.keep:
                print(f"belljar: kept {sandbox.id}", file=sys.stderr)
            else:
                await sandbox.kill()


async def _stream(sandbox: Sandbox, command: list[str], timeout_s: float | None, *, stdin: bool) -> int:
    from belljar.cli.terminal import relay

    # A program started from a terminal gets no input: keys typed ahead are the shell's.
    stdin = stdin and not sys.stdin.isatty()
    async with await sandbox.processes.start(command, stdin=stdin, timeout_s=timeout_s) as process:
        return await relay(process, stdin=stdin)


def _check_file(path: Path) -> Path:
    if not path.is_file():
        raise InvalidInput(f"{path} is not a file; give a program's file, or code with -c")
    return path
