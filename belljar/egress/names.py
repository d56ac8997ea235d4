"""Host names in the one form in which they are compared: lower case, ASCII, no dot at the end."""

from __future__ import annotations

import re

MAX_NAME_CHARS = 253
# Underscores occur in real names (SRV owners, some CDNs), although host names in the narrow sense have none.
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?", re.ASCII)
# `2130706433`, `0x7f.1` and `127.1` are addresses to some parsers. No top-level domain is a number, so none of them is a name.
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*", re.ASCII)


def parse_name(text: str) -> str:
    """The name in its one form. ValueError says why it is none."""
    name = text.lower().removesuffix(".") if text.isascii() else _to_ascii(text)
    if not name:
        raise ValueError("it is empty")
    if len(name) > MAX_NAME_CHARS:
        raise ValueError(f"it has more than {MAX_NAME_CHARS} characters")
    labels = name.split(".")
    if not all(_LABEL.fullmatch(label) for label in labels):
        raise ValueError("it is not made of letters, digits and hyphens between dots")
    if _NUMBER.fullmatch(labels[-1]):
        raise ValueError("it ends in a number, as addresses do")
    return name


def _to_ascii(text: str) -> str:
    import idna  # not needed for nearly all names

    try:
        return idna.encode(text, uts46=True).decode("ascii").removesuffix(".")
    except idna.IDNAError as problem:
        raise ValueError(f"it is no international name ({problem})") from None
