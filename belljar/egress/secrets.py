"""Headers that the host adds to a sandbox's requests, so that code in it uses a key that it never sees."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from belljar.egress.names import parse_name
from belljar.errors import InvalidInput, NotFound

HTTPS_PORT = 443
MAX_SECRETS = 64
MAX_VALUE_CHARS = 8192
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}", re.ASCII)
# What frames a message or belongs to one connection is not for anyone to set from outside.
_FRAMING = ("host", "content-length", "transfer-encoding", "te", "trailer", "expect")
_OF_A_CONNECTION = ("connection", "upgrade", "keep-alive", "proxy-connection")
_RESERVED = frozenset((*_FRAMING, *_OF_A_CONNECTION))


class Secrets:
    """The headers of one sandbox, by host and port. Values are shown to nobody: not in `repr`, not in `shown`."""

    def __init__(self, stored: Mapping[str, Mapping[str, str]] | None = None) -> None:
        self._headers = {host: dict(headers) for host, headers in (stored or {}).items()}

    def __repr__(self) -> str:
        return f"Secrets({self.shown()!r})"

    def __bool__(self) -> bool:
        return bool(self._headers)

    def headers(self, name: str, port: int) -> dict[str, str]:
        """What to add to requests for that host; empty for nearly all."""
        return self._headers.get(f"{name}:{port}", {})

    def shown(self) -> list[dict[str, str]]:
        return [
            {"host": host.removesuffix(f":{HTTPS_PORT}"), "header": header}
            for host, headers in self._headers.items()
            for header in headers
        ]

    def to_json(self) -> dict[str, dict[str, str]]:
        """For the records, which are the owner's alone."""
        return {host: dict(headers) for host, headers in self._headers.items()}

    def with_secret(self, host: object, header: object, value: object) -> Secrets:
        """These and one more; a header that is there already gets the new value."""
        place, name = _parse_host(host), _parse_header(header)
        if not isinstance(value, str) or not 0 < len(value) <= MAX_VALUE_CHARS:
            raise InvalidInput(f"the value of {name} must be text of 1 to {MAX_VALUE_CHARS} characters")
        if not value.isprintable() or not value.isascii() or value != value.strip():
            raise InvalidInput(f"the value of {name} has characters that no header can carry, or spaces around it")
        changed = Secrets(self._headers)
        headers = changed._headers.setdefault(place, {})
        _remove(headers, name)
        headers[name] = value
        if sum(map(len, changed._headers.values())) > MAX_SECRETS:
            raise InvalidInput(f"a sandbox may have at most {MAX_SECRETS} secrets")
        return changed

    def without(self, host: object, header: object) -> Secrets:
        place, name = _parse_host(host), _parse_header(header)
        changed = Secrets(self._headers)
        headers = changed._headers.get(place, {})
        if not _remove(headers, name):
            raise NotFound(f"there is no secret for the header {name} of {place.removesuffix(f':{HTTPS_PORT}')}")
        if not headers:
            del changed._headers[place]
        return changed


def parse_secrets(values: object) -> Secrets:
    """A list of {"host", "header", "value"}."""
    if isinstance(values, Secrets):
        return values
    if not isinstance(values, Iterable) or isinstance(values, str | bytes | Mapping):
        raise InvalidInput("egress_secrets must be a list of objects with host, header and value")
    secrets = Secrets()
    for value in values:
        fields: Mapping[str, Any] = value if isinstance(value, Mapping) else {}
        if set(fields) != {"host", "header", "value"}:
            raise InvalidInput("each of egress_secrets must be an object with host, header and value")
        secrets = secrets.with_secret(fields["host"], fields["header"], fields["value"])
    return secrets


def _parse_host(host: object) -> str:
    """`host` or `host:port` as `host:port`."""
    if not isinstance(host, str):
        raise InvalidInput("the host of a secret must be text")
    name, colon, port = host.partition(":")
    if colon and (not port.isascii() or not port.isdecimal() or len(port) > 5 or not 1 <= int(port) <= 65535):
        raise InvalidInput(f"the host of a secret is a name, or name:port, not {host[:80]!r}")
    try:
        return f"{parse_name(name)}:{int(port) if colon else HTTPS_PORT}"
    except ValueError as problem:
        raise InvalidInput(f"the host of a secret must be one name, and {host[:80]!r} is none: {problem}") from None


def _parse_header(header: object) -> str:
    if not isinstance(header, str) or not _TOKEN.fullmatch(header):
        raise InvalidInput("the header of a secret must be a header's name, like Authorization")
    if header.lower() in _RESERVED:
        raise InvalidInput(f"the header {header} belongs to the connection and cannot be set")
    return header


def _remove(headers: dict[str, str], name: str) -> bool:
    same = [known for known in headers if known.lower() == name.lower()]
    for known in same:
        del headers[known]
    return bool(same)
