"""net.connect: the host connects to a port of the guest."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Collection
from typing import Final

from belljar.guest.channel import Channel, Lost
from belljar.guest.failure import Failure, invalid
from belljar.guest.net.names import OWN_ADDRESS
from belljar.guest.net.ports import list_listeners
from belljar.guest.net.relay import Relay, reset_socket
from belljar.guest.params import Params

MAX_CONNECTIONS: Final = 512

_CONNECT_S: Final = 10.0
_SHOWN_PORTS: Final = 20
# Where a server may listen that was told no address, "localhost" (which some take for IPv6), or the host's name.
_ADDRESSES: Final = ("127.0.0.1", "::1", OWN_ADDRESS)


class Inbound:
    def __init__(self, own: Collection[str]) -> None:
        self._own = own
        self._count = 0

    async def connect(self, channel: Channel, params: Params) -> None:
        port = params.integer("port", 0, 0, 65535)
        if not port:
            raise invalid("`port` must be a whole number from 1 to 65535")
        addresses = _parse_addresses(params.find_text("address"))
        if self._count >= MAX_CONNECTIONS:
            raise Failure("conflict", f"{MAX_CONNECTIONS} connections to ports of this sandbox are open already")
        self._count += 1
        try:
            sock = await self._reach(addresses, port)
            if not channel.open:
                reset_socket(sock)
                raise Lost
        except BaseException:
            self._count -= 1
            raise
        channel.message({"connected": True})
        Relay(channel, sock, self._closed)

    def _closed(self) -> None:
        self._count -= 1

    async def _reach(self, addresses: tuple[str, ...], port: int) -> socket.socket:
        loop = asyncio.get_running_loop()
        for address in addresses:
            sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
            sock.setblocking(False)
            try:
                async with asyncio.timeout(_CONNECT_S):
                    await loop.sock_connect(sock, (address, port))
            except (OSError, TimeoutError):
                sock.close()
            except BaseException:
                sock.close()
                raise
            else:
                if sock.getsockname()[:2] != sock.getpeername()[:2]:
                    return sock
                sock.close()  # a port that nobody listens on was picked as our own, and TCP connects it to itself
        raise self._port_closed(port, addresses)

    def _port_closed(self, port: int, addresses: tuple[str, ...]) -> Failure:
        listening = sorted({listener.port for listener in list_listeners(self._own)})
        shown = ", ".join(map(str, listening[:_SHOWN_PORTS])) + (", ..." if len(listening) > _SHOWN_PORTS else "")
        there = f"these ports are listened on: {shown}" if listening else "no port is listened on"
        where = f" at {addresses[0]}" if len(addresses) == 1 else ""
        message = f"nothing listens on port {port}{where} in the sandbox; {there}"
        return Failure("port_closed", message, port=port, listening=listening[:_SHOWN_PORTS])


def _parse_addresses(text: str | None) -> tuple[str, ...]:
    """Only addresses of the guest itself: the agent's own connections must not leave it."""
    if text is None:
        return _ADDRESSES
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        raise invalid(f"`address` cannot be {text[:100]!r}") from None
    if not address.is_loopback and text != OWN_ADDRESS:
        raise invalid(f"`address` must be one of the sandbox itself: 127.0.0.0/8, ::1 or {OWN_ADDRESS}")
    return (str(address),)
