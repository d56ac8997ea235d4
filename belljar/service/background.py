"""Output of background processes on its way into the log. It stays in the guest until somebody asks for it."""

from __future__ import annotations

import asyncio

from belljar.errors import BelljarError
from belljar.fleet.processes import ProcessInfo
from belljar.fleet.sandbox import Sandbox
from belljar.service.logs import Logs

# A guest that answers slower than that is not waited for: the log is read without it.
PATIENCE_S = 5.0


async def catch_up(logs: Logs, sandbox: Sandbox) -> None:
    """Write down what background processes of an awake sandbox have written since the last time. Never raises for a guest."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            for info in await sandbox.processes.list():
                if info.background and not info.pty and not logs.is_read(sandbox.id, info.id):
                    await _read_new(logs, sandbox, info)
    except (BelljarError, TimeoutError):
        pass  # asleep by now, taken over by another reader, or not answering: what is there is there


async def _read_new(logs: Logs, sandbox: Sandbox, info: ProcessInfo) -> None:
    async with logs.reading(sandbox.id, info.id) as writer:
        if (writer.position("stdout"), writer.position("stderr")) == (info.stdout_bytes, info.stderr_bytes):
            return
        offsets = {"stdout_offset": writer.position("stdout"), "stderr_offset": writer.position("stderr")}
        async with await sandbox.processes.attach(info.id, **offsets) as process:
            while process.stdout_offset < info.stdout_bytes or process.stderr_offset < info.stderr_bytes:
                output = await anext(process, None)
                if output is None:
                    break
                after = process.stdout_offset if output.stream == "stdout" else process.stderr_offset
                writer.write_at(output.stream, after - len(output.data), output.data)
        if not info.running:
            writer.end()
