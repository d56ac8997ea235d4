"""What HTTP adds to a call: the same command through the library and through a server in a process of its own, in turn."""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bench.lab import TEMPLATE, TIME_TO_LIVE_S, Lab, milliseconds, say
from bench.results import Result, Series, Verdict

BORROWED = ("kernel", "roots", "templates", "names", "cache")
START_DEADLINE_S = 60.0
LIMIT_MS = 5.0
COMMAND, FILE = "true", "/etc/hostname"
WARM_UP = 20


async def serving(lab: Lab) -> Result:
    names = ("`true` in a shell", "a look at a file")
    direct = [Series(f"{name}, through the library", "ms", []) for name in names]
    served = [Series(f"{name}, through HTTP", "ms", []) for name in names]
    status = Series("a status through HTTP, which no guest is asked for", "ms", [])
    async with lab.sandbox() as sandbox, _server(lab) as connection:
        made = await connection.ask("POST", "/v1/sandboxes", {"template": TEMPLATE, "ttl_seconds": TIME_TO_LIVE_S})
        at = f"/v1/sandboxes/{made['id']}"
        calls = [
            (direct[0], lambda: sandbox.processes.run(COMMAND)),
            (served[0], lambda: connection.ask("POST", f"{at}/exec", {"cmd": COMMAND})),
            (direct[1], lambda: sandbox.files.stat(FILE)),
            (served[1], lambda: connection.ask("GET", f"{at}/fs/stat?path={FILE}")),
            (status, lambda: connection.ask("GET", at)),
        ]
        for number in range(WARM_UP + lab.count(300, 60)):
            # In another order each time: what comes after a busy guest pays for it.
            for series, call in random.sample(calls, len(calls)):
                took = await _timed(call)
                if number >= WARM_UP:
                    series.samples.append(took)
        await connection.ask("DELETE", at)
    result = Result("What HTTP adds", [*direct, *served, status])
    for name, without, through in zip(names, direct, served, strict=True):
        say(f"  {name}: library {without.p50:.1f} ms, HTTP {through.p50:.1f} ms")
        result.verdicts.append(Verdict(f"what HTTP adds to {name} (p50)", through.p50 - without.p50, "ms", LIMIT_MS))
    result.notes.append(
        "Two sandboxes of one template, one held by this process and one by the server; a connection that is kept, a token on "
        "each request."
    )
    return result


async def _timed(call: Callable[[], Awaitable[Any]]) -> float:
    began = time.perf_counter()
    await call()
    return milliseconds(began)


class Connection:
    """One kept connection. Plain streams: a full client would add as much as what is measured."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: str) -> None:
        self._reader, self._writer = reader, writer
        self._head = f"Host: bench\r\nAuthorization: Bearer {token}\r\n"

    async def ask(self, method: str, path: str, body: object = None) -> Any:
        content = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\n{self._head}Content-Length: {len(content)}\r\n\r\n"
        self._writer.write(head.encode() + content)
        answer = (await self._reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(answer.partition("content-length:")[2].split()[0]) if "content-length:" in answer else 0
        said = await self._reader.readexactly(length)
        assert answer.split()[1].startswith("2"), f"{method} {path}: {answer.split()[1]} {said.decode()}"
        return json.loads(said) if said else None

    async def aclose(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()


@asynccontextmanager
async def _server(lab: Lab) -> AsyncIterator[Connection]:
    """A server on a home of its own that borrows the templates, and a connection to it."""
    home = lab.place / "served"
    home.mkdir()
    for name in BORROWED:
        (home / name).symlink_to(lab.settings.home / name)
    root = Path(__file__).parent.parent
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "belljar.cli.main", "serve", "--port", "0"),
        env={**os.environ, "BELLJAR_HOME": str(home), "PYTHONPATH": str(root)},
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(START_DEADLINE_S):
            token = (await process.stdout.readline()).decode().split()[-1]
            address = (await process.stdout.readline()).decode().split()[2]
        port = int(address.rpartition(":")[2])
        connection = Connection(*await asyncio.open_connection("127.0.0.1", port), token)
        try:
            yield connection
        finally:
            await connection.aclose()
    finally:
        process.terminate()
        await process.wait()
