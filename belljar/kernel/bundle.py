"""A MIME bundle as it travels: a list of parts, and their bytes one after another."""

from __future__ import annotations

import base64
import binascii
import json
import math
from typing import Any

from belljar.wire.pipe import MAX_BLOB

# Sent as bytes, though libraries also hand them over as base64.
_BINARY = ("image/", "audio/", "video/", "application/pdf", "application/octet-stream")
_MAX_DEPTH = 50


def pack(data: dict[str, Any]) -> tuple[list[dict[str, Any]], bytes]:
    """The parts of a bundle, and their bytes. What is too long to be sent is replaced by a note."""
    parts: list[dict[str, Any]] = []
    chunks: list[bytes] = []
    room = MAX_BLOB - 4096  # for notes
    for mime, value in data.items():
        if value is None:
            continue
        kind, content = _render(str(mime), value)
        if len(content) > room:
            note = f"[{mime} left out: its {len(content)} bytes are more than fit one output, which is {MAX_BLOB}]"
            mime, kind, content = "text/plain", "text", note[:1024].encode()
            if any(part["mime"] == mime for part in parts):
                continue
        room -= len(content)
        parts.append({"mime": str(mime), "size": len(content), "kind": kind})
        chunks.append(content)
    return parts, b"".join(chunks)


def _render(mime: str, value: Any) -> tuple[str, bytes]:
    if mime == "application/json" or mime.endswith("+json") or isinstance(value, (dict, list, tuple)):
        return "json", render_json(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        if mime.startswith("text/") or mime == "image/svg+xml":
            return "text", bytes(value).decode("utf-8", "backslashreplace").encode()
        return "binary", bytes(value)
    text = value if isinstance(value, str) else str(value)
    if mime.startswith(_BINARY) and mime != "image/svg+xml":
        try:
            return "binary", base64.b64decode(text, validate=False)
        except (binascii.Error, ValueError):
            pass
    return "text", text.encode("utf-8", "backslashreplace")


def render_json(value: Any) -> bytes:
    """JSON of whatever a library calls JSON: NaN becomes null, and what has no JSON becomes its text."""
    try:
        return json.dumps(value, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError):
        return json.dumps(_plain(value, _MAX_DEPTH)).encode()


def _plain(value: Any, depth: int) -> Any:
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if depth and isinstance(value, dict):
        return {str(key): _plain(item, depth - 1) for key, item in value.items()}
    if depth and isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item, depth - 1) for item in value]
    if hasattr(value, "tolist"):  # numpy's numbers and arrays
        return _plain(value.tolist(), depth - 1) if depth else None
    return str(value)
