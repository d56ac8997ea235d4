"""`belljar serve`: the HTTP server. Every setting is also an option of it."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from belljar.errors import HostSetup

if TYPE_CHECKING:
    from belljar.cli.opening import Commands
    from belljar.settings import Settings

# Where a process that stays does better with something else than the default, and nobody has said otherwise.
SERVER_DEFAULTS: dict[str, Any] = {"pool_size": 1}
# How an option's value is shown. The others are shown as VALUE.
METAVARS = {"home": "FOLDER", "recipes": "FOLDER", "host": "ADDRESS", "port": "N", "qemu": "PROGRAM"}


def register(commands: Commands) -> None:
    from belljar.settings import SETTINGS

    serve = commands.add_parser("serve", help="serve sandboxes over HTTP until it is told to stop; sandboxes live on")
    add_config(serve)
    for setting in SETTINGS:
        default = SERVER_DEFAULTS.get(setting.key, setting.default) if setting.key != "recipes" else "those of the checkout"
        option = f"--{setting.key.replace('_', '-')}"
        serve.add_argument(option, metavar=METAVARS.get(setting.key, "VALUE"), help=f"{setting.help} (default: {default})")
    serve.add_argument("--dev", action="store_true", help="let programs of this machine in without a token; on loopback only")
    serve.add_argument("--print-unit", action="store_true", help="print a systemd unit that runs this command line, and exit")
    serve.set_defaults(handler=serve_http)


def add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", metavar="FILE", help="configuration file in place of config.toml in the home")


def server_settings(args: argparse.Namespace) -> Settings:
    from belljar.settings import DEFAULT, SETTINGS, explain_settings, load_settings

    given = {setting.key: getattr(args, setting.key) for setting in SETTINGS}
    unsaid = {found.setting.key for found in explain_settings(overrides=given, file=args.config) if found.source == DEFAULT}
    given |= {key: value for key, value in SERVER_DEFAULTS.items() if key in unsaid}
    return load_settings(overrides=given, file=args.config)


async def serve_http(args: argparse.Namespace) -> int:
    import asyncio

    settings = server_settings(args)
    if args.print_unit:
        from belljar.cli.unit import render_unit

        print(render_unit(sys.argv, settings), end="")
        return 0
    try:
        from belljar.server.logbook import logging_to
        from belljar.server.running import serve
    except ModuleNotFoundError as missing:
        raise HostSetup(f"the server needs {missing.name}; install it with `pip install 'belljar[server]'`") from missing
    with logging_to(sys.stderr, settings.log_format, settings.log_level):
        try:
            await serve(settings, dev=args.dev, say=lambda line: print(line, flush=True))
        except asyncio.CancelledError:
            pass  # a signal: everything was let go in good order
    print("belljar: stopped; sandboxes live on", file=sys.stderr)
    return 0
