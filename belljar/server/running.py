"""The server as a process: listen, serve until told to stop, let go of the sandboxes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import uvicorn

from belljar.errors import HostSetup, InvalidInput
from belljar.server.app import make_app
from belljar.server.auth import is_loopback
from belljar.server.closing import Closing
from belljar.server.protocol import InterimProtocol
from belljar.server.socketprotocol import BoundedSocketProtocol
from belljar.server.sockets import MAX_PREVIEW_MESSAGE_BYTES, PING_EVERY_S, SILENT_S
from belljar.service.service import Service
from belljar.settings import Settings
from belljar.store.holding import hold
from belljar.store.layout import Layout

log = logging.getLogger(__name__)

# What a call that was given up gets to clean up after itself.
CLEAN_UP_S = 10.0
BACKLOG = 2048
# Longer than clients keep a connection they do not use, so that none of them writes into one that is just being closed.
KEEP_ALIVE_S = 75
THREADS = 32
# Shells start programs with 1024, which connections of a few sandboxes would use up.
DESCRIPTORS = 65536
# A client that went away without a word is noticed after some two minutes of silence, also by a request that only waits.
PROBES = {socket.TCP_KEEPIDLE: 60, socket.TCP_KEEPINTVL: 15, socket.TCP_KEEPCNT: 4}


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: the command line has its own, and ends every command the same way."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(settings: Settings, *, dev: bool, say: Callable[[str], None]) -> None:
    """Serve until this task is cancelled. The first start says an admin token, which is never shown again."""
    _raise_limit()
    # Python's own few threads would all be busy with a handful of creates, and every other call's look at its token would wait.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS, "worker"))
    layout = Layout(settings.home)
    layout.prepare()
    with hold(layout.server_lock, "a server serves this home") as held, _listen(settings) as listener:
        # What it is bound to, and not what it was called: a name may mean any address.
        if dev and not is_loopback(listener.getsockname()[0]):
            raise InvalidInput(f"--dev lets anyone in, so it listens on loopback only, not on {settings.host}")
        service = await Service.open(settings)
        try:
            if not dev and not await service.access.list(None):
                token, _ = await service.access.mint("first admin", admin=True)
                say(f"admin token, shown only this once: {token}")
            host, port = listener.getsockname()[:2]
            address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
            held.tell(address)
            say(f"listening on {address}" + (" without tokens (--dev)" if dev else ""))
            log.info("listening", extra={"fields": {"address": address, "home": str(settings.home), "pid": os.getpid()}})
            notify_manager("READY=1")
            await _serve(service, listener, dev)
        finally:
            await service.aclose()


async def _serve(service: Service, listener: socket.socket, dev: bool) -> None:
    closing, grace_s = Closing(), service.settings.shutdown_grace_s
    config = uvicorn.Config(
        make_app(service, closing, dev=dev),
        http=InterimProtocol,
        ws=BoundedSocketProtocol,
        ws_max_size=MAX_PREVIEW_MESSAGE_BYTES,
        ws_ping_interval=PING_EVERY_S,
        ws_ping_timeout=SILENT_S,
        ws_per_message_deflate=False,
        log_config=None,
        log_level="warning",
        access_log=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=int(grace_s + CLEAN_UP_S),
    )
    server = _Server(config)
    running = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await asyncio.shield(running)
    except asyncio.CancelledError:
        notify_manager("STOPPING=1")
        log.info("stopping", extra={"fields": {"grace_s": grace_s}})
        server.should_exit = True
        closing.begun.set()
        await asyncio.wait([running], timeout=grace_s)
        closing.over.set()
        await asyncio.wait([running], timeout=CLEAN_UP_S + 5)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def _raise_limit() -> None:
    """More open files, as far as this process may grant them to itself."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def notify_manager(state: str) -> None:
    """Tell systemd, if it started us and wants to know."""
    if not (address := os.environ.get("NOTIFY_SOCKET")):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as manager, contextlib.suppress(OSError):
        manager.connect("\0" + address[1:] if address.startswith("@") else address)
        manager.send(state.encode())


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
