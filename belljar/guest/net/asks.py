"""What the agent asks the host: may this name be resolved, may this connection be made.

The host opens `net.serve` once per session; asks go out on it as messages, and verdicts come back. While no host serves, as in the
moments after a restore, asks wait a little. Everything is bounded: the number of asks without a verdict, and the time of each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from belljar.guest.channel import Channel
from belljar.guest.failure import Failure, invalid
from belljar.guest.params import Params

MAX_ASKS: Final = 256
HOLD_S: Final = 5.0  # without a host
DEADLINE_S: Final = 60.0  # with one

UNSERVED: Final = "unserved"
TIMEOUT: Final = "timeout"


class Verdict(NamedTuple):
    kind: str
    reason: str = ""
    ttl: int = 0


OnVerdict = Callable[[Verdict], None]


class _Ask:
    __slots__ = ("body", "on_verdict", "timer")

    def __init__(self, body: dict[str, Any], on_verdict: OnVerdict) -> None:
        self.body = body
        self.on_verdict = on_verdict
        self.timer: asyncio.TimerHandle | None = None


class Asks:
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._channel: Channel | None = None
        self._pending: dict[int, _Ask] = {}
        self._last = 0

    def serve(self, channel: Channel, params: Params) -> None:
        """net.serve: from now on this channel brings the verdicts. What waits is asked at once."""
        older, self._channel = self._channel, channel
        if older is not None:
            older.disconnect()
            older.fail(Failure("conflict", "another net.serve has taken over"))
        channel.on_message = self._on_message
        channel.on_left = lambda by_host: self._unserved(channel)
        channel.on_end = lambda: self._ended(channel)
        for number, ask in self._pending.items():
            self._send(number, ask, channel)

    def ask(self, body: dict[str, Any], on_verdict: OnVerdict) -> int | None:
        """The number of the new ask; None if too many wait already."""
        if len(self._pending) >= MAX_ASKS:
            return None
        self._last += 1
        ask = self._pending[self._last] = _Ask(body, on_verdict)
        if self._channel is not None:
            self._send(self._last, ask, self._channel)
        else:
            self._arm(self._last, ask, HOLD_S, Verdict(UNSERVED, "no host serves the network"))
        return self._last

    def take(self, number: int) -> bool:
        """The host has connected for this ask; False if nobody waits for it any more."""
        ask = self._pending.pop(number, None)
        if ask is None:
            return False
        _disarm(ask)
        return True

    def _send(self, number: int, ask: _Ask, channel: Channel) -> None:
        channel.message({"ask": number, **ask.body})
        self._arm(number, ask, DEADLINE_S, Verdict(TIMEOUT, "the host gave no verdict in time"))

    def _arm(self, number: int, ask: _Ask, seconds: float, verdict: Verdict) -> None:
        _disarm(ask)
        ask.timer = self._loop.call_later(seconds, self._give_up, number, verdict)

    def _give_up(self, number: int, verdict: Verdict) -> None:
        if self._channel is not None and not self._channel.is_stuck:  # a host that does not read must not make us grow
            self._channel.message({"drop": number})
        self._settle(number, verdict)

    def _settle(self, number: int, verdict: Verdict) -> None:
        ask = self._pending.pop(number, None)
        if ask is not None:
            _disarm(ask)
            ask.on_verdict(verdict)

    def _on_message(self, body: dict[str, Any]) -> None:
        number, kind, reason, ttl = body.get("ask"), body.get("verdict"), body.get("reason"), body.get("ttl")
        if not isinstance(number, int) or not isinstance(kind, str):
            raise invalid("a verdict needs `ask` and `verdict`")
        text = reason if isinstance(reason, str) else ""
        self._settle(number, Verdict(kind, text, ttl if isinstance(ttl, int) and 0 <= ttl < 1 << 31 else 0))

    def _ended(self, channel: Channel) -> None:
        channel.disconnect()
        channel.end()
        self._unserved(channel)

    def _unserved(self, channel: Channel) -> None:
        if self._channel is channel:
            self._channel = None
            for number, ask in self._pending.items():
                self._arm(number, ask, HOLD_S, Verdict(UNSERVED, "no host serves the network"))


def _disarm(ask: _Ask) -> None:
    if ask.timer is not None:
        ask.timer.cancel()
        ask.timer = None
