"""`make demo`: one sandbox made, used and forked before your eyes, with what each step took."""

from __future__ import annotations

import asyncio
import platform
import sys
import time
from collections.abc import Awaitable
from typing import TypeVar

from belljar.errors import BelljarError
from belljar.fleet.sandbox import Sandbox
from belljar.fleet.sandboxes import Fleet
from belljar.settings import load_settings
from belljar.templates.bake import build_template

T = TypeVar("T")
TEMPLATE = "base"

# A program that keeps counting in memory: after a fork both copies count on from the same number.
COUNTER = """
import os, time
n = 0
while True:
    n += 1
    open("/workspace/count.new", "w").write(f"{n} {os.urandom(4).hex()}")
    os.replace("/workspace/count.new", "/workspace/count")
    time.sleep(0.05)
"""


async def timed(label: str, work: Awaitable[T]) -> T:
    began = time.perf_counter()
    result = await work
    print(f"{label:<58} {(time.perf_counter() - began) * 1000:8.0f} ms", flush=True)
    return result


async def said(sandbox: Sandbox, command: str) -> str:
    result = await sandbox.processes.run(command, timeout_s=120)
    if result.exit_code != 0:
        raise SystemExit(f"the demo's command failed: {command}: {result.stderr.decode(errors='replace')}")
    return result.stdout.decode().strip()


async def demo() -> None:
    settings = load_settings()
    await build_template(settings, TEMPLATE, lambda line: print(f"  {line}", file=sys.stderr, flush=True))
    print()
    async with await Fleet.open(settings) as fleet:
        warm = await timed("open the store, load the template's memory, create", fleet.create(TEMPLATE))
        await warm.kill()
        parent = await timed("create a sandbox (restore its memory, first answer)", fleet.create(TEMPLATE))
        children: list[Sandbox] = []
        try:
            await show(parent, children)
        finally:
            for sandbox in [parent, *children]:
                await sandbox.kill()
    print("\nAll sandboxes are ended; nothing of them is left.")


async def show(parent: Sandbox, children: list[Sandbox]) -> None:
    kernel = await timed("ask the guest for its kernel", said(parent, "uname -r"))
    print(f"    the guest's kernel: {kernel}\n    the host's kernel:  {platform.release()}")
    answer = await timed("run Python in it", said(parent, "python3 -c 'print(sum(n * n for n in range(1000)))'"))
    print(f"    sum of squares: {answer}")
    await parent.files.write("/workspace/counter.py", COUNTER)
    await parent.processes.start(["python3", "/workspace/counter.py"], background=True)
    await said(parent, "until [ -s /workspace/count ]; do sleep 0.1; done")
    before = await said(parent, "cat /workspace/count")
    children += await timed("fork it into two, with the running program in each", parent.fork(2))
    print(f"    the program had counted to {before.split()[0]} just before")
    for name, sandbox in [("parent", parent), ("child 1", children[0]), ("child 2", children[1])]:
        count, random = (await said(sandbox, "cat /workspace/count")).split()
        host = await said(sandbox, "hostname")
        print(f"    {name:<8} counts on: {count:>5}   its own random bytes: {random}   its own name: {host}")
    await timed("hibernate child 1 (its machine is gone now)", children[0].hibernate())
    await timed("wake it", children[0].wake())
    print(f"    it counts on: {(await said(children[0], 'cat /workspace/count')).split()[0]}")


def main() -> int:
    try:
        asyncio.run(demo())
    except BelljarError as problem:
        print(f"belljar: {problem.message}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
