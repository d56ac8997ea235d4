"""uvicorn inside a test, for what is about its protocols."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn


@asynccontextmanager
async def serving(config: uvicorn.Config) -> AsyncIterator[int]:
    """A server on a free port, which is yielded."""
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        running = asyncio.create_task(server._serve(sockets=[listener]))
        yield listener.getsockname()[1]
        server.should_exit = True
        await running
