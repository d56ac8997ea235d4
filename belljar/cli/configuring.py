"""`belljar config`: the settings in force, and where each of them comes from."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from belljar.cli.opening import add_json
from belljar.cli.render import render_json, render_table
from belljar.cli.serving import add_config

if TYPE_CHECKING:
    from belljar.cli.opening import Commands


def register(commands: Commands) -> None:
    config = commands.add_parser("config", help="show the settings in force and where each comes from")
    add_config(config)
    add_json(config)
    config.set_defaults(handler=show)


async def show(args: argparse.Namespace) -> int:
    from belljar.settings import explain_settings

    found = explain_settings(file=args.config)
    if args.json:
        rows = {each.setting.key: {"value": each.value, "source": each.source} for each in found}
        print(render_json(rows))
    else:
        print(render_table(("SETTING", "VALUE", "FROM"), [(each.setting.key, each.value, each.source) for each in found]))
    return 0
