"""`belljar snapshot`: sandboxes as they were at one instant."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from belljar.cli.opening import add_json, add_metadata, open_fleet, parse_pairs
from belljar.cli.render import render_bytes, render_json, render_pairs, render_since, render_table

if TYPE_CHECKING:
    from belljar.cli.opening import Commands


def register(commands: Commands) -> None:
    noun = commands.add_parser("snapshot", help="save sandboxes to create others from")
    verbs = noun.add_subparsers(metavar="VERB", required=True)
    create = verbs.add_parser("create", help="save a sandbox as it is now, and print the snapshot's id")
    create.add_argument("sandbox", metavar="ID")
    add_metadata(create)
    add_json(create)
    create.set_defaults(handler=create_snapshot)
    show = verbs.add_parser("list", help="list snapshots")
    add_json(show)
    show.set_defaults(handler=list_snapshots)
    remove = verbs.add_parser("rm", help="remove snapshots")
    remove.add_argument("snapshots", metavar="SNAPSHOT", nargs="+")
    remove.set_defaults(handler=remove_snapshots)


async def create_snapshot(args: argparse.Namespace) -> int:
    metadata = parse_pairs(args.metadata, "--metadata")
    async with open_fleet() as fleet:
        record = await (await fleet.get(args.sandbox)).snapshot(metadata=metadata or None)
    print(render_json(record) if args.json else record.id)
    return 0


async def list_snapshots(args: argparse.Namespace) -> int:
    async with open_fleet() as fleet:
        records = await fleet.snapshots()
    if args.json:
        print(render_json(records))
    else:
        rows = [
            (r.id, r.sandbox_id, r.template, render_since(r.created_at), render_bytes(r.size_bytes), render_pairs(r.metadata))
            for r in records
        ]
        print(render_table(("ID", "SANDBOX", "TEMPLATE", "AGE", "SIZE", "METADATA"), rows))
    return 0


async def remove_snapshots(args: argparse.Namespace) -> int:
    async with open_fleet() as fleet:
        for name in args.snapshots:
            await fleet.remove_snapshot(name)
    return 0
