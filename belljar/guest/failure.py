"""How the agent says no: one exception that becomes a RESET, and the table from errno to code.

The codes are those of the host's `belljar.errors`, which this package may not import.
"""

from __future__ import annotations

import errno
import os
from typing import Any, Final

BY_ERRNO: Final[dict[int, str]] = {
    errno.ENOENT: "file_not_found",
    errno.EACCES: "file_denied",
    errno.EPERM: "file_denied",
    errno.EROFS: "file_denied",
    errno.EISDIR: "is_a_directory",
    errno.ENOTDIR: "not_a_directory",
    errno.EEXIST: "already_exists",
    errno.ENOTEMPTY: "conflict",
    errno.EBUSY: "conflict",
    errno.ETXTBSY: "conflict",
    errno.ENOSPC: "disk_full",
    errno.EDQUOT: "disk_full",
    errno.EFBIG: "disk_full",
    errno.ENAMETOOLONG: "invalid_input",
    errno.EINVAL: "invalid_input",
    errno.ELOOP: "invalid_input",
    errno.ENXIO: "invalid_input",
}


class Failure(Exception):
    """The request cannot be done; `code` tells the host which of its errors to raise."""

    def __init__(self, code: str, message: str, **details: Any) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.details = details


def invalid(message: str) -> Failure:
    return Failure("invalid_input", message)


def from_os_error(error: OSError, what: str) -> Failure:
    """`what` names the thing acted on, as the caller named it."""
    number = error.errno or 0
    reason = os.strerror(number) if number else str(error)
    return Failure(BY_ERRNO.get(number, "file_error"), f"{what}: {reason}", errno=errno.errorcode.get(number, str(number)))
