"""What one request to a preview is about, once it is known that it may be made."""

from __future__ import annotations

from dataclasses import dataclass

from belljar.service.visits import OWNER, Right
from belljar.service.workspace import Workspace


@dataclass(frozen=True)
class Target:
    """`path` is what the guest is asked for, query included. `prefix` is what of our own path came before it: none by host.

    `right` is why it may be made.
    """

    workspace: Workspace
    sandbox_id: str
    port: int
    path: bytes
    prefix: str = ""
    right: Right = OWNER

    @property
    def named_by_link(self) -> bool:
        """The address itself is the link: whoever knows it may look, whatever page they do it from."""
        return bool(self.prefix) and self.right.link is not None
