"""Where the server is, and with which key. An argument wins over the environment, Belljar's variables over PandaStack's."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from belljar.sdk.errors import InvalidArgument

LOCAL_URL = "http://127.0.0.1:8080"
URL_VARIABLES = ("BELLJAR_API_URL", "PANDASTACK_API")
KEY_VARIABLES = ("BELLJAR_API_KEY", "PANDASTACK_API_KEY")
PREVIEW_VARIABLES = ("BELLJAR_PREVIEW_HOST", "PANDASTACK_PREVIEW_HOST")
RETRY_VARIABLES = ("BELLJAR_MAX_CREATE_RETRY_SECONDS", "PANDASTACK_MAX_CREATE_RETRY_SECONDS")


@dataclass(frozen=True)
class Place:
    """A server, and the key for it; a server that was started with --dev needs none."""

    url: str
    key: str | None = field(repr=False)

    @property
    def api(self) -> str:
        """What paths are appended to."""
        return self.url if self.url.endswith("/v1") else f"{self.url}/v1"

    @property
    def local(self) -> bool:
        """On this machine: no proxy has anything to do with it."""
        return is_loopback(urlsplit(self.url).hostname or "")


def find_place(url: str | None, key: str | None) -> Place:
    chosen = (url if url is not None else variable(URL_VARIABLES) or LOCAL_URL).strip().rstrip("/")
    try:
        parts = urlsplit(chosen)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        usable = False
    if not usable:
        raise InvalidArgument(f"{chosen!r} is no address of a server; give something like {LOCAL_URL} or https://api.example.com")
    key = key if key is not None else variable(KEY_VARIABLES)
    if key is not None and not (key.isascii() and key.isprintable()):
        raise InvalidArgument("the API key has characters that no key has; was a line break copied with it?")
    return Place(chosen, key or None)


def variable(names: tuple[str, ...]) -> str | None:
    return next((value for name in names if (value := os.environ.get(name, "").strip())), None)


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
