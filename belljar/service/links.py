"""Signed links to one port of one sandbox. Whoever has such a link may look until it expires, and needs no account for it.

A link is its own record: what it allows is written in it, and an HMAC over that with a key of the home keeps it from being changed.

    base64url(JSON [workspace, sandbox, port, issued, expires, paths]) "." base64url(HMAC-SHA256)
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import re
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote_to_bytes

from belljar.errors import HostSetup, InvalidInput, Unauthorized

KEY_BYTES = 32
MAX_LINK_CHARS = 4000
DEFAULT_TTL_S, MAX_TTL_S = 3600.0, 7 * 86400.0
# A link must also fit into a cookie.
MAX_PATHS, MAX_PATHS_CHARS = 16, 1024
PATH = re.compile(r"/[!-~]*", re.ASCII)
STILL_ENCODED = re.compile(rb"%[0-9a-fA-F]{2}")
NOT_VALID = "the link to this preview is not valid"


@dataclass(frozen=True)
class Link:
    """What a link allows. Without `paths` it is good for all of them."""

    workspace: str
    sandbox_id: str
    port: int
    issued_at: float
    expires_at: float
    paths: tuple[str, ...] = ()

    def allows(self, raw_path: bytes) -> bool:
        """Whether a path, as it was sent, lies under one of the link's. What servers may read in two ways does not."""
        if not self.paths:
            return True
        path = unquote_to_bytes(raw_path)
        segments = [segment.partition(b";")[0] for segment in path.split(b"/")[1:]]
        twofold = b"\\" in path or b"//" in path or STILL_ENCODED.search(path) or re.search(rb"%2[fF]", raw_path)
        if twofold or any(segment in (b".", b"..") for segment in segments):
            return False
        return any(path == allowed or path.startswith(allowed.rstrip(b"/") + b"/") for allowed in map(str.encode, self.paths))


class Links:
    """Makes links and reads them, with the key of one home."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def sign(self, link: Link) -> str:
        fields = [link.workspace, link.sandbox_id, link.port, link.issued_at, link.expires_at, list(link.paths)]
        body = _encode(json.dumps(fields, separators=(",", ":")).encode())
        return f"{body}.{_encode(self._seal(body))}"

    def read(self, token: str) -> Link:
        """The link, if it was made here and has not expired. All that is wrong with one is told the same, but for its age."""
        body, _, seal = token.partition(".")
        # As text: a seal has several spellings that decode to the same bytes, and only the one that was handed out is good.
        expected = _encode(self._seal(body))
        if len(token) > MAX_LINK_CHARS or not hmac.compare_digest(seal.encode("utf-8", "replace"), expected.encode()):
            raise Unauthorized(NOT_VALID)
        fields = base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))
        workspace, sandbox_id, port, issued_at, expires_at, paths = json.loads(fields)
        if expires_at <= time.time():
            raise Unauthorized("the link to this preview has expired; ask for a new one")
        return Link(workspace, sandbox_id, port, issued_at, expires_at, tuple(paths))

    def _seal(self, body: str) -> bytes:
        return hmac.digest(self._key, b"belljar preview link\n" + body.encode("utf-8", "surrogatepass"), hashlib.sha256)


def check_paths(paths: list[str]) -> tuple[str, ...]:
    if len(paths) > MAX_PATHS or sum(map(len, paths)) > MAX_PATHS_CHARS:
        raise InvalidInput(f"paths may be {MAX_PATHS}, of {MAX_PATHS_CHARS} characters together")
    for path in paths:
        if not PATH.fullmatch(path) or "?" in path or "#" in path or "%" in path:
            raise InvalidInput("each of paths must begin with '/' and have plain characters only, without '?', '#' and '%'")
    return tuple(paths)


def load_key(path: Path) -> bytes:
    """The home's key, made when it is not there. Several processes may come first at once; one of them wins."""
    try:
        if not path.exists():
            _make_key(path)
        key = path.read_bytes()
    except OSError as problem:
        raise HostSetup(f"the key for links cannot be read or made: {problem.strerror}; check that the home is yours") from problem
    if len(key) != KEY_BYTES:
        raise HostSetup(f"{path.name} is damaged; remove it, and a new one is made. Links that were made with the old one end")
    return key


def _make_key(path: Path) -> None:
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(secrets.token_bytes(KEY_BYTES))
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)
        except FileExistsError:
            pass
    finally:
        draft.unlink(missing_ok=True)


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
