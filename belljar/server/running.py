"""The server as a process: listen, serve until told to stop, let go of the sandboxes."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator

import uvicorn

from belljar.errors import HostSetup, InvalidInput
from belljar.server.app import make_app
from belljar.server.auth import is_loopback
from belljar.server.protocol import InterimProtocol
from belljar.service.service import Service
from belljar.settings import Settings

# Calls under way when the server is told to stop get so long to end.
GRACE_S = 10
BACKLOG = 2048
# Longer than clients keep a connection they do not use, so that none of them writes into one that is just being closed.
KEEP_ALIVE_S = 75
# The largest WebSocket message. One is held in memory as a whole, so this times the connections is what they may cost.
MAX_MESSAGE_BYTES = 16 * 1024 * 1024
# A client that went away without a word is noticed after some two minutes of silence, also by a request that only waits.
PROBES = {socket.TCP_KEEPIDLE: 60, socket.TCP_KEEPINTVL: 15, socket.TCP_KEEPCNT: 4}


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: the command line has its own, and ends every command the same way."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(settings: Settings, *, dev: bool, say: Callable[[str], None]) -> None:
    """Serve until this task is cancelled. The first start says an admin token, which is never shown again."""
    if dev and not is_loopback(settings.host):
        raise InvalidInput(f"--dev lets anyone in, so it listens on loopback only, not on {settings.host}")
    with _listen(settings) as listener:
        service = await Service.open(settings)
        try:
            if not dev and not await service.access.list(None):
                token, _ = await service.access.mint("first admin", admin=True)
                say(f"admin token, shown only this once: {token}")
            host, port = listener.getsockname()[:2]
            shown = f"[{host}]" if ":" in host else host
            say(f"listening on http://{shown}:{port}" + (" without tokens (--dev)" if dev else ""))
            await _serve(service, listener, dev)
        finally:
            await service.aclose()


async def _serve(service: Service, listener: socket.socket, dev: bool) -> None:
    config = uvicorn.Config(
        make_app(service, dev=dev),
        http=InterimProtocol,
        ws="websockets-sansio",
        ws_max_size=MAX_MESSAGE_BYTES,
        ws_per_message_deflate=False,
        log_config=None,
        log_level="warning",
        access_log=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=GRACE_S,
    )
    server = _Server(config)
    running = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await asyncio.shield(running)
    except asyncio.CancelledError:
        server.should_exit = True
        await asyncio.wait([running], timeout=GRACE_S + 10)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def _listen(settings: Settings) -> socket.socket:
    try:
        found = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # what it accepts inherits these
        for option, value in PROBES.items():
            listener.setsockopt(socket.IPPROTO_TCP, option, value)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as problem:
        raise HostSetup(f"cannot listen on {settings.host} port {settings.port}: {problem.strerror}") from problem
    return listener
