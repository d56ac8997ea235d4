"""From a name that was allowed to a socket that is connected, with nothing in between that could lead elsewhere.

The addresses of a name are looked up here, each is judged, and the socket is connected to one that passed: the name is never
handed to anything that would look it up a second time.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from collections.abc import Sequence
from typing import Literal

from belljar.egress.outlet import SERVER_RULE, Outlet
from belljar.egress.policy import Address, Decision
from belljar.egress.resolver import Resolved, ResolveError

CONNECT_S = 20.0
Failure = Literal["nxdomain", "refused", "unreachable", "timeout", "failed"]
VERDICTS: dict[int, tuple[Failure, str]] = {
    errno.ECONNREFUSED: ("refused", "the server refused the connection"),
    errno.ECONNRESET: ("refused", "the server reset the connection"),
    errno.ENETUNREACH: ("unreachable", "there is no way to that network"),
    errno.EHOSTUNREACH: ("unreachable", "there is no way to that host"),
    errno.ETIMEDOUT: ("timeout", "the server did not answer"),
}


class NoWay(Exception):
    """No connection, and why. `denied`: the rules forbid it; else it was allowed and did not come about."""

    def __init__(self, verdict: Failure, rule: str, reason: str, *, denied: bool) -> None:
        super().__init__(reason)
        self.verdict, self.rule, self.reason, self.denied = verdict, rule, reason, denied


def denied(decision: Decision) -> NoWay:
    return NoWay("refused", decision.rule, decision.reason, denied=True)


async def find_addresses(outlet: Outlet, name: str, port: int | None) -> tuple[Resolved, list[Address]]:
    """What a name leads to, and those of its addresses that may be connected to. NoWay if there is none."""
    try:
        resolved = await outlet.resolver.resolve(name)
    except ResolveError as problem:
        raise NoWay(problem.verdict, SERVER_RULE, problem.reason, denied=False) from None
    for alias in resolved.names[1:]:
        if denial := outlet.policy.find_alias_denial(alias, port):
            raise denied(denial)
    barriers = [outlet.find_barrier(address, port) for address in resolved.addresses]
    permitted = [address for address, barrier in zip(resolved.addresses, barriers, strict=True) if barrier is None]
    if not permitted:
        raise denied(next(barrier for barrier in barriers if barrier is not None))
    return resolved, permitted


async def connect(addresses: Sequence[Address], port: int) -> tuple[socket.socket, Address]:
    """A socket to the first of the addresses that answers."""
    until = time.monotonic() + CONNECT_S
    problem = NoWay("failed", SERVER_RULE, "there is no address", denied=False)
    for place, address in enumerate(addresses):
        share_s = (until - time.monotonic()) / (len(addresses) - place)
        try:
            return await _connect(address, port, share_s), address
        except TimeoutError:
            problem = NoWay("timeout", SERVER_RULE, "the server did not answer in time", denied=False)
        except OSError as error:
            verdict, reason = VERDICTS.get(error.errno or 0, ("failed", error.strerror or "the connection failed"))
            problem = NoWay(verdict, SERVER_RULE, reason, denied=False)
    raise problem


async def _connect(address: Address, port: int, timeout_s: float) -> socket.socket:
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        async with asyncio.timeout(timeout_s):
            await asyncio.get_running_loop().sock_connect(sock, (str(address), port))
    except BaseException:
        sock.close()
        raise
    return sock
