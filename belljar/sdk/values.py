"""Plain values that calls return. Built from what the API sends; fields that it does not send have quiet defaults."""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Fields = Mapping[str, Any]


def items_of(found: object) -> list[dict[str, Any]]:
    """Of a list that comes bare, or as `items` of an object."""
    items = found.get("items") if isinstance(found, dict) else found
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


@dataclass(frozen=True)
class ExecResult:
    """A command that has ended. `truncated`: it wrote more than was kept."""

    stdout: str
    stderr: str
    exit_code: int
    duration_ms: int = 0
    truncated: bool = False

    @classmethod
    def from_dict(cls, data: Fields) -> ExecResult:
        return cls(
            stdout=str(data.get("stdout") or ""),
            stderr=str(data.get("stderr") or ""),
            exit_code=int(data.get("exit_code", data.get("exit", 0))),
            duration_ms=int(data.get("duration_ms") or 0),
            truncated=bool(data.get("truncated")),
        )

    @property
    def text(self) -> str:
        return self.stdout


@dataclass(frozen=True)
class FileInfo:
    """A file or folder of a sandbox. `mode` is a letter (f, d, l, o), `permissions` are octal."""

    name: str
    path: str
    is_dir: bool
    size: int = 0
    mode: str = ""
    mtime: int = 0
    permissions: str = ""
    owner: str = ""

    @classmethod
    def from_dict(cls, data: Fields, parent: str = "") -> FileInfo:
        name = str(data.get("name") or "")
        return cls(
            name=name,
            path=str(data.get("path") or (f"{parent.rstrip('/')}/{name}" if parent else name)),
            is_dir=bool(data.get("is_dir")),
            size=int(data.get("size") or 0),
            mode=str(data.get("mode") or ""),
            mtime=int(data.get("mtime") or 0),
            permissions=str(data.get("permissions") or ""),
            owner=str(data.get("owner") or ""),
        )


@dataclass(frozen=True)
class FileChange:
    """A change under a watched path. `source` is where something moved came from; `overflow` means that changes were lost."""

    type: str
    path: str
    source: str | None = None

    @classmethod
    def from_dict(cls, data: Fields) -> FileChange:
        return cls(str(data.get("type") or ""), str(data.get("path") or ""), data.get("source", data.get("from")))


@dataclass(frozen=True)
class ContextInfo:
    """A code context as a list shows it."""

    id: str
    language: str
    state: str = ""
    cells: int = 0
    queued: int = 0
    default: bool = False
    created_at: str | None = None

    @classmethod
    def from_dict(cls, data: Fields) -> ContextInfo:
        return cls(
            id=str(data["id"]),
            language=str(data.get("language") or ""),
            state=str(data.get("state") or ""),
            cells=int(data.get("cells") or 0),
            queued=int(data.get("queued") or 0),
            default=bool(data.get("default")),
            created_at=data.get("created_at"),
        )


@dataclass(frozen=True)
class Variable:
    """A name that cells have defined."""

    name: str
    type: str
    shape: str | None = None
    size_bytes: int | None = None
    preview: str = ""

    @classmethod
    def from_dict(cls, data: Fields) -> Variable:
        return cls(
            str(data.get("name") or ""),
            str(data.get("type") or ""),
            data.get("shape"),
            data.get("size_bytes"),
            str(data.get("preview") or ""),
        )


class Snapshot(str):
    """A snapshot's id, which is also its name in calls; what else is known of it are attributes."""

    id: str
    sandbox_id: str | None
    template: str | None
    size_bytes: int | None
    created_at: str | None
    metadata: dict[str, str]

    @classmethod
    def from_dict(cls, data: Fields) -> Snapshot:
        snapshot = cls(data["id"])
        snapshot.id = str(snapshot)
        snapshot.sandbox_id, snapshot.template = data.get("sandbox_id"), data.get("template")
        snapshot.size_bytes, snapshot.created_at = data.get("size_bytes"), data.get("created_at")
        snapshot.metadata = dict(data.get("metadata") or {})
        return snapshot


@dataclass(frozen=True)
class Template:
    """What sandboxes are created from. `run` says what `Sandbox.run` takes: "code" or "shell"."""

    name: str
    rootfs_path: str | None = None
    size_bytes: int | None = None
    cpu: int | None = None
    memory_mb: int | None = None
    is_global: bool | None = None
    workspace: str | None = None
    label: str | None = None
    description: str | None = None
    category: str | None = None
    base: str | None = None
    tools: builtins.list[str] | None = None
    meta: dict[str, Any] | None = None
    aliases: tuple[str, ...] = ()
    run: str = "shell"

    @classmethod
    def from_dict(cls, data: Fields) -> Template:
        known = {name: data[name] for name in cls.__dataclass_fields__ if data.get(name) is not None}
        return cls(**{"name": "", **known, "aliases": tuple(data.get("aliases") or ())})


@dataclass(frozen=True)
class Token:
    """A key. `token` itself is known only once, when it is made."""

    prefix: str
    name: str = ""
    token: str | None = None
    created_at: str | None = None
    expires_at: str | None = None
    workspace: str | None = None
    admin: bool = False

    @classmethod
    def from_dict(cls, data: Fields) -> Token:
        return cls(
            prefix=str(data.get("prefix") or ""),
            name=str(data.get("name") or data.get("label") or ""),
            token=data.get("token"),
            created_at=data.get("created_at"),
            expires_at=data.get("expires_at"),
            workspace=data.get("workspace"),
            admin=bool(data.get("admin")),
        )


@dataclass(frozen=True)
class SandboxEvent:
    """Something that happened to a sandbox: created, paused, forked, hibernated, woken, died, with the reason."""

    seq: int
    time: str
    sandbox_id: str
    type: str
    payload: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, data: Fields) -> SandboxEvent:
        return cls(
            int(data.get("seq") or 0),
            str(data.get("time") or ""),
            str(data.get("sandbox_id") or ""),
            str(data.get("type") or ""),
            dict(data.get("payload") or {}),
        )


@dataclass(frozen=True)
class Display:
    """One shown thing, in its richest form."""

    mime: str
    data: bytes


@dataclass(frozen=True)
class Transfer:
    """What an upload or download of a folder came to; `skipped` are links and what is neither file nor folder."""

    files: int
    bytes: int
    skipped: tuple[str, ...] = ()
