"""A large file through the agent, beside the bare serial channel underneath it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

from belljar.fleet.sandbox import Sandbox
from bench.lab import Lab, say
from bench.raw import RawChannel
from bench.results import Result, Series

PATH = "/workspace/large"
_PIECE = 256 << 10


async def transferring(lab: Lab) -> Result:
    size = lab.count(256, 64) << 20
    mib = size >> 20
    raw_in = Series(f"raw channel, host → guest, {mib} MiB", "MB/s", [])
    raw_out = Series(f"raw channel, guest → host, {mib} MiB", "MB/s", [])
    written = Series(f"write a file of {mib} MiB", "MB/s", [])
    read = Series(f"read a file of {mib} MiB", "MB/s", [])
    streamed = Series(f"stdout of a program, {mib} MiB", "MB/s", [])
    async with lab.sandbox() as sandbox, RawChannel.boot(lab) as raw:
        for number in range(lab.count(3, 2)):
            raw_in.samples.append(_rate(size, await raw.send(size)))
            raw_out.samples.append(_rate(size, await raw.receive(size)))
            written.samples.append(_rate(size, await _write(sandbox, size)))
            read.samples.append(_rate(size, await _read(sandbox, size)))
            streamed.samples.append(_rate(size, await _stream(sandbox, size)))
            figures = ", ".join(f"{series.samples[-1]:.0f}" for series in (raw_in, raw_out, written, read, streamed))
            say(f"  round {number + 1}: raw in, raw out, write, read, stdout: {figures} MB/s")
            await sandbox.files.remove(PATH)
    result = Result("Large files through the agent", [raw_in, raw_out, written, read, streamed])
    result.ratio("write a file, against the raw channel into the guest", written, raw_in)
    result.ratio("read a file, against the raw channel out of the guest", read, raw_out)
    result.notes.append(
        "Raw: the same port in a guest whose only program is a Python loop over read or write, in a machine booted for this; no "
        "frames, no credit, no file. MB/s are millions of bytes a second."
    )
    return result


def _rate(size: int, seconds: float) -> float:
    return size / 1e6 / seconds


def _pieces(size: int) -> Iterator[bytes]:
    piece = os.urandom(_PIECE)
    for _ in range(size // _PIECE):
        yield piece


async def _write(sandbox: Sandbox, size: int) -> float:
    began = time.perf_counter()
    await sandbox.files.write(PATH, _pieces(size))
    return time.perf_counter() - began


async def _read(sandbox: Sandbox, size: int) -> float:
    began = time.perf_counter()
    got = 0
    async for piece in sandbox.files.read_stream(PATH):
        got += len(piece)
    assert got == size, got
    return time.perf_counter() - began


async def _stream(sandbox: Sandbox, size: int) -> float:
    got = 0

    def take(data: bytes) -> None:
        nonlocal got
        got += len(data)

    began = time.perf_counter()
    await sandbox.processes.run(["head", "-c", str(size), "/dev/zero"], on_stdout=take, max_output=0)
    assert got == size, got
    return time.perf_counter() - began
