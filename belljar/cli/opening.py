"""What the nouns share: opening the fleet, and the arguments that several of them take."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from belljar.errors import InvalidInput

if TYPE_CHECKING:
    from belljar.fleet.sandboxes import Fleet

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


@asynccontextmanager
async def open_fleet() -> AsyncIterator[Fleet]:
    """This host's fleet. Leaving it lets go of the machines; they live on."""
    from belljar.fleet.sandboxes import Fleet
    from belljar.settings import load_settings

    fleet = await Fleet.open(load_settings())
    try:
        yield fleet
    finally:
        await fleet.aclose()


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def add_env(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-e", "--env", action="append", default=[], metavar="K=V", help="environment variable (repeatable)")


def add_metadata(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--metadata", action="append", default=[], metavar="K=V", help="label (repeatable)")


def add_egress(parser: argparse.ArgumentParser) -> None:
    text = "what it may connect to: open, off, or hosts, separated by commas (default: the template's or the server's policy)"
    parser.add_argument("--egress", metavar="POLICY", help=text)
    parser.add_argument("--allow", action="append", default=[], metavar="HOST", help="allow this host, and no other (repeatable)")
    parser.add_argument("--deny", action="append", default=[], metavar="HOST", help="deny this host (repeatable)")


def parse_egress(args: argparse.Namespace) -> dict[str, Any] | None:
    """The policy that was asked for, or None for the one that there is."""
    hosts, mode = list(args.allow), args.egress
    if mode is not None and mode not in ("open", "off", "allow-list"):
        hosts += [word.strip() for word in mode.split(",") if word.strip()]
        mode = None
    if mode is None and not hosts and not args.deny:
        return None
    return {"mode": mode or ("allow-list" if hosts else "open"), "allow": hosts, "deny": args.deny}


def parse_pairs(words: Sequence[str], what: str) -> dict[str, str]:
    """`K=V` words as a mapping; the last one of a name wins."""
    pairs = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise InvalidInput(f"{what} {word!r} is not of the form NAME=VALUE")
        pairs[name] = value
    return pairs
