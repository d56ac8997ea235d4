"""Signed links: what they allow, and what they cannot be turned into."""

from __future__ import annotations

import base64
import json
import threading
import time
from pathlib import Path

import pytest

from belljar.errors import HostSetup, InvalidInput, Unauthorized
from belljar.service.links import Link, Links, check_paths, load_key

KEY = b"k" * 32
LINK = Link("w", "sb-1", 80, 1.0, time.time() + 86_400, ("/a",))


def test_a_link_says_what_was_signed() -> None:
    assert Links(KEY).read(Links(KEY).sign(LINK)) == LINK


def test_no_other_text_is_a_link() -> None:
    token = Links(KEY).sign(LINK)
    body, _, seal = token.partition(".")
    fields = json.loads(base64.urlsafe_b64decode(body + "=="))
    fields[2] = 81
    other_port = base64.urlsafe_b64encode(json.dumps(fields).encode()).decode().rstrip("=")
    wrong = ["", ".", body, f"{body}.", f".{seal}", f"{other_port}.{seal}", f"{token}.{seal}", f"{token}A", token[:-4]]
    wrong += [Links(b"x" * 32).sign(LINK), token.replace(".", ".."), "\ud800.x", "ü.ü", "a" * 9000]
    for text in wrong:
        with pytest.raises(Unauthorized):
            Links(KEY).read(text)


def test_every_single_changed_character_is_noticed() -> None:
    token = Links(KEY).sign(LINK)
    for place in range(len(token)):
        changed = token[:place] + ("A" if token[place] != "A" else "B") + token[place + 1 :]
        with pytest.raises(Unauthorized):
            Links(KEY).read(changed)


def test_a_seal_has_one_spelling() -> None:
    token = Links(KEY).sign(LINK)
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    # The last letter has two bits that decode to nothing.
    same_bytes = token[:-1] + letters[letters.index(token[-1]) ^ 1]
    for other in (same_bytes, f"{token}=", f"{token}=="):
        with pytest.raises(Unauthorized):
            Links(KEY).read(other)


def test_a_link_expires() -> None:
    with pytest.raises(Unauthorized, match="expired"):
        Links(KEY).read(Links(KEY).sign(Link("w", "sb-1", 80, 1.0, time.time() - 0.001)))


def test_the_root_covers_everything_and_no_paths_do_too() -> None:
    for paths in ((), ("/",), ("/x", "/")):
        assert Link("w", "s", 1, 0, 0, paths).allows(b"/any/thing")
    assert Link("w", "s", 1, 0, 0).allows(b"/../strange//%2e")
    assert not Link("w", "s", 1, 0, 0, ("/",)).allows(b"/../strange")


@pytest.mark.parametrize("paths", [["a"], [""], ["/a b"], ["/ü"], ["/a\n"], ["/" + "x" * 1024], ["/"] * 17])
def test_paths_that_cannot_be_are_refused(paths: list[str]) -> None:
    with pytest.raises(InvalidInput):
        check_paths(paths)


def test_the_key_is_made_once_and_is_the_owners_alone(tmp_path: Path) -> None:
    path, found = tmp_path / "preview.key", []
    threads = [threading.Thread(target=lambda: found.append(load_key(path))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1 and len(found[0]) == 32 and len(found) == 8
    assert path.stat().st_mode & 0o777 == 0o600 and list(tmp_path.iterdir()) == [path]
    path.write_bytes(b"short")
    with pytest.raises(HostSetup, match="damaged"):
        load_key(path)
    with pytest.raises(HostSetup):
        load_key(tmp_path / "nowhere" / "preview.key")
