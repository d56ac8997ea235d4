"""Owners that are killed, machines that die, and what is left behind: everything is found again or cleaned away."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from belljar.errors import HostBusy, SandboxBusy, SandboxError, SandboxGone, StartFailed
from belljar.fleet import capturing, recovery, sandboxes, starting
from belljar.fleet.launching import enliven
from belljar.fleet.sandbox import Sandbox
from belljar.fleet.sandboxes import Fleet
from belljar.settings import Settings
from belljar.store.db import Records, SandboxRecord
from belljar.store.layout import Layout
from belljar.vm.capture import capture
from belljar.vm.process import find_vmms, start_time
from belljar.vm.rundir import read_record
from tests.conftest import CreateSandbox, borrowed_home, said

# Another owner of the same home: does what it is told, says so, and waits to be killed.
OWNER = """
import asyncio, dataclasses, sys
from pathlib import Path
from belljar.settings import load_settings
from belljar.fleet.sandboxes import Fleet

async def main():
    settings = dataclasses.replace(load_settings(), home=Path(sys.argv[1]), pool_size=int(sys.argv[3]))
    fleet = await Fleet.open(settings)
    {body}
    print("READY", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def start_owner(settings: Settings, body: str, *arguments: str, pool: int = 0) -> subprocess.Popen[str]:
    code = OWNER.replace("{body}", body)
    argv = [sys.executable, "-c", code, str(settings.home), arguments[0] if arguments else "", str(pool)]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)


async def read_line(owner: subprocess.Popen[str]) -> str:
    assert owner.stdout
    async with asyncio.timeout(120):
        return (await asyncio.to_thread(owner.stdout.readline)).strip()


def kill_9(owner: subprocess.Popen[str]) -> None:
    owner.send_signal(signal.SIGKILL)
    owner.wait()


def folder_of(settings: Settings, sandbox_id: str) -> Path:
    return settings.home / "sandboxes" / sandbox_id


async def test_a_sandbox_survives_the_kill_9_of_its_owner_with_processes_and_output(fleet: Fleet, settings: Settings) -> None:
    body = """
    sandbox = await fleet.create(env={"KEPT": "yes"})
    process = await sandbox.processes.start("n=0; while true; do n=$((n+1)); echo tick $n; sleep 0.1; done", background=True)
    print(sandbox.id, process.id, flush=True)"""
    owner = start_owner(settings, body)
    sandbox_id, process_id = (await read_line(owner)).split()
    assert await read_line(owner) == "READY"
    kill_9(owner)

    sandbox = await fleet.get(sandbox_id)
    assert await said(sandbox, "echo $KEPT") == "yes"
    process = await sandbox.processes.attach(process_id)
    seen = b""
    async for output in process:
        seen += output.data
        if seen.count(b"\n") > 12:
            break
    await process.detach()
    ticks = [int(line.split()[1]) for line in seen.decode().split("\n")[:-1]]
    assert ticks == list(range(1, len(ticks) + 1)), "output was lost when the owner died"
    (child,) = await sandbox.fork()
    assert process_id in {process.id for process in await child.processes.list() if process.running}
    await child.kill()
    await sandbox.hibernate()
    await sandbox.wake()
    await sandbox.kill()


async def test_a_foreground_process_runs_on_without_its_owner_and_can_be_attached(fleet: Fleet, settings: Settings) -> None:
    body = """
    sandbox = await fleet.create()
    process = await sandbox.processes.start("sleep 2; echo done at last; sleep 600")
    print(sandbox.id, process.id, flush=True)"""
    owner = start_owner(settings, body)
    sandbox_id, process_id = (await read_line(owner)).split()
    kill_9(owner)
    sandbox = await fleet.get(sandbox_id)
    process = await sandbox.processes.attach(process_id)
    async with asyncio.timeout(60):
        output = await anext(aiter(process))
    assert output.data == b"done at last\n"
    await process.kill()
    await sandbox.kill()


async def test_an_owner_killed_in_the_middle_of_anything_leaves_a_sandbox_that_works(fleet: Fleet, settings: Settings) -> None:
    body = """
    sandbox = await fleet.create()
    await sandbox.files.write("/workspace/kept", "kept")
    print(sandbox.id, flush=True)
    while True:
        for child in await sandbox.fork(2):
            await child.kill()
        await fleet.remove_snapshot((await sandbox.snapshot()).id)"""
    for delay in (0.3, 0.8, 1.5):
        owner = start_owner(settings, body)
        sandbox_id = await read_line(owner)
        await asyncio.sleep(delay)
        kill_9(owner)
        sandbox = await fleet.get(sandbox_id)
        assert await said(sandbox, "cat /workspace/kept") == "kept"
        await sandbox.kill()
    await asyncio.sleep(recovery.GRACE_S + 0.5)
    await fleet.sweep()
    for record in await fleet.list():
        if record.parent:
            await fleet.kill(record.id)
    known = {record.id for record in await fleet.list()}
    left = [path.name for path in (settings.home / "sandboxes").iterdir() if path.name not in known]
    assert left == []
    assert [path.name for path in (settings.home / "tmp").iterdir() if path.name.startswith(("fork-", "snapshot-"))] == []


async def test_machines_started_ahead_do_not_outlive_their_owner_for_long(fleet: Fleet, settings: Settings) -> None:
    owner = start_owner(settings, "await (await fleet.create()).kill(); await fleet.filled('base')", pool=2)
    assert await read_line(owner) == "READY"
    ahead = [record.id for record in fleet._context.records.list_sandboxes(states=("pooled",))]
    assert len(ahead) == 2, ahead
    processes = [machine.pid for name in ahead if (machine := read_record(folder_of(settings, name)))]
    kill_9(owner)
    await asyncio.sleep(recovery.GRACE_S + 0.5)
    await fleet.sweep()
    async with asyncio.timeout(60):  # the fleet's own rounds may be at it at the same moment
        while any(start_time(pid) for pid in processes) or any(folder_of(settings, name).exists() for name in ahead):
            await asyncio.sleep(0.1)
        while fleet._context.records.list_sandboxes(states=("pooled",)):
            await asyncio.sleep(0.1)


async def test_only_one_process_uses_a_sandbox_at_a_time(sandbox: Sandbox, settings: Settings) -> None:
    await said(sandbox, "true")
    async with await Fleet.open(settings, maintain=False) as other:
        second = await other.get(sandbox.id)
        with pytest.raises(SandboxBusy, match=str(os.getpid())):
            await second.processes.run("true")
        await sandbox.detach()
        assert await said(second, "echo mine now") == "mine now"
        await second.detach()
    assert await said(sandbox, "echo back again") == "back again"


async def test_a_machine_that_is_killed_is_noticed_explained_and_cleaned_up(
    create: CreateSandbox, fleet: Fleet, settings: Settings
) -> None:
    sandbox = await create()
    pid = (await sandbox.stats())["host"]["pid"]
    waiting = asyncio.create_task(sandbox.processes.run("sleep 600"))
    await asyncio.sleep(0.3)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(SandboxGone):
        async with asyncio.timeout(30):
            await waiting
    with pytest.raises(SandboxGone):
        await sandbox.processes.run("true")
    async with asyncio.timeout(30):
        while folder_of(settings, sandbox.id).exists():
            await asyncio.sleep(0.05)
    record = next(record for record in await fleet.list() if record.id == sandbox.id)
    assert record.state == "dead" and record.reason


async def test_a_machine_that_died_while_nobody_looked_is_found_by_the_sweep(
    create: CreateSandbox, fleet: Fleet, settings: Settings
) -> None:
    sandbox = await create()
    pid = (await sandbox.stats())["host"]["pid"]
    await sandbox.detach()
    os.kill(pid, signal.SIGKILL)
    while start_time(pid) is not None:
        await asyncio.sleep(0.01)
    report = await fleet.sweep()
    assert sandbox.id in report.died
    with pytest.raises(SandboxGone, match="gone"):
        await (await fleet.get(sandbox.id)).processes.run("true")


async def test_a_folder_without_a_record_loses_its_process_and_goes(
    create: CreateSandbox, fleet: Fleet, settings: Settings
) -> None:
    sandbox = await create()
    pid = (await sandbox.stats())["host"]["pid"]
    await sandbox.detach()
    fleet._context.records.delete_sandbox(sandbox.id)
    report = await fleet.sweep()
    assert sandbox.id in report.orphans
    assert start_time(pid) is None
    assert not folder_of(settings, sandbox.id).exists()


async def test_a_machine_that_nobody_came_to_write_down_is_ended(create: CreateSandbox, fleet: Fleet, settings: Settings) -> None:
    """An owner can be killed between the start of a process and the note of its pid: of a new sandbox, and of one that wakes."""
    begun, waking = await create(), await create()
    pids = [(await sandbox.stats())["host"]["pid"] for sandbox in (begun, waking)]
    for sandbox in (begun, waking):
        await sandbox.detach()
        (folder_of(settings, sandbox.id) / "machine.json").unlink()
    records = fleet._context.records
    records.update_sandbox(begun.id, state="creating", created_at=time.time() - 60)
    records.update_sandbox(waking.id, state="hibernated")
    async with asyncio.timeout(60):
        # The fleet's own rounds may be at it at the same moment.
        while any(start_time(pid) for pid in pids) or records.find_sandbox(begun.id):
            await fleet.sweep()
            await asyncio.sleep(0.1)
    assert not folder_of(settings, begun.id).exists()
    assert records.get_sandbox(waking.id).state == "hibernated" and folder_of(settings, waking.id).exists()


async def test_a_start_that_is_called_off_leaves_no_process(fleet: Fleet, settings: Settings) -> None:
    sandboxes = settings.home / "sandboxes"
    before = find_vmms("qemu.log", sandboxes)
    for pause_s in (0.005, 0.02, 0.05, 0.2):
        start = asyncio.create_task(fleet.create())
        await asyncio.sleep(pause_s)
        start.cancel()
        outcome = await asyncio.gather(start, return_exceptions=True)
        if isinstance(outcome[0], Sandbox):
            await outcome[0].kill()
    assert find_vmms("qemu.log", sandboxes).keys() == before.keys()


async def test_a_start_whose_machine_dies_or_is_slow_is_the_starts_failure(
    create: CreateSandbox, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = await create()

    async def die(machine: Any, *_: Any) -> Any:
        os.kill(machine.pid, signal.SIGKILL)
        return await enliven(machine, *_)

    before = {record.id for record in await fleet.list()}
    with monkeypatch.context() as patch:
        patch.setattr(starting, "enliven", die)
        with pytest.raises(StartFailed):
            await create()
        with pytest.raises(StartFailed):
            await parent.fork()
    with monkeypatch.context() as patch:
        patch.setattr("belljar.vm.machine.MONITOR_DEADLINE_S", 0.0)
        with pytest.raises(HostBusy) as slow:
            await create()
        assert slow.value.retry == "yes"
    assert {record.id for record in await fleet.list()} == before
    assert await said(parent, "echo well") == "well"


async def test_a_capture_whose_machine_dies_says_so(create: CreateSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    async def die(machine: Any, *given: Any, **named: Any) -> Any:
        os.kill(machine.pid, signal.SIGKILL)
        return await capture(machine, *given, **named)

    monkeypatch.setattr(capturing, "capture", die)
    for move in ("fork", "snapshot", "hibernate"):
        sandbox = await create()
        with pytest.raises(SandboxGone) as gone:
            await getattr(sandbox, move)()
        assert "Errno" not in gone.value.message


async def test_a_frozen_vmm_meets_a_deadline_and_can_be_killed(create: CreateSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    from belljar.errors import DeadlineExceeded

    sandbox = await create()
    pid = (await sandbox.stats())["host"]["pid"]
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(DeadlineExceeded):
        await sandbox.pause()
    await sandbox.kill()
    assert start_time(pid) is None


async def test_an_expired_sandbox_ends_even_if_nobody_was_there_when_its_time_ran_out(own_settings: Settings) -> None:
    with borrowed_home(own_settings) as home:  # where no other fleet looks after it
        settings = replace(own_settings, home=home)
        async with await Fleet.open(settings, maintain=False) as first:
            sandbox = await first.create(ttl_s=1)
            pid = (await sandbox.stats())["host"]["pid"]
        await asyncio.sleep(1.1)
        assert start_time(pid) is not None
        async with await Fleet.open(settings, maintain=False) as later:
            assert sandbox.id not in {record.id for record in await later.list()}
        assert start_time(pid) is None


async def test_nobody_starts_from_the_memory_that_a_sleeper_woke_with(own_settings: Settings) -> None:
    """A new process takes a template's memory from a live machine if it can: from one that runs on the template's own."""
    with borrowed_home(own_settings) as home:
        settings = replace(own_settings, home=home)
        async with await Fleet.open(settings, maintain=False) as first:
            sleeper = await first.create()
            await sleeper.run_code("secret = 'of the sleeper'")
            await sleeper.hibernate()
            await sleeper.wake()
        async with await Fleet.open(settings, maintain=False) as later:
            try:
                fresh = await later.create()
                assert (await fresh.run_code("'secret' in globals()")).text == "False"
                assert (await (await later.get(sleeper.id)).run_code("secret")).text == "'of the sleeper'"
            finally:
                for record in await later.list():
                    await later.kill(record.id)


async def test_a_damaged_database_says_what_to_do(tmp_path: Path) -> None:
    from belljar.errors import HostSetup
    from belljar.store.db import Records

    (tmp_path / "belljar.db").write_bytes(b"this is no database" * 100)
    with pytest.raises(HostSetup, match="move it away"):
        Records(tmp_path / "belljar.db")


async def test_a_missing_file_of_a_snapshot_is_a_typed_error(sandbox: Sandbox, fleet: Fleet, settings: Settings) -> None:
    snapshot = await sandbox.snapshot()
    (settings.home / "snapshots" / snapshot.id / "devices.state").unlink()
    from belljar.errors import HostSetup

    before = len(await fleet.list())
    with pytest.raises(HostSetup, match=r"devices\.state"):
        await fleet.create(snapshot=snapshot.id)
    assert len(await fleet.list()) == before
    await fleet.remove_snapshot(snapshot.id)


async def test_device_state_that_is_damaged_fails_typed_and_leaves_nothing(
    sandbox: Sandbox, fleet: Fleet, settings: Settings
) -> None:
    from belljar.errors import BelljarError

    snapshot = await sandbox.snapshot()
    file = settings.home / "snapshots" / snapshot.id / "devices.state"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    before = sorted((settings.home / "sandboxes").iterdir())
    with pytest.raises(BelljarError):
        await fleet.create(snapshot=snapshot.id)
    assert sorted((settings.home / "sandboxes").iterdir()) == before
    await fleet.remove_snapshot(snapshot.id)


async def test_a_lock_is_released_with_its_holder(tmp_path: Path) -> None:
    from belljar.fleet.launching import take_lock

    code = "import sys; from pathlib import Path; from belljar.fleet.launching import take_lock\n"
    code += "take_lock(Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
    holder = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert await read_line(holder) == "held"
    with pytest.raises(SandboxBusy, match=str(holder.pid)):
        take_lock(tmp_path)
    kill_9(holder)
    began = time.monotonic()
    os.close(take_lock(tmp_path))
    assert time.monotonic() - began < 60


@pytest.mark.parametrize("age_s", [3600.0, -3600.0])
async def test_an_interrupted_start_is_removed_also_if_the_clock_was_set_back_since(tmp_path: Path, age_s: float) -> None:
    layout = Layout(tmp_path)
    layout.prepare()
    records = Records(layout.database)
    start = SandboxRecord("sb", "base", "d", "creating", time.time() - age_s, vcpus=1, memory_mib=1, disk_mib=1)
    erased: list[str] = []

    async def erase(sandbox_id: str) -> None:
        erased.append(sandbox_id)

    context: Any = SimpleNamespace(records=records, layout=layout)
    undertaker: Any = SimpleNamespace(erase=erase)
    await recovery._sweep_record(context, undertaker, records.insert_sandbox(start), recovery.SweepReport(), False)
    records.close()
    assert erased == ["sb"]


@pytest.mark.parametrize(
    ("listed", "now"),
    [
        ({"state": "running"}, {"state": "hibernated"}),
        ({"state": "creating"}, {"state": "running"}),
        ({"state": "running", "expires_at": 2.0}, {"state": "running", "expires_at": 2.0**40}),
    ],
)
async def test_a_sweep_that_looked_too_early_ends_nothing(tmp_path: Path, listed: Any, now: Any) -> None:
    """Between the listing and the look at one sandbox its owner may have moved it on, and let go of its lock."""
    layout = Layout(tmp_path)
    layout.prepare()
    records = Records(layout.database)
    current = records.insert_sandbox(SandboxRecord("sb", "base", "d", created_at=1.0, vcpus=1, memory_mib=1, disk_mib=1, **now))
    layout.sandbox("sb").mkdir()
    ended: list[str] = []

    async def end(sandbox_id: str, *_: object) -> None:
        ended.append(sandbox_id)

    context: Any = SimpleNamespace(records=records, layout=layout)
    undertaker = SimpleNamespace(kill=end, erase=end, bury=end)
    await recovery._sweep_record(context, undertaker, replace(current, **listed), recovery.SweepReport(), True)
    records.close()
    assert ended == []


async def test_one_sandbox_that_cannot_be_ended_does_not_keep_the_others_alive(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    layout.prepare()
    records = Records(layout.database)
    for name in ("sb-1", "sb-2", "sb-3"):
        records.insert_sandbox(
            SandboxRecord(name, "base", "d", "running", created_at=1.0, vcpus=1, memory_mib=1, disk_mib=1, expires_at=2.0)
        )
    ended: list[str] = []

    async def end(sandbox_id: str, *_: object) -> None:
        if sandbox_id == "sb-1":
            raise OSError(5, "Input/output error")
        if sandbox_id == "sb-2":
            raise SandboxError("process 1 did not end within 10 s of SIGKILL")
        ended.append(sandbox_id)

    context: Any = SimpleNamespace(records=records, layout=layout)
    undertaker: Any = SimpleNamespace(kill=end, erase=end, bury=end)
    report = await recovery.sweep(context, undertaker)
    records.close()
    assert ended == report.expired == ["sb-3"]


async def test_the_clean_up_goes_on_after_whatever_went_wrong(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds: list[int] = []
    went_on = asyncio.Event()

    async def sweep() -> None:
        rounds.append(len(rounds))
        if len(rounds) == 1:
            raise OSError(24, "Too many open files")
        went_on.set()

    monkeypatch.setattr(sandboxes, "SWEEP_EVERY_S", 0.01)
    async with await Fleet.open(settings) as fleet:
        monkeypatch.setattr(fleet, "sweep", sweep)
        async with asyncio.timeout(60):
            await went_on.wait()
