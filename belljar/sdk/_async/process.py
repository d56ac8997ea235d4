"""One process of a sandbox: its output to iterate over, its input to write to, its end to wait for."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Self

from belljar.sdk._async.adaptors import Content, Flow
from belljar.sdk._async.streaming import AsyncStream
from belljar.sdk._async.terminal import AsyncTerminal
from belljar.sdk.errors import Lost
from belljar.sdk.outputs import Chunk, ProcessExit, ProcessInfo
from belljar.sdk.requests import MACHINE_S, route
from belljar.sdk.streams import StreamEvent

if TYPE_CHECKING:
    from belljar.sdk._async.client import AsyncClient


class AsyncProcess:
    """A background process. Iterating follows its output, from where this handle stopped reading, until its end.

    `stdout_offset` and `stderr_offset` are the places of the next bytes; a later `attach` can go on from there. `dropped` counts
    what was written and could no longer be had.
    """

    def __init__(self, client: AsyncClient, sandbox_id: str, process_id: str, pid: int = 0) -> None:
        self._client = client
        self._sandbox_id = sandbox_id
        self.id: str = process_id
        self.pid: int = pid
        self.stdout_offset: int | None = None
        self.stderr_offset: int | None = None
        self.dropped: dict[str, int] = {"stdout": 0, "stderr": 0}
        self.exit: ProcessExit | None = None
        self._stream: AsyncStream[Chunk] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Chunk:
        if self._stream is None:
            if self.exit is not None:
                raise StopAsyncIteration
            self._stream = AsyncStream(self._follow())
        try:
            return await anext(self._stream)
        except BaseException:
            self._stream = None
            raise

    async def aclose(self) -> None:
        """Let go of its output; a background process runs on."""
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.aclose()

    async def wait(self) -> ProcessExit:
        """Until it has ended. Output that nobody has read by then is passed over."""
        async for _ in self:
            pass
        assert self.exit is not None
        return self.exit

    async def info(self) -> ProcessInfo:
        return ProcessInfo.from_dict(await self._client.transport.object("GET", self._route()))

    async def write(self, data: Content, *, eof: bool = False) -> None:
        """To its input, which must have been asked for with `stdin=True`."""
        params = {"eof": "1"} if eof else None
        await self._client.transport.json("POST", self._route("stdin"), content=data, params=params, timeout=MACHINE_S)

    async def close_stdin(self) -> None:
        await self.write(b"", eof=True)

    async def signal(self, signal: int | str, *, tree: bool = False) -> None:
        """To the process itself, or with `tree` to everything that came of it."""
        await self._client.transport.json("POST", self._route("signal"), {"signal": signal, "tree": tree})

    async def resize(self, rows: int, cols: int) -> None:
        await self._client.transport.json("POST", self._route("resize"), {"rows": rows, "cols": cols})

    async def kill(self) -> None:
        """Kill it and all that came of it. `wait` then says how it ended."""
        await self._client.transport.json("DELETE", self._route())

    async def terminal(self) -> AsyncTerminal:
        """Its terminal, if it was started with one. Closing that only lets go."""
        return await AsyncTerminal.open(self._client.transport, self._route("attach"), {})

    def _follow(self) -> Flow[Chunk]:
        offsets = {"stdout_offset": self.stdout_offset, "stderr_offset": self.stderr_offset}
        return self._chunks(self._client.transport.events("GET", self._route("output"), params=offsets))

    async def _chunks(self, source: Flow[StreamEvent]) -> Flow[Chunk]:
        async with aclosing(source) as events:
            async for event in events:
                match event.name:
                    case "started" | "attached":
                        self._join(event.data)
                    case "stdout" | "stderr":
                        chunk = Chunk.from_event("stdout" if event.name == "stdout" else "stderr", event.data)
                        setattr(self, f"{chunk.stream}_offset", chunk.offset + len(chunk.data))
                        yield chunk
                    case "exit":
                        self.exit = ProcessExit.from_dict(event.data)
                        return
        raise Lost(f"the output of process {self.id} ended before the process did; iterate again to go on")

    def _join(self, data: dict[str, Any]) -> None:
        self.id, self.pid = str(data.get("id", self.id)), int(data.get("pid") or self.pid)
        self.stdout_offset = data.get("stdout_offset", self.stdout_offset)
        self.stderr_offset = data.get("stderr_offset", self.stderr_offset)
        for stream, count in (data.get("dropped") or {}).items():
            self.dropped[stream] = self.dropped.get(stream, 0) + int(count)

    def _route(self, *action: str) -> str:
        return route("sandboxes", self._sandbox_id, "processes", self.id, *action)


class AsyncForegroundProcess(AsyncProcess):
    """A process that lives as long as somebody reads it: leaving early kills it, with all that came of it."""

    def __init__(self, client: AsyncClient, sandbox_id: str, body: dict[str, Any]) -> None:
        super().__init__(client, sandbox_id, "")
        self._body = body
        self._begun = False

    def _follow(self) -> Flow[Chunk]:
        if self._begun:
            raise Lost("the connection to this process is gone, and the process with it")
        self._begun = True
        path = route("sandboxes", self._sandbox_id, "processes", "run")
        return self._chunks(self._client.transport.events("POST", path, self._body))
