"""A real agent in a process of its own, and a real link to it over a socketpair."""

from __future__ import annotations

import asyncio
import getpass
import socket
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from belljar.errors import Conflict
from belljar.vm.link import Channel, Data, Link, Message

DEADLINE_S = 60.0
CGROUP_ROOTS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))


@dataclass
class Finished:
    """Everything that came over a process channel."""

    first: dict[str, Any] = field(default_factory=dict)
    stdout: bytes = b""
    stderr: bytes = b""
    exited: dict[str, Any] = field(default_factory=dict)


@dataclass
class Guest:
    link: Link
    sock: socket.socket
    home: Path
    etc: Path
    pid: int

    async def ask(self, op: str, **params: Any) -> dict[str, Any]:
        return await self.link.request(op, params, DEADLINE_S)

    async def collect(self, channel: Channel) -> Finished:
        done = Finished()
        async with asyncio.timeout(DEADLINE_S):
            async for item in channel:
                if isinstance(item, Data) and item.stream == 1:
                    done.stdout += item.data
                elif isinstance(item, Data):
                    done.stderr += item.data
                elif "exited" in item.body:
                    done.exited = item.body["exited"]
                else:
                    done.first = item.body
        return done

    async def run(self, shell: str, stdin: bytes | None = None, **params: Any) -> Finished:
        async with await self.link.open("process.start", {"shell": shell, "stdin": stdin is not None, **params}) as channel:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._feed(channel, stdin or b""))
                done = tasks.create_task(self.collect(channel))
            return done.result()

    async def _feed(self, channel: Channel, data: bytes) -> None:
        with suppress(Conflict):  # the process may end without having read it all
            await channel.send(data)
        channel.end()

    async def start(self, shell: str, **params: Any) -> str:
        """A background process's id."""
        answer = await self.ask("process.start", shell=shell, background=True, **params)
        return str(answer["started"]["id"])

    async def attach(self, name: str, **params: Any) -> Finished:
        async with await self.link.open("process.attach", {"id": name, **params}) as channel:
            return await self.collect(channel)

    async def exit_of(self, name: str) -> dict[str, Any]:
        return (await self.attach(name)).exited

    async def read(self, path: str, **params: Any) -> bytes:
        async with await self.link.open("file.read", {"path": path, **params}) as channel:
            channel.end()
            first = await channel.receive()
            assert isinstance(first, Message)
            return (await self.collect(channel)).stdout

    async def write(self, path: str, data: bytes, **params: Any) -> dict[str, Any]:
        async with await self.link.open("file.write", {"path": path, **params}) as channel:
            await channel.send(data)
            channel.end()
            return (await self.collect(channel)).first

    async def entries(self, path: str, **params: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        async with await self.link.open("file.list", {"path": path, **params}) as channel:
            channel.end()
            async for item in channel:
                assert isinstance(item, Message)
                found += item.body["entries"]
        return found

    async def reconnect(self) -> None:
        """A new session over the same stream, as after a restore: the old host is gone without a word."""
        old, self.link = self.link, await Link.over(self.sock.dup(), DEADLINE_S)
        await old.aclose()


@pytest.fixture
def work() -> Iterator[str]:
    """A control group for the agent's processes, where this host lets us make one; else none, and sessions have to do."""
    for root in CGROUP_ROOTS:
        if (root / "cgroup.procs").exists():
            path = root / f"belljar-test-{uuid.uuid4().hex[:8]}"
            try:
                path.mkdir()
            except OSError:
                break
            yield str(path)
            (path / "cgroup.kill").write_text("1")
            for _ in range(1000):
                try:
                    for leaf in path.iterdir():
                        if leaf.is_dir():
                            leaf.rmdir()
                    path.rmdir()
                    return
                except OSError:
                    time.sleep(0.01)
            return
    yield ""


@pytest.fixture
async def guest(tmp_path: Path, work: str) -> AsyncIterator[Guest]:
    home, etc = tmp_path / "home", tmp_path / "etc"
    home.mkdir()
    etc.mkdir()
    for folder in (home, tmp_path, *tmp_path.parents):
        if folder.is_relative_to(Path(tempfile.gettempdir())) and folder != Path(tempfile.gettempdir()):
            folder.chmod(0o755)
    ours, theirs = socket.socketpair()
    places = [str(home), str(etc), work, str(tmp_path / "venv")]
    argv = [sys.executable, "-m", "tests.guest.agent", str(theirs.fileno()), getpass.getuser(), *places]
    agent = await asyncio.create_subprocess_exec(*argv, pass_fds=[theirs.fileno()], cwd=Path(__file__).parents[2])
    theirs.close()
    guest = Guest(await Link.over(ours.dup(), DEADLINE_S), ours, home, etc, agent.pid)
    yield guest
    ours.close()
    await guest.link.aclose()
    async with asyncio.timeout(DEADLINE_S):
        await agent.wait()
