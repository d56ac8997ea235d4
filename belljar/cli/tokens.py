"""`belljar token`: tokens for the server, made on its own machine. The server may run meanwhile, and knows them at once."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from belljar.cli.opening import add_json
from belljar.cli.render import render_json, render_since, render_table, render_until

if TYPE_CHECKING:
    from belljar.cli.opening import Commands
    from belljar.service.access import Access


def register(commands: Commands) -> None:
    token = commands.add_parser("token", help="tokens that let people call the server").add_subparsers(
        metavar="COMMAND", required=True
    )
    create = token.add_parser("create", help="make a token and print it, this once")
    create.add_argument("label", metavar="LABEL", help="what it is for")
    create.add_argument("--workspace", metavar="NAME", default="default", help="whose it is (default: default)")
    create.add_argument("--admin", action="store_true", help="may also make tokens and set quotas, for all workspaces")
    create.add_argument("--days", metavar="N", type=int, help="how long it is valid (default: for ever)")
    add_json(create)
    create.set_defaults(handler=create_token)
    listing = token.add_parser("list", help="list tokens, without the tokens themselves")
    listing.add_argument("--workspace", metavar="NAME", help="only of this one")
    add_json(listing)
    listing.set_defaults(handler=list_tokens)
    revoke = token.add_parser("revoke", help="make tokens invalid, at once")
    revoke.add_argument("prefixes", metavar="PREFIX", nargs="+", help="beginning of a token, as `list` shows it")
    revoke.set_defaults(handler=revoke_tokens)


@contextmanager
def open_access() -> Iterator[Access]:
    from belljar.service.access import Access
    from belljar.settings import load_settings
    from belljar.store.db import Records
    from belljar.store.layout import Layout
    from belljar.store.tokens import Tokens

    layout = Layout(load_settings().home)
    layout.prepare()
    records = Records(layout.database)
    try:
        yield Access(Tokens(records.database))
    finally:
        records.close()


async def create_token(args: argparse.Namespace) -> int:
    with open_access() as access:
        token, record = await access.mint(args.label, workspace=args.workspace, admin=args.admin, days=args.days)
    if args.json:
        facts = {"prefix": record.prefix, "label": record.label, "workspace": record.workspace, "admin": record.admin}
        print(render_json({"token": token, **facts, "created_at": record.created_at, "expires_at": record.expires_at}))
    else:
        print(token)
    return 0


async def list_tokens(args: argparse.Namespace) -> int:
    with open_access() as access:
        found = await access.list(args.workspace)
    names = ("prefix", "label", "workspace", "admin", "created_at", "expires_at")
    if args.json:
        print(render_json([{name: getattr(record, name) for name in names} for record in found]))
    else:
        rows = [
            (
                record.prefix,
                record.label,
                record.workspace,
                "yes" if record.admin else "no",
                render_since(record.created_at),
                render_until(record.expires_at),
            )
            for record in found
        ]
        print(render_table(("PREFIX", "LABEL", "WORKSPACE", "ADMIN", "AGE", "EXPIRES IN"), rows))
    return 0


async def revoke_tokens(args: argparse.Namespace) -> int:
    from belljar.service.access import PREFIX_CHARS

    with open_access() as access:
        for prefix in args.prefixes:
            # The beginning as it is listed; a whole token will do too, since it begins with it.
            await access.revoke(prefix[:PREFIX_CHARS], None)
    return 0
