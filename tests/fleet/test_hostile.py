"""What guest code may try. Each ends in a typed error or a working sandbox; the neighbour and the template never notice."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from belljar.errors import AgentLost, BelljarError, SandboxGone
from belljar.fleet.sandbox import Sandbox
from tests.conftest import CreateSandbox, said


@pytest_asyncio.fixture
async def neighbour(create: CreateSandbox) -> AsyncIterator[Sandbox]:
    """A sandbox that must be as well after the test as before."""
    other = await create()
    await other.files.write("/workspace/well", "well")
    yield other
    assert await said(other, "cat /workspace/well") == "well"


async def test_a_flood_of_output_is_bounded_and_counted(sandbox: Sandbox, neighbour: Sandbox) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = await sandbox.processes.run("head -c 60000000 /dev/zero", timeout_s=300, max_output=1 << 20)
    assert len(result.stdout) == 1 << 20
    assert result.dropped.stdout == 60_000_000 - (1 << 20)
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kib < 64 << 10, f"the host grew by {grown_kib} KiB"


async def test_a_background_flood_keeps_the_newest_output_and_says_what_was_dropped(sandbox: Sandbox) -> None:
    process = await sandbox.processes.start("head -c 20000000 /dev/zero | tr '\\0' x; echo the end; sleep 600", background=True)
    async with asyncio.timeout(200):
        while True:
            (info,) = [p for p in await sandbox.processes.list() if p.id == process.id]
            if info.stdout_bytes >= 20_000_008:
                break
            await asyncio.sleep(0.2)
    attached = await sandbox.processes.attach(process.id)
    seen = b""
    async for output in attached:
        seen += output.data
        if seen.endswith(b"the end\n"):
            break
    assert len(seen) <= 2 << 20
    assert attached.dropped.stdout == 20_000_008 - len(seen)
    await attached.kill()


async def test_a_killed_agent_comes_back_and_the_loss_is_told(sandbox: Sandbox, neighbour: Sandbox) -> None:
    await sandbox.files.write("/workspace/kept", "kept")
    with pytest.raises(AgentLost):
        await sandbox.processes.run(
            "sudo pkill -9 -f 'belljar/start.py'; sudo kill -9 $(pgrep -P 1 | head -1); sleep 600", timeout_s=60
        )
    async with asyncio.timeout(60):
        while True:
            try:
                assert await said(sandbox, "cat /workspace/kept") == "kept"
                break
            except AgentLost:
                await asyncio.sleep(0.2)


async def test_a_fork_bomb_hits_its_own_limit(sandbox: Sandbox, neighbour: Sandbox) -> None:
    result = await sandbox.processes.run("bomb() { bomb | bomb & }; bomb; sleep 3", timeout_s=10)
    assert result is not None
    async with asyncio.timeout(120):
        assert await said(sandbox, "echo alive") == "alive"


async def test_filled_memory_kills_the_program_and_not_the_sandbox(sandbox: Sandbox, neighbour: Sandbox) -> None:
    result = await sandbox.processes.run(["python3", "-c", "b = []\nwhile True: b.append(bytearray(50 << 20))"], timeout_s=300)
    assert result.signal == 9 or result.exit_code not in (0, None), result
    assert result.oom_killed or b"MemoryError" in result.stderr, result
    assert await said(sandbox, "echo alive") == "alive"


async def test_a_full_disk_is_an_error_in_the_guest_and_typed_on_the_host(sandbox: Sandbox, neighbour: Sandbox) -> None:
    from belljar.errors import DiskFull

    await said(sandbox, "fallocate -l $(($(df --output=avail -B1 /workspace | tail -1) - 1000000)) /workspace/hog")
    with pytest.raises(DiskFull):
        await sandbox.files.write("/workspace/more", b"x" * 4_000_000)
    assert not await sandbox.files.exists("/workspace/more"), "half a file was left behind"
    await said(sandbox, "rm /workspace/hog")
    await sandbox.files.write("/workspace/more", b"x" * 4_000_000)


async def test_rm_rf_of_everything_harms_nobody_else(create: CreateSandbox, neighbour: Sandbox) -> None:
    doomed = await create()
    try:
        await doomed.processes.run("sudo rm -rf --no-preserve-root / 2>/dev/null", timeout_s=200)
    except BelljarError as problem:
        assert problem.code != "internal", problem
    try:
        await doomed.processes.run(["/bin/true"], timeout_s=20)
    except BelljarError as problem:
        assert problem.code in ("command_not_found", "file_not_found", "agent_lost", "sandbox_gone"), problem.code
    fresh = await create()
    assert await said(fresh, "python3 -c 'print(1)'") == "1", "the template was harmed"


async def test_a_crashed_kernel_ends_in_a_typed_error(create: CreateSandbox, neighbour: Sandbox) -> None:
    sandbox = await create()
    with pytest.raises(SandboxGone, match=r"(?s)ended.*console"):
        await sandbox.processes.run(
            "sudo sh -c 'echo 1 > /proc/sys/kernel/sysrq; echo c > /proc/sysrq-trigger'; sleep 600", timeout_s=100
        )


# The port can be opened once only, so root in the guest takes a copy of the agent's own descriptor.
GARBAGE = """
import ctypes, os, time
libc = ctypes.CDLL(None, use_errno=True)
running = [int(p) for p in os.listdir("/proc") if p.isdigit() and p != "1"]
agent = next(p for p in running if b"belljar/start.py" in open(f"/proc/{p}/cmdline", "rb").read())
number = next(int(f) for f in os.listdir(f"/proc/{agent}/fd") if "/dev/vport" in os.readlink(f"/proc/{agent}/fd/{f}"))
port = libc.syscall(438, libc.syscall(434, agent, 0), number, 0)
assert port >= 0, ctypes.get_errno()
wrote = 0
for _ in range(5):
    try:
        wrote += os.write(port, os.urandom(30000))
    except BlockingIOError:
        pass
    time.sleep(0.5)
open("/workspace/garbage.new", "w").write(str(wrote))
os.rename("/workspace/garbage.new", "/workspace/garbage")
"""


async def test_garbage_on_the_wire_ends_the_session_and_not_the_sandbox(sandbox: Sandbox, neighbour: Sandbox) -> None:
    await sandbox.files.write("/workspace/garbage.py", GARBAGE)
    await sandbox.processes.start("sudo python3 /workspace/garbage.py", background=True)
    failures: list[BelljarError] = []
    async with asyncio.timeout(200):
        while True:
            try:
                if await sandbox.files.exists("/workspace/garbage"):
                    break
            except BelljarError as problem:
                failures.append(problem)
            await asyncio.sleep(0.05)
    # A call that comes after the session was ended finds a new one, so there need not be any failure at all.
    codes = {problem.code for problem in failures}
    assert codes <= {"agent_protocol", "agent_lost", "deadline_exceeded"}, codes
    assert int(await said(sandbox, "cat /workspace/garbage")) > 0, "no garbage reached the wire"


async def test_a_guest_cannot_write_to_the_template_through_its_root_disk(sandbox: Sandbox, create: CreateSandbox) -> None:
    result = await sandbox.processes.run("sudo dd if=/dev/zero of=/dev/vda bs=1M count=4 conv=fsync", timeout_s=60)
    assert result.exit_code != 0, "the root image was written to"
    fresh = await create()
    assert await said(fresh, "echo fine") == "fine"


async def test_a_forged_magic_in_output_and_files_passes_through_unharmed(sandbox: Sandbox) -> None:
    from belljar.wire.frames import MAGIC

    data = (b"x" * 1000 + MAGIC + b"y" * 1000) * 50
    await sandbox.files.write("/workspace/magic", data)
    assert await sandbox.files.read("/workspace/magic") == data
    assert (await sandbox.processes.run("cat /workspace/magic", timeout_s=60)).stdout == data


async def test_processes_see_nothing_of_the_agent(sandbox: Sandbox) -> None:
    names = (await said(sandbox, "ls -l /proc/self/fd | wc -l; env | cut -d= -f1 | sort | tr '\\n' ' '")).split("\n")
    assert int(names[0]) <= 6, "descriptors of the agent leak into processes"
    assert "BELLJAR" not in names[1]
    denied = await sandbox.processes.run("cat /proc/1/environ /proc/1/mem", timeout_s=20)
    assert denied.exit_code != 0


async def test_a_vmm_holds_no_writable_handle_on_anything_shared(sandbox: Sandbox) -> None:
    import os
    from pathlib import Path

    pid = (await sandbox.stats())["host"]["pid"]
    own = {"disk.raw", "qemu.log"}
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        target = os.readlink(entry)
        flags = int(
            next(
                line.split()[1]
                for line in Path(f"/proc/{pid}/fdinfo/{entry.name}").read_text().splitlines()
                if line.startswith("flags")
            ),
            8,
        )
        writable = flags & os.O_ACCMODE != os.O_RDONLY
        if not writable or not target.startswith("/") or target.startswith(("/memfd:belljar-ram", "/dev/")):
            continue
        assert Path(target).name in own, f"the VMM can write to {target}"
    status = Path(f"/proc/{pid}/status").read_text()
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert fields["Seccomp"].strip() == "2"
    assert int(fields["CapEff"], 16) == 0
    if os.geteuid() == 0:
        assert fields["Uid"].split()[0] not in ("0", str(os.geteuid()))
