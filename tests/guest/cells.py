"""What tests do with code contexts of the agent: create them, run cells, follow them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from belljar.vm.link import Channel, Data
from tests.guest.conftest import DEADLINE_S, Guest


@dataclass
class Cell:
    """Everything that came over a cell's channel."""

    started: dict[str, Any] = field(default_factory=dict)
    stdout: bytes = b""
    stderr: bytes = b""
    outputs: list[tuple[dict[str, Any], bytes]] = field(default_factory=list)
    error: dict[str, Any] | None = None
    done: dict[str, Any] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)

    @property
    def kind(self) -> str | None:
        return self.error["kind"] if self.error else None

    @property
    def text(self) -> str:
        """The text of the main result."""
        (blob,) = [blob for header, blob in self.outputs if header["main"]]
        return blob.decode()


async def collect(channel: Channel) -> Cell:
    cell = Cell()
    async with asyncio.timeout(DEADLINE_S):
        async for item in channel:
            if isinstance(item, Data):
                if item.stream == 3:
                    header, blob = cell.outputs.pop()
                    cell.outputs.append((header, blob + item.data))
                else:
                    name = "stdout" if item.stream == 1 else "stderr"
                    setattr(cell, name, getattr(cell, name) + item.data)
                    cell.order.append(name)
                continue
            ((kind, body),) = item.body.items()
            cell.order.append(kind)
            if kind == "output":
                cell.outputs.append((body, b""))
            elif kind != "clear":
                setattr(cell, kind, body)
    for header, blob in cell.outputs:
        assert sum(part["size"] for part in header["parts"]) == len(blob)
    return cell


async def run(guest: Guest, context: str, code: str, **params: Any) -> Cell:
    async with await guest.link.open("context.run", {"id": context, "code": code, **params}) as channel:
        channel.end()
        return await collect(channel)


async def begin(guest: Guest, context: str, code: str, **params: Any) -> Channel:
    """A cell that has begun to run."""
    channel = await guest.link.open("context.run", {"id": context, "code": code, **params})
    channel.end()
    async with asyncio.timeout(DEADLINE_S):
        first = await channel.receive()
    assert first is not None and not isinstance(first, Data) and "started" in first.body
    return channel


async def create(guest: Guest, language: str = "fake", **params: Any) -> str:
    return str((await guest.ask("context.create", language=language, **params))["id"])


async def attach(guest: Guest, context: str, **params: Any) -> Cell:
    async with await guest.link.open("context.attach", {"id": context, **params}) as channel:
        channel.end()
        return await collect(channel)


async def info(guest: Guest, context: str) -> dict[str, Any]:
    contexts = (await guest.ask("context.list"))["contexts"]
    return next(item for item in contexts if item["id"] == context)


async def wait_state(guest: Guest, context: str, state: str, queued: int = 0) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while (found := await info(guest, context))["state"] != state or found["queued"] != queued:
            await asyncio.sleep(0.01)
