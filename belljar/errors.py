"""Every error Belljar raises, in one tree.

    BelljarError
    ├── InvalidInput            the caller asked for something malformed; nothing was changed
    │   ├── NotSupported        well formed, but this snapshot, template or host cannot do it
    │   ├── TooLarge            more bytes than are taken in one piece
    │   └── TooSlow             the request did not come in time
    ├── Unauthorized            no token, or none that is valid
    ├── Forbidden               a valid token that does not allow this
    ├── QuotaExceeded           the workspace may not have more; something of its own must go first
    ├── RateLimited             the workspace calls too often; nothing was done
    ├── NotFound                no such sandbox, template, snapshot, token, process or file
    │   ├── TemplateNotFound
    │   ├── SnapshotNotFound
    │   ├── SandboxNotFound
    │   ├── ProcessNotFound
    │   ├── ContextNotFound
    │   ├── FileMissing
    │   └── CommandNotFound
    ├── Conflict                it exists, but is in a state that does not allow this
    │   ├── AlreadyExists
    │   ├── SandboxBusy         another process is attached to this sandbox
    │   └── WrongState          for example resume of a sandbox that was killed
    ├── FileError               the guest's file system refused (permission, directory, full, read-only)
    │   ├── FileDenied
    │   ├── IsADirectory
    │   ├── NotADirectory
    │   └── DiskFull
    ├── HostError               this machine lacks something
    │   ├── HostMemoryShort
    │   ├── HostDiskShort
    │   ├── HostBusy            too many starts wait, or one took too long; nothing was created
    │   ├── ShuttingDown        the server is being stopped, and the call had no time to finish
    │   ├── HostSetup           a program, privilege or file that Belljar needs is missing
    │   └── SnapshotMismatch    made by another QEMU, accelerator or CPU model
    ├── BuildFailed             a template could not be built
    ├── ServerUnreachable       a client found no server; nothing was sent
    ├── AnswerLost              a client sent something, and no answer came back
    └── SandboxError            the sandbox itself broke
        ├── SandboxGone         the machine ended; carries the console's and QEMU's last words
        ├── StartFailed         a new machine ended before it could be used
        ├── AgentLost           the agent in the guest died or restarted; what it ran is lost to us
        ├── AgentProtocol       the guest sent what no agent sends
        ├── VmmRefused          the virtual machine monitor refused a command
        ├── PortClosed          nothing in the guest listens on that port
        └── DeadlineExceeded    no answer in time

`code` is stable and travels on every wire; `status` is what HTTP answers; `retry` says whether the same call may succeed later
("unknown": it was sent, and the answer was lost).
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

Retry = Literal["yes", "no", "unknown"]


class BelljarError(Exception):
    """Base of all errors. `message` says what happened, why, and what to do; `details` holds machine-readable facts."""

    code: ClassVar[str] = "internal"
    status: ClassVar[int] = 500
    retry: ClassVar[Retry] = "no"

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details = details


class InvalidInput(BelljarError):
    """The request is malformed or out of range. Nothing was changed."""

    code, status = "invalid_input", 400


class NotSupported(InvalidInput):
    """The request is well formed, but what it addresses cannot do it."""

    code, status = "not_supported", 422


class TooLarge(InvalidInput):
    """The request has more bytes than are taken in one piece."""

    code, status = "too_large", 413


class TooSlow(InvalidInput):
    """The request did not come in time."""

    code, status = "too_slow", 408


class Unauthorized(BelljarError):
    """No token came with the request, or none that is valid."""

    code, status = "unauthorized", 401


class Forbidden(BelljarError):
    """The token is valid, and does not allow this."""

    code, status = "forbidden", 403


class QuotaExceeded(BelljarError):
    """The workspace has as much as its quota allows; nothing was created."""

    code, status = "quota_exceeded", 429


class RateLimited(BelljarError):
    """The workspace calls more often than its quota allows; nothing was done."""

    code, status, retry = "rate_limited", 429, "yes"


class NotFound(BelljarError):
    """Nothing has that name or id."""

    code, status = "not_found", 404


class TemplateNotFound(NotFound):
    """No such template."""

    code = "template_not_found"


class SnapshotNotFound(NotFound):
    """No such snapshot."""

    code = "snapshot_not_found"


class SandboxNotFound(NotFound):
    """No such sandbox, or it has ended."""

    code = "sandbox_not_found"


class ProcessNotFound(NotFound):
    """No such process in this sandbox."""

    code = "process_not_found"


class ContextNotFound(NotFound):
    """No such code context in this sandbox."""

    code = "context_not_found"


class FileMissing(NotFound):
    """No such file or directory in the guest."""

    code = "file_not_found"


class CommandNotFound(NotFound):
    """The program to run does not exist or cannot be executed in the guest."""

    code, status = "command_not_found", 422


class Conflict(BelljarError):
    """The thing exists, but its state does not allow this."""

    code, status = "conflict", 409


class AlreadyExists(Conflict):
    """Something with that name is already there."""

    code = "already_exists"


class SandboxBusy(Conflict):
    """Another process is attached to this sandbox."""

    code, retry = "sandbox_busy", "yes"


class WrongState(Conflict):
    """The sandbox's state does not allow this move."""

    code = "wrong_state"


class FileError(BelljarError):
    """The guest's file system refused the operation."""

    code, status = "file_error", 422


class FileDenied(FileError):
    """The guest user may not do that, or the place is read-only."""

    code, status = "file_denied", 403


class IsADirectory(FileError):
    """A file was wanted, and the path names a directory."""

    code = "is_a_directory"


class NotADirectory(FileError):
    """A directory was wanted, and the path names something else."""

    code = "not_a_directory"


class DiskFull(FileError):
    """The sandbox's own disk is full."""

    code, status = "disk_full", 507


class HostError(BelljarError):
    """This machine lacks something that the request needs."""

    code, status = "host_error", 503


class HostMemoryShort(HostError):
    """Too little memory on the host; nothing was created."""

    code, status, retry = "host_memory_short", 507, "yes"


class HostDiskShort(HostError):
    """Too little disk on the host; nothing was created."""

    code, status, retry = "host_disk_short", 507, "yes"


class HostBusy(HostError):
    """Too many sandboxes are waiting to be started, or one was not ready in time; nothing was created."""

    code, retry = "host_busy", "yes"


class ShuttingDown(HostError):
    """The server is being stopped, and could not finish the call before."""

    code, retry = "shutting_down", "yes"


class HostSetup(HostError):
    """A program, privilege or file that Belljar needs on the host is missing."""

    code = "host_setup"


class SnapshotMismatch(HostError):
    """The snapshot was made by another QEMU, accelerator or CPU model than this host would restore it with."""

    code, status = "snapshot_mismatch", 409


class BuildFailed(BelljarError):
    """A template could not be built; the message names the step and its last output."""

    code = "build_failed"


class ServerUnreachable(BelljarError):
    """A client found no server where it looked; nothing was sent."""

    code, status, retry = "server_unreachable", 503, "yes"


class AnswerLost(BelljarError):
    """A client sent a request, and no answer that can be read came back."""

    code, status, retry = "answer_lost", 502, "unknown"


class SandboxError(BelljarError):
    """The sandbox itself broke."""

    code, status = "sandbox_error", 502


class SandboxGone(SandboxError):
    """The machine ended while it was in use."""

    code, status = "sandbox_gone", 410


class StartFailed(SandboxError):
    """A new machine ended before it could be used; nothing of it is left."""

    code, retry = "start_failed", "yes"


class AgentLost(SandboxError):
    """The agent in the guest died or was restarted; answers under way are lost."""

    code, retry = "agent_lost", "unknown"


class AgentProtocol(SandboxError):
    """The guest sent bytes that no agent sends; the session was ended."""

    code, retry = "agent_protocol", "unknown"


class VmmRefused(SandboxError):
    """The virtual machine monitor refused a command."""

    code = "vmm_refused"


class PortClosed(SandboxError):
    """Nothing in the guest listens on that port."""

    code, retry = "port_closed", "yes"


class DeadlineExceeded(SandboxError):
    """No answer before the deadline."""

    code, status, retry = "deadline_exceeded", 504, "unknown"


def _tree(cls: type[BelljarError]) -> dict[str, type[BelljarError]]:
    found = {cls.code: cls}
    for child in cls.__subclasses__():
        found.update(_tree(child))
    return found


BY_CODE: dict[str, type[BelljarError]] = _tree(BelljarError)


def from_code(code: str, message: str, details: dict[str, Any] | None = None) -> BelljarError:
    """The error that `code` names; an unknown code becomes a plain SandboxError, so that a newer peer stays readable."""
    error = BY_CODE.get(code, SandboxError)(message)
    error.details = dict(details or {})
    return error
