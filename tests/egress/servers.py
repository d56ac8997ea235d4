"""Servers on loopback for connections to go to."""

from __future__ import annotations

import asyncio
import datetime
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Servers:
    """Starts servers that end with the test."""

    def __init__(self) -> None:
        self._running: list[asyncio.Server] = []
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self, handler: Handler, tls: ssl.SSLContext | None = None) -> int:
        """The port of a new server."""

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._writers.add(writer)
            try:
                await handler(reader, writer)
            except (ConnectionError, asyncio.IncompleteReadError):
                pass
            finally:
                self._writers.discard(writer)
                writer.close()

        server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=tls)
        self._running.append(server)
        port: int = server.sockets[0].getsockname()[1]
        return port

    async def echo(self) -> int:
        return await self.start(echo)

    async def stop(self) -> None:
        for server in self._running:
            server.close()
        for writer in list(self._writers):
            writer.transport.abort()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Sends everything back, and ends when the other side does."""
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()


class TestAuthority:
    """An authority for servers of tests; `file` is what trusts them."""

    __test__ = False

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, "authority of tests")])
        builder = self._builder(self._name, self._key.public_key())
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        self._certificate = builder.sign(self._key, hashes.SHA256())
        self.file = folder / "authority.pem"
        self.file.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def context(self, host: str) -> ssl.SSLContext:
        """For a server that is `host`."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(x509.Name([]), key.public_key())
        names = x509.SubjectAlternativeName([x509.DNSName(host)])
        certificate = builder.add_extension(names, critical=True).sign(self._key, hashes.SHA256())
        file = self._folder / f"{host}.pem"
        pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        file.write_bytes(key.private_bytes(pem, form, serialization.NoEncryption()) + certificate.public_bytes(pem))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        return context

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateBuilder(self._name, subject, key, x509.random_serial_number())
        return builder.not_valid_before(now - datetime.timedelta(days=1)).not_valid_after(now + datetime.timedelta(days=2))
