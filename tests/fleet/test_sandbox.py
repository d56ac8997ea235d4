"""The whole machine: pause, snapshot, fork, sleep. Each with live processes and open files inside."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from belljar.errors import HostDiskShort, InvalidInput, SandboxGone, SandboxNotFound, SnapshotMismatch, WrongState
from belljar.fleet import waking
from belljar.fleet.launching import enliven
from belljar.fleet.sandbox import Sandbox
from belljar.fleet.sandboxes import Fleet
from belljar.settings import Settings
from belljar.store.manifest import SavedMachine
from belljar.vm.link import Link
from belljar.vm.process import start_time
from tests.conftest import CreateSandbox, said

# Holds a file open, keeps state in memory only, and appends to the file as it goes on.
WRITER = """
import time
state = {"secret": "kept in memory", "n": 0}
log = open("/workspace/log", "a", buffering=1)
while True:
    state["n"] += 1
    log.write(f"{state['n']} {state['secret']}\\n")
    time.sleep(0.05)
"""


async def start_writer(sandbox: Sandbox) -> str:
    process = await sandbox.processes.start(["python3", "-c", WRITER], background=True)
    await said(sandbox, "until [ -s /workspace/log ]; do sleep 0.05; done")
    return process.id


async def lines_of(sandbox: Sandbox) -> list[int]:
    text = await said(sandbox, "cat /workspace/log")
    rows = [line.split(" ", 1) for line in text.split("\n")]
    assert all(rest == "kept in memory" for _, rest in rows), rows[-3:]
    return [int(number) for number, _ in rows]


async def assert_goes_on(sandbox: Sandbox) -> None:
    """The writer writes on, with no number lost or repeated."""
    before = await lines_of(sandbox)
    await said(sandbox, f"until [ $(wc -l < /workspace/log) -gt {len(before) + 1} ]; do sleep 0.05; done")
    numbers = await lines_of(sandbox)
    assert numbers == list(range(1, len(numbers) + 1)), "the log has a gap: memory and disk are not of one instant"


async def test_pause_stops_the_guest_and_resume_continues_it_at_the_right_time(sandbox: Sandbox) -> None:
    await start_writer(sandbox)
    await sandbox.pause()
    with pytest.raises(WrongState, match="resume"):
        await sandbox.processes.run("true")
    await asyncio.sleep(1)
    await sandbox.resume()
    assert abs(float(await said(sandbox, "date +%s.%N")) - time.time()) < 30
    await assert_goes_on(sandbox)
    await sandbox.resume()
    await sandbox.pause()
    await sandbox.pause()
    assert sandbox.record.state == "paused"


async def test_a_paused_sandbox_can_be_snapshotted_and_stays_paused(sandbox: Sandbox, fleet: Fleet) -> None:
    await sandbox.files.write("/workspace/f", "x")
    await sandbox.pause()
    snapshot = await sandbox.snapshot()
    assert sandbox.record.state == "paused"
    child = await fleet.create(snapshot=snapshot.id)
    assert await said(child, "cat /workspace/f") == "x"
    await child.kill()
    await fleet.remove_snapshot(snapshot.id)


async def test_fork_children_have_the_parents_memory_files_and_processes(create: CreateSandbox) -> None:
    parent = await create(env={"COLOUR": "green"}, metadata={"who": "parent"})
    writer = await start_writer(parent)
    await said(parent, "sudo sh -c 'echo forked > /etc/motd'")
    children = await parent.fork(3, metadata={"role": "child"})
    try:
        for sandbox in (parent, *children):
            await assert_goes_on(sandbox)
            assert await said(sandbox, "cat /etc/motd") == "forked"
            assert await said(sandbox, "echo $COLOUR") == "green"
            assert writer in {process.id for process in await sandbox.processes.list() if process.running}
        assert all(child.record.parent == parent.id for child in children)
        assert all(child.record.metadata == {"who": "parent", "role": "child"} for child in children)
    finally:
        for child in children:
            await child.kill()


async def test_fork_children_are_somebody_else_and_draw_other_random_numbers(sandbox: Sandbox) -> None:
    # This process has its generator seeded before the fork; the kernel's generator must differ all the same.
    children = await sandbox.fork(3)
    try:
        draw = "hostname; cat /etc/machine-id; head -c 16 /dev/urandom | od -An -tx1; cat /proc/sys/kernel/random/uuid"
        drawn = [(await said(machine, draw)).split("\n") for machine in (sandbox, *children)]
        for kind, values in zip(("hostname", "machine-id", "urandom", "uuid"), zip(*drawn, strict=True), strict=True):
            assert len(set(values)) == 4, f"{kind} repeats across forks: {values}"
        for child in children:
            assert abs(float(await said(child, "date +%s.%N")) - time.time()) < 30
    finally:
        for child in children:
            await child.kill()


async def test_nothing_of_one_child_is_seen_by_another_or_by_the_parent(sandbox: Sandbox) -> None:
    one, two = await sandbox.fork(2)
    try:
        await said(one, "echo one > /workspace/who; sudo sh -c 'echo one > /etc/who'")
        await said(two, "echo two > /workspace/who")
        assert not await sandbox.files.exists("/workspace/who")
        assert await said(two, "cat /workspace/who") == "two"
        assert not await two.files.exists("/etc/who")
        await one.kill()
        assert await said(two, "cat /workspace/who") == "two", "a child did not survive its sibling's end"
    finally:
        await one.kill()
        await two.kill()


async def test_a_child_outlives_its_parent_and_can_be_forked_again(create: CreateSandbox) -> None:
    parent = await create()
    await start_writer(parent)
    (child,) = await parent.fork()
    await parent.kill()
    (grandchild,) = await child.fork()
    await child.kill()
    await assert_goes_on(grandchild)
    await grandchild.kill()


async def test_a_foreground_process_of_the_parent_runs_on_unharmed_by_a_fork(sandbox: Sandbox) -> None:
    running = asyncio.create_task(sandbox.processes.run("for i in $(seq 1 40); do echo line $i; sleep 0.05; done"))
    await asyncio.sleep(0.5)
    (child,) = await sandbox.fork()
    result = await running
    assert result.stdout.decode().split("\n")[:-1] == [f"line {i}" for i in range(1, 41)]
    orphans = [process for process in await child.processes.list() if "line" in " ".join(process.argv)]
    assert orphans, "the child lost the process that its parent was running"
    await child.kill()


async def test_snapshots_restore_any_number_of_times_and_a_chain_ten_deep_loses_nothing(
    fleet: Fleet, create: CreateSandbox
) -> None:
    sandbox = await create()
    await said(sandbox, "mkdir /workspace/deep")
    kept = []
    try:
        for depth in range(10):
            await said(sandbox, f"echo {depth} >> /workspace/deep/log; echo {depth} > /dev/shm/level-{depth}")
            snapshot = await sandbox.snapshot(metadata={"depth": str(depth)})
            kept.append(snapshot.id)
            await sandbox.kill()
            sandbox = await create(snapshot=snapshot.id)
        assert await said(sandbox, "cat /workspace/deep/log") == "\n".join(map(str, range(10)))
        assert await said(sandbox, "cat /dev/shm/level-*") == "\n".join(map(str, range(10))), "memory was lost in the chain"
        again = await create(snapshot=kept[4])
        assert await said(again, "cat /workspace/deep/log") == "\n".join(map(str, range(5)))
        assert [record.id for record in await fleet.snapshots({"depth": "4"})] == [kept[4]]
    finally:
        for snapshot_id in kept:
            await fleet.remove_snapshot(snapshot_id)


async def test_a_snapshot_keeps_running_processes(fleet: Fleet, create: CreateSandbox) -> None:
    sandbox = await create()
    await start_writer(sandbox)
    snapshot = await sandbox.snapshot()
    await sandbox.kill()
    for _ in range(2):
        restored = await create(snapshot=snapshot.id)
        await assert_goes_on(restored)
    await fleet.remove_snapshot(snapshot.id)
    await assert_goes_on(restored)


async def test_hibernate_ends_the_machine_and_wake_brings_everything_back(sandbox: Sandbox, settings: Settings) -> None:
    await start_writer(sandbox)
    pid = (await sandbox.stats())["host"]["pid"]
    for _ in range(2):
        await sandbox.hibernate()
        assert start_time(pid) is None, "the machine still runs"
        with pytest.raises(WrongState, match="wake"):
            await sandbox.processes.run("true")
        await sandbox.hibernate()
        await sandbox.wake()
        await sandbox.wake()
        await assert_goes_on(sandbox)
        pid = (await sandbox.stats())["host"]["pid"]
    assert abs(float(await said(sandbox, "date +%s.%N")) - time.time()) < 30
    assert not (settings.home / "sandboxes" / sandbox.id / "sleep").exists()


async def test_a_hibernated_sandbox_can_be_killed(sandbox: Sandbox, fleet: Fleet, settings: Settings) -> None:
    await sandbox.hibernate()
    await sandbox.kill()
    assert not (settings.home / "sandboxes" / sandbox.id).exists()
    with pytest.raises(SandboxNotFound):
        await fleet.get(sandbox.id)


async def test_a_large_disk_and_a_grown_one_survive_snapshot_and_sleep(fleet: Fleet, create: CreateSandbox) -> None:
    sandbox = await create(disk_mib=12288)
    await said(sandbox, "head -c 40M /dev/urandom > /workspace/big && sha256sum /workspace/big > /workspace/sum")
    await sandbox.hibernate()
    await sandbox.wake()
    snapshot = await sandbox.snapshot()
    copy = await create(snapshot=snapshot.id)
    for machine in (sandbox, copy):
        await said(machine, "sudo sh -c 'echo 3 > /proc/sys/vm/drop_caches'; sha256sum -c /workspace/sum")
        assert int((await said(machine, "df -k --output=size / | tail -1")).split()[0]) > 11 << 20
    await fleet.remove_snapshot(snapshot.id)


async def test_a_snapshot_of_another_host_is_refused_with_the_reason(fleet: Fleet, sandbox: Sandbox, settings: Settings) -> None:
    snapshot = await sandbox.snapshot()
    file = SavedMachine(settings.home / "snapshots" / snapshot.id).manifest_file
    file.write_text(file.read_text().replace('"qemu": "', '"qemu": "99.'))
    with pytest.raises(SnapshotMismatch, match=r"99\."):
        await fleet.create(snapshot=snapshot.id)
    await fleet.remove_snapshot(snapshot.id)


@pytest.mark.parametrize("count", [0, -1, 1000, True, "2", 1.5])
async def test_an_absurd_number_of_children_is_refused(sandbox: Sandbox, count: object) -> None:
    with pytest.raises(InvalidInput):
        await sandbox.fork(count)  # type: ignore[arg-type]


async def test_statistics_tell_both_sides(sandbox: Sandbox) -> None:
    stats = await sandbox.stats()
    assert stats["guest"]["cpu"]["count"] == 2
    assert stats["guest"]["memory"]["total"] > 1_800 << 20
    assert 9 << 30 < stats["guest"]["disk"]["total"] <= 10 << 30
    assert 0 < stats["host"]["guest_memory_private"] < 200 << 20
    assert 0 < stats["host"]["disk"] < 200 << 20


async def test_a_guest_that_powers_off_is_reported_with_its_last_words(sandbox: Sandbox, fleet: Fleet) -> None:
    with pytest.raises(SandboxGone, match="ended"):
        await sandbox.processes.run("sudo sh -c 'echo o > /proc/sysrq-trigger'; sleep 600", timeout_s=100)
    with pytest.raises(SandboxGone):
        await sandbox.processes.run("true")
    record = next(record for record in await fleet.list() if record.id == sandbox.id)
    assert record.state == "dead" and record.reason


async def test_who_waits_for_a_program_is_told_that_its_sandbox_was_put_to_sleep_or_ended(sandbox: Sandbox) -> None:
    async def waiting(number: int) -> asyncio.Task[object]:
        task: asyncio.Task[object] = asyncio.create_task(sandbox.processes.run(["sleep", str(number)], timeout_s=600))
        await said(sandbox, f"until pgrep -fx 'sleep {number}'; do sleep 0.05; done")
        return task

    first = await waiting(5001)
    await sandbox.hibernate()
    with pytest.raises(WrongState, match="put to sleep meanwhile"):
        await first
    await sandbox.wake()
    assert await said(sandbox, "pgrep -fxc 'sleep 5001'") == "1", "what ran did not go on"
    second = await waiting(5002)
    await sandbox.kill()
    with pytest.raises(SandboxGone, match="was ended meanwhile"):
        await second


async def test_moves_at_the_same_time_follow_one_another(sandbox: Sandbox) -> None:
    """Each finds what the one before has made of the machine, not what was there when it was asked for."""
    await said(sandbox, "echo kept > /workspace/f")
    outcomes = await asyncio.gather(sandbox.hibernate(), sandbox.hibernate(), sandbox.pause(), return_exceptions=True)
    assert outcomes[:2] == [None, None], "two who want the same, and one of them fails"
    assert isinstance(outcomes[2], WrongState) and "wake" in outcomes[2].message
    await asyncio.gather(sandbox.wake(), sandbox.wake())
    assert await said(sandbox, "cat /workspace/f") == "kept"


async def test_a_wake_that_is_called_off_half_way_loses_nothing(
    sandbox: Sandbox, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    await said(sandbox, "echo kept > /dev/shm/f")
    await sandbox.hibernate()
    caller: asyncio.Task[None] | None = None

    async def leave(*given: Any) -> Link:
        assert caller is not None
        caller.cancel()
        await asyncio.sleep(0)
        return await enliven(*given)

    monkeypatch.setattr(waking, "enliven", leave)
    caller = asyncio.create_task(sandbox.wake())
    with pytest.raises(asyncio.CancelledError):
        await caller
    (record,) = [record for record in await fleet.list() if record.id == sandbox.id]
    assert record.state == "running", f"a client that left has cost the sandbox its life: {record.state}, {record.reason}"
    assert await said(sandbox, "cat /dev/shm/f") == "kept"


async def test_a_fork_that_is_called_off_leaves_no_child(
    sandbox: Sandbox, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {record.id for record in await fleet.list()}
    launch, begun, one_runs, never = fleet.starts.launch, asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def only_the_first(*given: Any) -> Sandbox:
        if begun.is_set():
            await never.wait()
        begun.set()
        child = await launch(*given)
        one_runs.set()
        return child

    monkeypatch.setattr(fleet.starts, "launch", only_the_first)
    forking = asyncio.create_task(sandbox.fork(2))
    async with asyncio.timeout(120):
        await one_runs.wait()
    forking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await forking
    assert {record.id for record in await fleet.list()} == before, "a child that was faster than the others was left behind"
    assert await said(sandbox, "echo well") == "well"


async def test_on_a_full_disk_a_pause_fails_whole_and_an_end_makes_room(
    create: CreateSandbox, fleet: Fleet, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = await create()
    snapshot = await sandbox.snapshot()
    records = fleet._context.records

    def taking_nothing(name: str, made_room: Path) -> None:
        method = getattr(records, name)

        def call(*values: object, **options: object) -> object:
            if made_room.exists():
                raise HostDiskShort("no space left")
            return method(*values, **options)

        monkeypatch.setattr(records, name, call)

    taking_nothing("update_sandbox", settings.home / "sandboxes" / sandbox.id)
    taking_nothing("delete_sandbox", settings.home / "sandboxes" / sandbox.id)
    taking_nothing("delete_snapshot", settings.home / "snapshots" / snapshot.id)
    with pytest.raises(HostDiskShort):
        await sandbox.pause()
    assert await said(sandbox, "echo runs on") == "runs on"
    await fleet.remove_snapshot(snapshot.id)
    assert snapshot.id not in {record.id for record in await fleet.snapshots()}
    await sandbox.kill()
    assert sandbox.id not in {record.id for record in await fleet.list()}
