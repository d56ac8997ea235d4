"""What one request to a preview is about, once it is known that it may be made."""

from __future__ import annotations

from dataclasses import dataclass

from belljar.service.workspace import Workspace


@dataclass(frozen=True)
class Target:
    """`path` is what the guest is asked for, query included. `prefix` is what of our own path came before it: none by host."""

    workspace: Workspace
    sandbox_id: str
    port: int
    path: bytes
    prefix: str = ""
