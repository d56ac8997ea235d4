"""What a route promises: its parameters, its body, its answers and its errors. Declared beside the handler, see `declaring.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from starlette.requests import HTTPConnection

from belljar.errors import (
    AgentLost,
    AgentProtocol,
    BelljarError,
    CommandNotFound,
    DeadlineExceeded,
    DiskFull,
    FileDenied,
    FileError,
    FileMissing,
    Forbidden,
    HostBusy,
    HostDiskShort,
    HostError,
    HostMemoryShort,
    HostSetup,
    InvalidInput,
    IsADirectory,
    NotADirectory,
    NotSupported,
    QuotaExceeded,
    RateLimited,
    SandboxBusy,
    SandboxError,
    SandboxGone,
    SandboxNotFound,
    SnapshotMismatch,
    StartFailed,
    TooLarge,
    TooSlow,
    Unauthorized,
    VmmRefused,
    WrongState,
)
from belljar.server.shapes import Shape, record

Errors = tuple[type[BelljarError], ...]

# Where a request's operation and its checked query are found in the scope.
OPERATION, QUERY = "belljar.operation", "belljar.query"

KIB, MIB = 1024, 1024 * 1024
MAX_JSON_BYTES = MIB
# A cell may have 4 MiB, and JSON may need two bytes for one and more for some.
MAX_CODE_JSON_BYTES = 16 * MIB

# Groups of errors that come together. A route names what else it may answer.
OF_A_SANDBOX: Errors = (SandboxNotFound,)
OF_A_START: Errors = (
    QuotaExceeded,
    HostBusy,
    HostMemoryShort,
    HostDiskShort,
    HostError,
    HostSetup,
    SnapshotMismatch,
    StartFailed,
    VmmRefused,
    SandboxError,
)
OF_A_MACHINE: Errors = (
    *OF_A_SANDBOX,
    *OF_A_START,
    WrongState,
    SandboxBusy,
    SandboxGone,
    AgentLost,
    AgentProtocol,
    DeadlineExceeded,
)
OF_A_GUEST: Errors = OF_A_MACHINE
OF_A_COMMAND: Errors = (*OF_A_GUEST, CommandNotFound, NotADirectory, FileMissing, FileDenied, FileError, DiskFull)
OF_A_FILE: Errors = (*OF_A_GUEST, FileMissing, FileDenied, IsADirectory, NotADirectory, DiskFull, FileError)
OF_A_CONTEXT: Errors = (*OF_A_GUEST, NotSupported)
OF_A_CALLER: Errors = (InvalidInput, Unauthorized, Forbidden, RateLimited)
OF_A_BODY: Errors = (TooLarge, TooSlow)


SILENCE = "Server-sent events; a comment comes when there is none for a while."


@dataclass(frozen=True)
class Media:
    """One form that a body can have."""

    type: str
    shape: Shape
    about: str = ""


def raw(about: str, media_type: str = "application/octet-stream") -> Media:
    """Bytes, streamed."""
    return Media(media_type, {"type": "string", "format": "binary"}, about)


def plain(about: str, media_type: str = "text/plain") -> Media:
    return Media(media_type, {"type": "string"}, about)


def events(about: str = "", /, **data: Shape) -> Media:
    """Server-sent events: the name of each, and the shape of its data."""
    shape: Shape = {"anyOf": [_event(name, one) for name, one in data.items()]} if data else {"type": "object"}
    return Media("text/event-stream", {**shape, "x-events": data}, about or SILENCE)


def _event(name: str, data: Shape) -> Shape:
    inner = {"type": "string", "contentMediaType": "application/json", "contentSchema": data}
    return {"type": "object", "properties": {"event": {"const": name}, "data": inner}, "required": ["event", "data"]}


@dataclass(frozen=True)
class Operation:
    """One method on one path, as its callers may rely on it."""

    method: str
    path: str
    summary: str
    about: str = ""
    query: Shape = field(default_factory=lambda: record({}))
    body: Shape | Media | None = None
    max_body: int = MAX_JSON_BYTES
    status: int = 200
    gives: tuple[Media, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    errors: Errors = ()
    public: bool = False
    socket: bool = False
    places: Mapping[str, Shape] = field(default_factory=dict)

    @property
    def all_errors(self) -> Errors:
        common = () if self.public else OF_A_CALLER
        body = OF_A_BODY if self.body is not None else ()
        return tuple(dict.fromkeys((*common, *body, *self.errors)))

    @property
    def streams(self) -> bool:
        return any(media.type == "text/event-stream" or media.shape.get("format") == "binary" for media in self.gives)


def operation_of(connection: HTTPConnection) -> Operation | None:
    """What was declared of the route that answers this request."""
    found: Operation | None = connection.scope.get(OPERATION)
    return found
