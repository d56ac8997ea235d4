"""TLS over any stream, from either side."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from pathlib import Path

from belljar.egress.streams import READ_SIZE, Stream


def client_context(ca_file: Path | None = None) -> ssl.SSLContext:
    """Verifies servers against the system's authorities, and those in `ca_file`. Reads files; run it in a thread."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    if ca_file is not None:
        context.load_verify_locations(ca_file)
    return context


class TlsStream:
    """A stream inside another one. One may read while another writes."""

    def __init__(self, lower: Stream, context: ssl.SSLContext, *, host: str, server_side: bool) -> None:
        self._lower = lower
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        name = None if server_side else host
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=server_side, server_hostname=name)
        self._flushing = asyncio.Lock()

    async def handshake(self) -> None:
        """Raises ssl.SSLError, with the reason, and ConnectionError."""
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                await self._flush()
                await self._fill()
            except ssl.SSLError:
                with suppress(Exception):
                    await self._flush()  # the alert tells the other side why
                raise
        await self._flush()

    async def read(self, size: int = READ_SIZE) -> bytes:
        while True:
            try:
                data = self._tls.read(size)
                await self._flush()
                return data
            except ssl.SSLWantReadError:
                await self._flush()
                await self._fill()
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                # Many servers close without saying so first. Whether something is missing, HTTP's own lengths tell.
                return b""

    async def write(self, data: bytes) -> None:
        if data:
            self._tls.write(data)
            await self._flush()

    async def end(self) -> None:
        with suppress(ssl.SSLError):
            self._tls.unwrap()
        await self._flush()
        await self._lower.end()

    async def abort(self) -> None:
        await self._lower.abort()

    async def _fill(self) -> None:
        data = await self._lower.read(READ_SIZE)
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()

    async def _flush(self) -> None:
        async with self._flushing:
            if self._outgoing.pending:
                await self._lower.write(self._outgoing.read())
