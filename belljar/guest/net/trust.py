"""Which authorities programs of the guest trust: the system's bundle, and one of the sandbox's own if the host has given it one.

Most libraries bring a list of authorities of their own and look at one environment variable each to use another. All of them are
set for every process from the start, as processes that run already could not be given them later; what they point to may change.
"""

# Paths stay strings, as in the rest of the agent.
# ruff: noqa: PTH103, PTH105, PTH108, PTH118, PTH120, PTH211

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from typing import Final

from belljar.guest.failure import Failure, invalid

BUNDLE: Final = "etc/ssl/certs/ca-certificates.crt"
OWN: Final = "etc/ssl/belljar.pem"  # always there, and empty if there is none: Node.js complains about a missing file
LISTED: Final = "usr/local/share/ca-certificates/belljar.crt"  # so that update-ca-certificates keeps it

_MAX_PEM: Final = 64 * 1024
_MAX_BUNDLE: Final = 8 * 1024 * 1024
_PEM: Final = re.compile(r"(-----BEGIN CERTIFICATE-----\n[A-Za-z0-9+/=\n]+-----END CERTIFICATE-----\n)+")


class Trust:
    def __init__(self, root: str = "/") -> None:
        self._root = root

    def environment(self) -> dict[str, str]:
        bundle, own = self._path(BUNDLE), self._path(OWN)
        names = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT", "GIT_SSL_CAINFO")
        return {**dict.fromkeys(names, bundle), "NODE_EXTRA_CA_CERTS": own}

    def set_up(self) -> None:
        """At boot. An image without a bundle gets an empty one: a variable that points to nothing breaks programs."""
        for path in (self._path(BUNDLE), self._path(OWN)):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))

    def replace(self, pem: str | None) -> None:
        """Trust this authority, and no longer the one before."""
        if pem is not None and (len(pem) > _MAX_PEM or not _PEM.fullmatch(pem)):
            raise invalid("`pem` must be certificates in PEM form, and nothing else")
        before = self._read(OWN)
        bundle = self._read(BUNDLE)
        if before:
            bundle = bundle.replace(before, "")
        if bundle and not bundle.endswith("\n"):
            bundle += "\n"
        self._write(BUNDLE, bundle + (pem or ""))
        self._write(OWN, pem or "")
        listed = self._path(LISTED)
        with suppress(FileNotFoundError):
            os.unlink(listed)
        if pem is not None:
            os.makedirs(os.path.dirname(listed), exist_ok=True)
            os.symlink(self._path(OWN), listed)

    def _path(self, name: str) -> str:
        return os.path.join(self._root, name)

    def _read(self, name: str) -> str:
        """Without waiting, whatever somebody has put in its place."""
        try:
            fd = os.open(self._path(name), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return ""
        with os.fdopen(fd, "rb") as file:
            facts = os.fstat(fd)
            if not stat.S_ISREG(facts.st_mode) or facts.st_size > _MAX_BUNDLE:
                raise Failure("conflict", f"/{name} is not a list of certificates any more")
            return file.read(_MAX_BUNDLE).decode("ascii", "surrogateescape")

    def _write(self, name: str, text: str) -> None:
        """In one step: programs that start now read the old file or the new one."""
        path = self._path(name)
        scratch = f"{path}.belljar"
        with suppress(FileNotFoundError):
            os.unlink(scratch)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        fd = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        with os.fdopen(fd, "wb") as file:
            file.write(text.encode("ascii", "surrogateescape"))
        os.replace(scratch, path)
