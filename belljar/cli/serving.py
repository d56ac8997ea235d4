"""`belljar serve`: the HTTP server."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from belljar.errors import HostSetup

if TYPE_CHECKING:
    from belljar.cli.opening import Commands


def register(commands: Commands) -> None:
    serve = commands.add_parser("serve", help="serve sandboxes over HTTP until it is told to stop; sandboxes live on")
    serve.add_argument("--host", metavar="ADDRESS", help="address to listen on (default: the setting host)")
    serve.add_argument("--port", metavar="N", help="port to listen on; 0 picks a free one (default: the setting port)")
    serve.add_argument("--dev", action="store_true", help="let programs of this machine in without a token; on loopback only")
    serve.set_defaults(handler=serve_http)


async def serve_http(args: argparse.Namespace) -> int:
    import asyncio
    import logging

    from belljar.settings import load_settings

    try:
        from belljar.server.running import serve
    except ModuleNotFoundError as missing:
        raise HostSetup(f"the server needs {missing.name}; install it with `pip install 'belljar[server]'`") from missing
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    settings = load_settings(overrides={"host": args.host, "port": args.port})
    try:
        await serve(settings, dev=args.dev, say=lambda line: print(line, flush=True))
    except asyncio.CancelledError:
        pass  # a signal: everything was let go in good order
    print("belljar: stopped; sandboxes live on", file=sys.stderr)
    return 0
