"""Many channels over one byte stream: the state machine, without I/O.

Why it is built so
------------------
One virtio-serial port carries everything between a sandbox and its host, and neither end can be trusted to behave: the
guest runs whatever a user or a model wrote, and even an honest guest is frozen, copied and thawed in the middle of a
write. From that follow the four ideas here.

*Sessions, not connections.* The port never closes when a snapshot is taken; two children of one parent wake up with the
same half-sent frame in their memory. So a session starts with a mark in the byte stream (see `frames`), HELLO from the
host and ACK from the guest, and whatever either side still held of an older session is thrown away when it sees the
mark. Nothing has to be numbered, acknowledged or replayed. The host need not wait for the ACK before it opens channels:
HELLO and what follows it arrive in order. An agent that was restarted says so with ANNOUNCE, because its host would
otherwise wait for answers that nobody owes.

*Credit, so that nothing grows.* Each side may send WINDOW on a channel before the other has consumed any of it. What
the receiver holds is therefore bounded by channels times window, whatever the peer does, and one slow reader delays
only its own channel. A frame costs its header too: otherwise a flood of tiny messages would be nearly free for the
sender and dear for the receiver. Credit to be granted is kept as one number per channel and turned into a frame only
when the transport asks for output: a peer that sends without ever reading cannot make our output queue grow. For the
same reason only the host pings, and a guest remembers one ping at most.

*Only the host opens channels*, with ids that grow. So "never opened" and "already over" are one comparison, and there
is no table of the dead: frames for a channel that is over are ignored (they crossed our END or RESET on the wire),
frames for one that never was end the session.

*Control frames queue, data does not.* A MESSAGE or END that finds no credit waits in its channel, in order; their
number is up to our own side. `send_data` instead takes what fits and says how much that was, so the producer (a pipe, a
file) feels the back-pressure and stops reading.
"""

from __future__ import annotations

import os
import struct
from collections import deque
from typing import Any, Final

from belljar.wire.frames import (
    ACK,
    ANNOUNCE,
    CREDIT,
    DATA,
    END,
    HEADER_SIZE,
    HELLO,
    MAX_PAYLOAD,
    MESSAGE,
    NONCE_SIZE,
    OPEN,
    PING,
    PONG,
    RESET,
    STDIN,
    Decoder,
    Event,
    WireError,
    encode_header,
    encode_json,
    encode_mark,
    split_data,
)

WINDOW: Final = 256 * 1024
MAX_CHANNELS: Final = 1024
HIGH_WATER: Final = 256 * 1024  # of output that the transport has not taken; producers of data wait above it
MAX_CREDIT: Final = 1 << 31

# Granting is put off until this much was consumed: one CREDIT frame for several DATA frames.
_GRANT_FROM: Final = WINDOW // 4


def new_nonce() -> bytes:
    return os.urandom(NONCE_SIZE // 2).hex().encode("ascii")


class _Channel:
    __slots__ = ("backlog", "credit", "ended", "owed", "peer_ended", "window")

    def __init__(self) -> None:
        self.credit = WINDOW  # we may send
        self.window = WINDOW  # the peer may send
        self.owed = 0  # consumed by us, not granted yet
        self.ended = False
        self.peer_ended = False
        self.backlog: deque[tuple[int, bytes]] = deque()  # MESSAGE and END that wait for credit


class Mux:
    """One end of the wire. `receive` bytes, `take_output` bytes; the rest speaks of channels."""

    def __init__(self, *, host: bool) -> None:
        self._host = host
        self._decoder = Decoder(self._starts_session)
        self._channels: dict[int, _Channel] = {}
        self._last = 0
        self._output: deque[bytes] = deque()
        self._grants: dict[int, int] = {}
        self._pong: bytes | None = None
        self._nonce = b""
        self.output_size = 0
        self.live = False  # the peer has answered, or opened, the current session

    # -- sessions

    def hello(self) -> None:
        """Host: start a session. Channels may be opened at once; what arrives before the ACK is dropped."""
        self._start_session(new_nonce())
        self._queue(encode_mark(HELLO, self._nonce))
        self._decoder.forget()

    def repeat_hello(self) -> None:
        """Host: the same HELLO again, for an agent that may have missed it. Not after a channel was opened: it would end it."""
        self._queue(encode_mark(HELLO, self._nonce))

    def announce(self) -> None:
        """Guest: whatever the host believes about this agent is void; it should say HELLO."""
        self._start_session(new_nonce())
        self._queue(encode_mark(ANNOUNCE, self._nonce))
        self._decoder.forget()

    def _start_session(self, nonce: bytes) -> None:
        self._channels.clear()
        self._output.clear()
        self._grants.clear()
        self._pong, self._nonce = None, nonce
        if not self._host:  # the host goes on counting: its users may still hold channels of an older session
            self._last = 0
        self.output_size, self.live = 0, False

    def _starts_session(self, kind: int, nonce: bytes) -> bool:
        return kind == ACK and nonce == self._nonce if self._host else kind == HELLO

    # -- receiving

    @property
    def buffered(self) -> int:
        """Bytes of an unfinished frame; never more than MAX_HELD."""
        return self._decoder.buffered

    def receive(self, data: bytes) -> list[Event]:
        """What happened. WireError ends the session: the caller must `hello` or `announce` again, or hang up."""
        events = [event for event in self._decoder.feed(data) if self._accept(event)]
        if self.live and not self._decoder.framed:
            raise WireError("a broken resync mark")
        return events

    def _accept(self, event: Event) -> bool:
        """Whether the event is of any interest to our user."""
        kind = event.kind
        if kind >= HELLO:
            return self._accept_mark(event)
        if kind in (PING, PONG):
            return self._accept_ping(event)
        channel = self._channels.get(event.channel)
        if channel is None:
            return self._accept_unknown(event)
        if kind == OPEN:
            raise WireError(f"channel {event.channel} was opened twice")
        if kind == CREDIT:
            channel.credit += struct.unpack(">I", event.payload)[0]
            if channel.credit > MAX_CREDIT:
                raise WireError(f"absurd credit on channel {event.channel}")
            self._send_backlog(event.channel, channel)
            return True
        if kind == RESET:
            self._forget(event.channel)
            return True
        if channel.peer_ended:
            raise WireError(f"channel {event.channel} goes on after its end")
        if kind == END:
            channel.peer_ended = True
            self._close_if_over(event.channel, channel)
            return True
        channel.window -= len(event.payload) + HEADER_SIZE
        if channel.window < 0:
            raise WireError(f"channel {event.channel} was sent more than its credit")
        if kind == DATA and (event.stream == STDIN) == self._host:
            raise WireError(f"channel {event.channel} carries stream {event.stream} the wrong way")
        return True

    def _accept_mark(self, event: Event) -> bool:
        if self._host:
            if event.kind == ANNOUNCE:
                self.live = False
                return True
            if self._starts_session(event.kind, event.payload):
                news, self.live = not self.live, True
                return news
            if self.live:
                raise WireError("a resync mark that nobody asked for")
            return False  # an answer to somebody else's HELLO: ours is still to come
        if event.kind == HELLO:
            self._start_session(event.payload)
            self._queue(encode_mark(ACK, event.payload))
            self.live = True
            return True
        return False

    def _accept_ping(self, event: Event) -> bool:
        if (event.kind == PING) == self._host or event.channel:
            raise WireError("a ping the wrong way")
        if not self._host:
            self._pong = event.payload
        return self._host

    def _accept_unknown(self, event: Event) -> bool:
        if event.kind != OPEN:
            if not 0 < event.channel <= self._last:
                raise WireError(f"channel {event.channel} was never opened")
            return False
        if self._host or event.channel <= self._last or len(self._channels) >= MAX_CHANNELS:
            raise WireError(f"channel {event.channel} may not be opened")
        self._last = event.channel
        self._channels[event.channel] = _Channel()
        return True

    # -- sending

    def open(self, request: dict[str, Any]) -> int:
        """Host: a new channel, its request queued. ValueError if the request is too long or too many are open."""
        if len(self._channels) >= MAX_CHANNELS:
            raise ValueError(f"{MAX_CHANNELS} channels are open already")
        payload = encode_json(request)
        self._last += 1
        self._channels[self._last] = _Channel()
        self._queue(encode_header(OPEN, self._last, len(payload)), payload)
        return self._last

    def is_open(self, number: int) -> bool:
        return number in self._channels

    def room(self, number: int) -> int:
        """How much data `send_data` would take now."""
        channel = self._channels.get(number)
        if channel is None or channel.ended or channel.backlog or self.output_size >= HIGH_WATER:
            return 0
        return max(0, min(channel.credit - HEADER_SIZE, MAX_PAYLOAD))

    def send_data(self, number: int, data: bytes, stream: int) -> int:
        """Queue as much of `data` as credit and output queue allow; returns how much."""
        sent = 0
        while sent < len(data) and (room := self.room(number)):
            whole = not sent and len(data) <= room
            for payload in split_data(data if whole else data[sent : sent + room], room):
                channel = self._channels[number]
                if channel.credit < len(payload) + HEADER_SIZE:
                    return sent  # pieces around a MAGIC cost a header each
                channel.credit -= len(payload) + HEADER_SIZE
                self._queue(encode_header(DATA, number, len(payload), stream), payload)
                sent += len(payload)
        return sent

    def send_message(self, number: int, body: dict[str, Any]) -> None:
        self._send_ordered(number, MESSAGE, encode_json(body))

    def send_end(self, number: int) -> None:
        self._send_ordered(number, END, b"")

    def has_backlog(self, number: int) -> bool:
        channel = self._channels.get(number)
        return channel is not None and bool(channel.backlog)

    def _send_ordered(self, number: int, kind: int, payload: bytes) -> None:
        channel = self._channels.get(number)
        if channel is None or channel.ended:
            return
        channel.ended = kind == END
        channel.backlog.append((kind, payload))
        self._send_backlog(number, channel)

    def _send_backlog(self, number: int, channel: _Channel) -> None:
        while channel.backlog:
            kind, payload = channel.backlog[0]
            cost = len(payload) + HEADER_SIZE if kind == MESSAGE else 0
            if cost > channel.credit:
                return
            channel.credit -= cost
            channel.backlog.popleft()
            self._queue(encode_header(kind, number, len(payload)), payload)
        self._close_if_over(number, channel)

    def reset(self, number: int, code: str, message: str, details: dict[str, Any] | None = None) -> None:
        """End a channel at once, both ways. Nothing happens if it is over already."""
        if number not in self._channels:
            return
        self._forget(number)
        body = {"code": code, "message": message[:4096], "details": details or {}}
        try:
            payload = encode_json(body)
        except ValueError:
            payload = encode_json({**body, "details": {}})
        self._queue(encode_header(RESET, number, len(payload)), payload)

    def consumed(self, number: int, size: int) -> None:
        """A DATA or MESSAGE payload of `size` bytes was used up; its room is granted to the peer again."""
        channel = self._channels.get(number)
        if channel is None or channel.peer_ended:
            return
        channel.owed += size + HEADER_SIZE
        if channel.owed >= _GRANT_FROM:
            channel.window += channel.owed
            self._grants[number] = self._grants.get(number, 0) + channel.owed
            channel.owed = 0

    def ping(self, token: bytes) -> None:
        self._queue(encode_header(PING, 0, len(token)), token)

    def _close_if_over(self, number: int, channel: _Channel) -> None:
        if channel.ended and channel.peer_ended and not channel.backlog:
            self._forget(number)

    def _forget(self, number: int) -> None:
        self._channels.pop(number, None)
        self._grants.pop(number, None)

    # -- output

    def _queue(self, *parts: bytes) -> None:
        for part in parts:
            self._output.append(part)
            self.output_size += len(part)

    @property
    def has_output(self) -> bool:
        return bool(self._output or self._grants or self._pong)

    def take_output(self) -> bytes:
        """Everything to be sent now. Session marks lead, so credit goes behind what is queued."""
        if self._pong is not None:
            self._queue(encode_header(PONG, 0, len(self._pong)), self._pong)
            self._pong = None
        for number, amount in self._grants.items():
            self._queue(encode_header(CREDIT, number, 4), struct.pack(">I", amount))
        self._grants.clear()
        output = b"".join(self._output)
        self._output.clear()
        self.output_size = 0
        return output
