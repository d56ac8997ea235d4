"""Addresses under which ports of a sandbox can be seen from outside. Pure."""

from __future__ import annotations

from urllib.parse import urlsplit

from belljar.sdk.environment import PREVIEW_VARIABLES, is_loopback, variable
from belljar.sdk.requests import check_port


def preview_url(api_url: str, override: str | None, sandbox_id: str, port: int, scheme: str | None) -> str:
    """`{port}-{id}.{host}`; the host is the API's without a leading `api.`, with its port, and `localhost` for this machine."""
    check_port(port)
    parts = urlsplit(api_url)
    host = parts.hostname or "localhost"
    name = "localhost" if is_loopback(host) else host.removeprefix("api.")
    suffix = override or variable(PREVIEW_VARIABLES) or (f"{name}:{parts.port}" if parts.port else name)
    return f"{scheme or parts.scheme or 'https'}://{port}-{sandbox_id}.{suffix.strip().lstrip('.')}"
