"""`belljar template`: what sandboxes are created from."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from belljar.cli.opening import add_json
from belljar.cli.render import flatten, make_progress, render_bytes, render_json, render_table

if TYPE_CHECKING:
    from belljar.cli.opening import Commands


def register(commands: Commands) -> None:
    noun = commands.add_parser("template", help="build and show templates")
    verbs = noun.add_subparsers(metavar="VERB", required=True)
    build = verbs.add_parser("build", help="build templates from their recipes; what is built already is left as it is")
    build.add_argument("names", metavar="NAME", nargs="+")
    add_json(build)
    build.set_defaults(handler=build_templates)
    listing = verbs.add_parser("list", help="list templates, built or not")
    add_json(listing)
    listing.set_defaults(handler=list_all)
    show = verbs.add_parser("show", help="show one template")
    show.add_argument("name", metavar="NAME")
    add_json(show)
    show.set_defaults(handler=show_one)
    remove = verbs.add_parser("rm", help="remove what was built of templates; their recipes stay")
    remove.add_argument("names", metavar="NAME", nargs="+")
    remove.set_defaults(handler=remove_templates)


async def build_templates(args: argparse.Namespace) -> int:
    from belljar.settings import load_settings
    from belljar.templates.bake import build_template

    progress = make_progress()
    built = [await build_template(load_settings(), name, progress) for name in args.names]
    print(render_json(built) if args.json else "\n".join(f"{info.name} {info.digest}" for info in built))
    return 0


async def list_all(args: argparse.Namespace) -> int:
    import asyncio

    from belljar.settings import load_settings
    from belljar.templates.bake import list_templates

    found = await asyncio.to_thread(list_templates, load_settings())
    if args.json:
        print(render_json(found))
    else:
        rows = [
            (i.name, i.digest[:12] or "not built", render_bytes(i.size_bytes), ",".join(i.aliases) or None, i.description)
            for i in found
        ]
        print(render_table(("NAME", "BUILT", "SIZE", "ALIASES", "DESCRIPTION"), rows))
    return 0


async def show_one(args: argparse.Namespace) -> int:
    import asyncio

    from belljar.settings import load_settings
    from belljar.templates.bake import show_template

    info = await asyncio.to_thread(show_template, load_settings(), args.name)
    print(render_json(info) if args.json else render_table(("WHAT", "VALUE"), flatten(info)))
    return 0


async def remove_templates(args: argparse.Namespace) -> int:
    import asyncio

    from belljar.settings import load_settings
    from belljar.templates.bake import remove_template

    for name in args.names:
        await asyncio.to_thread(remove_template, load_settings(), name)
    return 0
