"""The network as the agent has it: the parts, put together, and the operations they offer."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import Any

from belljar.guest.channel import Channel
from belljar.guest.context import Context
from belljar.guest.failure import Failure
from belljar.guest.net.asks import Asks
from belljar.guest.net.inbound import Inbound
from belljar.guest.net.names import Names
from belljar.guest.net.nameservice import NameService
from belljar.guest.net.outbound import Outbound
from belljar.guest.net.ports import describe_ports
from belljar.guest.net.setup import Sockets
from belljar.guest.params import Params

Answer = dict[str, Any] | None


class Network:
    """Without sockets (a kernel that could not be set up, tests on a host) only what comes from the host works."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._asks = Asks()
        self._own: set[str] = set()  # inodes of listeners that are none of the user's
        self._outbound: Outbound | None = None
        if context.sockets is not None:
            self._attend(context.sockets)
        self._inbound = Inbound(self._own)

    def _attend(self, sockets: Sockets) -> None:
        names = Names()
        service = NameService(self._asks, names, sockets.datagrams)
        if sockets.streams is not None:
            self._own.add(str(os.fstat(sockets.streams.fileno()).st_ino))
            self._outbound = Outbound(self._asks, names, sockets.streams, service.serve_stream)

    def operations(self) -> dict[str, Callable[[Channel, Params], Answer | Awaitable[Answer]]]:
        return {
            "net.serve": self._asks.serve,
            "net.accept": self._accept,
            "net.ports": self._ports,
            "net.connect": self._inbound.connect,
            "net.trust": self._trust,
        }

    def _accept(self, channel: Channel, params: Params) -> None:
        if self._outbound is None:
            raise Failure("not_supported", "this guest has no network")
        self._outbound.accept(channel, params)

    async def _ports(self, channel: Channel, params: Params) -> Answer:
        root = self._context.accounts.get("root")
        return await self._context.workers.run(root, describe_ports, self._context.accounts, self._own)

    async def _trust(self, channel: Channel, params: Params) -> Answer:
        root = self._context.accounts.get("root")
        await self._context.workers.run(root, self._context.trust.replace, params.find_text("pem"))
        return {}
