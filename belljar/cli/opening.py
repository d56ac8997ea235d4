"""What the nouns share: opening the fleet, and the arguments that several of them take."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

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


def parse_pairs(words: Sequence[str], what: str) -> dict[str, str]:
    """`K=V` words as a mapping; the last one of a name wins."""
    pairs = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise InvalidInput(f"{what} {word!r} is not of the form NAME=VALUE")
        pairs[name] = value
    return pairs
