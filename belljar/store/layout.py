"""Where everything lies under $BELLJAR_HOME. The only module that joins these paths.

    kernel/<digest>/        vmlinuz, initrd, manifest.json
    roots/<digest>/         root.ext4, manifest.json: a built root image
    templates/<digest>/     a baked template: memory, devices.state, disk.raw, root.ext4 (hard link), manifest.json
    names/<name>            the digest that a template's name means now
    sandboxes/<id>/         one directory per sandbox
    snapshots/<id>/         one directory per snapshot
    cache/                  what can be made again: trees/<digest>/ of root builds, kernel files
    locks/                  one empty file per lock, never removed while Belljar may run
    tmp/                    work under way; finished work is renamed out of it
    belljar.db, host.json   records; what was found out about this machine
    preview.key             what links to previews are signed with

A name from outside becomes a path only here, and only if it is one plain component.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from pathlib import Path

from belljar.errors import HostSetup, InvalidInput

_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths of one store. Nothing is created until `prepare`."""

    home: Path

    @property
    def kernels(self) -> Path:
        return self.home / "kernel"

    @property
    def roots(self) -> Path:
        return self.home / "roots"

    @property
    def templates(self) -> Path:
        return self.home / "templates"

    @property
    def names(self) -> Path:
        return self.home / "names"

    @property
    def sandboxes(self) -> Path:
        return self.home / "sandboxes"

    @property
    def snapshots(self) -> Path:
        return self.home / "snapshots"

    @property
    def cache(self) -> Path:
        return self.home / "cache"

    @property
    def trees(self) -> Path:
        return self.cache / "trees"

    @property
    def locks(self) -> Path:
        return self.home / "locks"

    @property
    def tmp(self) -> Path:
        return self.home / "tmp"

    @property
    def database(self) -> Path:
        return self.home / "belljar.db"

    @property
    def host_facts(self) -> Path:
        return self.home / "host.json"

    @property
    def preview_key(self) -> Path:
        return self.home / "preview.key"

    def kernel(self, digest: str) -> Path:
        return self.kernels / part("kernel digest", digest)

    def kernel_files(self, digest: str) -> Path:
        return self.cache / "kernel-files" / part("kernel files digest", digest)

    def root(self, digest: str) -> Path:
        return self.roots / part("root digest", digest)

    def tree(self, digest: str) -> Path:
        return self.trees / part("tree digest", digest)

    def template(self, digest: str) -> Path:
        return self.templates / part("template digest", digest)

    def name(self, name: str) -> Path:
        return self.names / part("template name", name)

    def sandbox(self, sandbox_id: str) -> Path:
        return self.sandboxes / part("sandbox id", sandbox_id)

    def snapshot(self, snapshot_id: str) -> Path:
        return self.snapshots / part("snapshot id", snapshot_id)

    def lock(self, name: str) -> Path:
        return self.locks / part("lock name", name)

    @property
    def server_lock(self) -> Path:
        """Held by the one server of this home."""
        return self.lock("server")

    def probe(self) -> None:
        """Raises OSError if nothing can be written here."""
        file = self.tmp / f"probe-{secrets.token_hex(8)}"
        try:
            file.write_bytes(b"x" * 4096)
        finally:
            file.unlink(missing_ok=True)

    def prepare(self) -> None:
        """Create the directories. Only the owner may look inside: memory files hold what users computed."""
        try:
            self._prepare()
        except OSError as problem:
            what = f"cannot use {self.home} as a home: {problem.strerror}"
            raise HostSetup(f"{what}; check that it is yours and can be written to") from problem

    def _prepare(self) -> None:
        self.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        for directory in (
            self.kernels,
            self.roots,
            self.templates,
            self.names,
            self.trees,
            self.cache / "kernel-files",
            self.locks,
            self.tmp,
        ):
            directory.mkdir(parents=True, exist_ok=True, mode=0o755)
        for directory in (self.sandboxes, self.snapshots):
            directory.mkdir(exist_ok=True, mode=0o700)
            directory.chmod(0o700)


def part(what: str, text: str) -> str:
    """`text` if it can be one path component that means nothing special, else InvalidInput."""
    if not _PART.fullmatch(text):
        shown = repr(text if len(text) <= 40 else text[:40] + "…")
        rule = "letters, digits, '.', '_' and '-', at most 128 of them, the first a letter or digit"
        raise InvalidInput(f"{what} {shown} is not valid: {rule}")
    return text
