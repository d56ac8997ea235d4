"""The `belljar` command: arguments in, one library call, text or JSON out.

Exit codes: what the guest's command returned, 128+n if signal n ended it, 124 if its time ran out; 1 for an error of Belljar's
own, said in one line; 2 for wrong usage; 128+n when a signal ended the command line itself. Modules that cost time to import
are imported by the functions that need them, so that `--help` and mistakes answer at once.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from belljar.cli import (
    configuring,
    contexts,
    copying,
    doctor,
    executing,
    forwarding,
    running,
    sandboxes,
    serving,
    snapshots,
    templates,
    tokens,
)
from belljar.cli.render import one_line
from belljar.errors import BelljarError

NOUNS = (running, sandboxes, executing, contexts, copying, forwarding, snapshots, templates, serving, tokens, configuring, doctor)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="belljar", description="Run code in microVMs that start at once and can be forked.")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for noun in NOUNS:
        noun.register(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    try:
        return _run(args)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output has gone (`belljar ps | head`). Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except BelljarError as error:
        return _report(error, error.message)
    except ModuleNotFoundError as error:
        if (error.name or "belljar").startswith("belljar"):
            return _report(error, f"internal error: {error} (BELLJAR_DEBUG=1 shows where)")
        # The client was installed alone; this command works on the machine itself.
        return _report(error, f"this command needs {error.name}; install it with `pip install 'belljar[host]'`")
    except Exception as error:
        return _report(error, f"internal error: {type(error).__name__}: {error} (BELLJAR_DEBUG=1 shows where)")


def _report(error: Exception, message: str) -> int:
    if os.environ.get("BELLJAR_DEBUG") == "1":
        import traceback

        traceback.print_exception(error)
    print(f"belljar: {one_line(message)}", file=sys.stderr)
    return 1


def _run(args: argparse.Namespace) -> int:
    import asyncio
    import signal

    ended_by: list[int] = []

    async def supervised() -> int:
        loop = asyncio.get_running_loop()
        work = asyncio.ensure_future(args.handler(args))

        def end(number: int) -> None:
            ended_by.append(number)
            work.cancel()

        # Ctrl-C does this by itself; the others must end sandboxes just as cleanly.
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, end, number)
        return int(await work)

    try:
        return asyncio.run(supervised())
    except asyncio.CancelledError:
        return 128 + ended_by[0] if ended_by else 1


if __name__ == "__main__":
    sys.exit(main())
