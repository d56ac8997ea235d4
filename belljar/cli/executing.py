"""`belljar exec` and `belljar attach`: talking to processes in a sandbox that is there already."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from belljar.cli.opening import add_env, open_fleet, parse_pairs
from belljar.errors import InvalidInput

if TYPE_CHECKING:
    from belljar.cli.opening import Commands


def register(commands: Commands) -> None:
    execute = commands.add_parser(
        "exec",
        help="run a command in a sandbox",
        description="One word is a line for the shell; several are a program and its arguments.",
    )
    execute.add_argument("sandbox", metavar="ID")
    execute.add_argument("-t", "--tty", action="store_true", help="give it a terminal: yours, in raw mode")
    execute.add_argument("-d", "--detach", action="store_true", help="start it in the background and print its process id")
    execute.add_argument("-u", "--user", help="default: the template's ordinary user")
    execute.add_argument("-w", "--cwd", metavar="DIR", help="default: the template's folder")
    execute.add_argument("--timeout", type=float, metavar="S", help="kill it after so many seconds (exit code 124)")
    add_env(execute)
    execute.add_argument("command", nargs="+", metavar="-- CMD", help="what to run")
    execute.set_defaults(handler=exec_command)

    attach = commands.add_parser("attach", help="follow a process that is running in a sandbox")
    attach.add_argument("sandbox", metavar="ID")
    attach.add_argument("process", metavar="PROCESS", help="as `belljar ps ID` shows it; Ctrl-C, in a terminal Ctrl-], lets go")
    attach.set_defaults(handler=attach_process)


async def exec_command(args: argparse.Namespace) -> int:
    from belljar.cli.terminal import check_terminal, relay, relay_terminal, terminal_size

    if args.tty and args.detach:
        raise InvalidInput("--tty and --detach exclude each other")
    if args.tty:
        check_terminal()
    # From a terminal without --tty there is nothing sensible to read: line editing and Ctrl-D belong to the user's own shell.
    piped = not args.detach and not args.tty and not sys.stdin.isatty()
    async with open_fleet() as fleet:
        sandbox = await fleet.get(args.sandbox)
        process = await sandbox.processes.start(
            args.command[0] if len(args.command) == 1 else args.command,
            cwd=args.cwd,
            env=parse_pairs(args.env, "--env"),
            user=args.user,
            timeout_s=args.timeout,
            stdin=args.tty or args.detach or piped,
            pty=terminal_size() if args.tty else None,
            background=args.detach,
        )
        if args.detach:
            print(process.id)
            return 0
        async with process:
            return await (relay_terminal(process) if args.tty else relay(process, stdin=piped))


async def attach_process(args: argparse.Namespace) -> int:
    from belljar.cli.terminal import Detached, relay, relay_terminal

    async with open_fleet() as fleet:
        processes = (await fleet.get(args.sandbox)).processes
        has_pty = any(known.id == args.process and known.pty for known in await processes.list())
        async with await processes.attach(args.process) as process:
            if not (has_pty and sys.stdin.isatty()):
                return await relay(process, stdin=not sys.stdin.isatty())
            try:
                return await relay_terminal(process, detachable=True)
            except Detached:
                print(f"\nbelljar: let go of {process.id}; it runs on", file=sys.stderr)
                return 0
