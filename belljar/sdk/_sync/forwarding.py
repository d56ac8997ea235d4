"""A port of this machine that leads to a port of a sandbox. Written by hand: `_async/forwarding.py` does it, in a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager

from belljar.sdk._async.forwarding import forwarding as forwarding_in_loop
from belljar.sdk._async.transport import AsyncTransport
from belljar.sdk._sync.transport import Transport


@contextmanager
def forwarding(transport: Transport, path: str, local_port: int) -> Iterator[int]:
    """Listens while it is entered; gives the port. `path` is where the server makes connections."""
    started: Future[tuple[int, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def serve() -> None:
        same_place = AsyncTransport(transport.place, transport.timeout, transport.retry_s, None)
        async with forwarding_in_loop(same_place, path, local_port) as port:
            leave = asyncio.Event()
            started.set_result((port, asyncio.get_running_loop(), leave))
            await leave.wait()

    def run() -> None:
        try:
            asyncio.run(serve())
        except Exception as problem:
            if started.done():
                raise
            started.set_exception(problem)

    thread = threading.Thread(target=run, name="belljar-forward", daemon=True)
    thread.start()
    port, loop, leave = started.result()
    try:
        yield port
    finally:
        loop.call_soon_threadsafe(leave.set)
        thread.join()
