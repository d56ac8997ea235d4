"""Creating, finding and ending sandboxes, on real machines."""

from __future__ import annotations

import asyncio
import dataclasses
import platform
import time
from pathlib import Path

import pytest

from belljar.errors import (
    HostDiskShort,
    HostMemoryShort,
    InvalidInput,
    NotSupported,
    SandboxGone,
    SandboxNotFound,
    SnapshotNotFound,
    TemplateNotFound,
)
from belljar.fleet.sandbox import Sandbox
from belljar.fleet.sandboxes import Fleet
from belljar.settings import Settings
from belljar.vm.process import start_time
from tests.conftest import CreateSandbox, said


async def test_a_sandbox_has_a_kernel_of_its_own_and_no_network_card(sandbox: Sandbox) -> None:
    assert await said(sandbox, "uname -r") != platform.release()
    assert await said(sandbox, "ls /sys/class/net") == "lo"


async def test_base_offers_what_its_recipe_promises(sandbox: Sandbox) -> None:
    assert (await said(sandbox, "python --version && python3 --version")).count("Python 3.11") == 2
    for tool in ("bash", "git", "curl", "pip", "sudo", "find", "head"):
        assert await said(sandbox, f"command -v {tool}"), tool
    assert await said(sandbox, "id -un; pwd; sudo -n id -un") == "user\n/workspace\nroot"
    assert await said(sandbox, "touch /workspace/a /home/user/a && nproc") == "2"
    disk_kib = int((await said(sandbox, "df -k --output=size / | tail -1")).split()[0])
    assert 9 << 20 < disk_kib <= 10 << 20
    assert int((await said(sandbox, "grep MemTotal /proc/meminfo")).split()[1]) > 1_800_000


async def test_env_reaches_every_process_and_metadata_finds_the_sandbox(create: CreateSandbox, fleet: Fleet) -> None:
    made = await create(env={"GREETING": "hello world"}, metadata={"purpose": "env test"})
    assert await said(made, "echo $GREETING") == "hello world"
    assert await said(made, "echo $GREETING", env={"GREETING": "other"}) == "other"
    assert [record.id for record in await fleet.list({"purpose": "env test"})] == [made.id]
    assert await fleet.list({"purpose": "no such"}) == []


async def test_the_clock_is_right_and_each_sandbox_is_somebody_else(create: CreateSandbox) -> None:
    one, two = await create(), await create()
    for sandbox in (one, two):
        offset = abs(float(await said(sandbox, "date +%s.%N")) - time.time())
        assert offset < 30, f"the guest's clock is {offset} s off"
        assert await said(sandbox, "hostname") == sandbox.id
        assert await said(sandbox, "cat /etc/hostname") == sandbox.id
    draw = "cat /etc/machine-id; head -c 16 /dev/urandom | od -An -tx1; cat /proc/sys/kernel/random/uuid"
    first, second = (await said(one, draw)).split("\n"), (await said(two, draw)).split("\n")
    assert all(a != b for a, b in zip(first, second, strict=True)), (first, second)


async def test_sandboxes_do_not_see_each_other(create: CreateSandbox) -> None:
    one, two = await create(), await create()
    await one.files.write("/workspace/secret", "mine")
    await said(one, "sudo sh -c 'echo changed > /etc/issue; echo x > /usr/local/bin/marker'")
    assert not await two.files.exists("/workspace/secret")
    assert not await two.files.exists("/usr/local/bin/marker")
    three = await create()
    assert "changed" not in await said(three, "cat /etc/issue"), "the template was changed"


async def test_kill_leaves_no_process_no_folder_and_no_record(create: CreateSandbox, fleet: Fleet, settings: Settings) -> None:
    sandbox = await create()
    pid = (await sandbox.stats())["host"]["pid"]
    await sandbox.kill()
    assert start_time(pid) is None
    assert not (settings.home / "sandboxes" / sandbox.id).exists()
    with pytest.raises(SandboxNotFound):
        await fleet.get(sandbox.id)
    await sandbox.kill()
    with pytest.raises((SandboxNotFound, SandboxGone)):
        await sandbox.processes.run("true")


async def test_a_time_to_live_ends_the_sandbox(fleet: Fleet, create: CreateSandbox) -> None:
    sandbox = await create(ttl_s=0.5)
    await asyncio.sleep(0.6)
    await fleet.sweep()
    with pytest.raises(SandboxNotFound):
        await fleet.get(sandbox.id)


async def test_the_disk_can_be_larger_than_the_templates(create: CreateSandbox) -> None:
    sandbox = await create(disk_mib=20480)
    assert int((await said(sandbox, "df -k --output=size / | tail -1")).split()[0]) > 18 << 20


@pytest.mark.parametrize(
    ("wishes", "error"),
    [
        ({"template": "no-such"}, TemplateNotFound),
        ({"template": "../etc"}, InvalidInput),
        ({"template": "a/b"}, InvalidInput),
        ({"template": "nul\0"}, InvalidInput),
        ({"template": "x" * 10_000}, InvalidInput),
        ({"template": ""}, InvalidInput),
        ({"template": 7}, InvalidInput),
        ({"snapshot": "no-such"}, SnapshotNotFound),
        ({"snapshot": "../../x"}, SnapshotNotFound),
        ({"snapshot": "x" * 10_000}, SnapshotNotFound),
        ({"ttl_s": 0}, InvalidInput),
        ({"ttl_s": -1}, InvalidInput),
        ({"ttl_s": float("nan")}, InvalidInput),
        ({"ttl_s": 1e18}, InvalidInput),
        ({"vcpus": -1}, InvalidInput),
        ({"vcpus": 10**9}, InvalidInput),
        ({"vcpus": 1}, NotSupported),
        ({"memory_mib": 0}, InvalidInput),
        ({"memory_mib": 4096}, NotSupported),
        ({"disk_mib": -5}, InvalidInput),
        ({"disk_mib": 100}, NotSupported),
        ({"disk_mib": 10**12}, InvalidInput),
        ({"env": {"A=B": "x"}}, InvalidInput),
        ({"env": {"A": "nul\0"}}, InvalidInput),
        ({"env": ["A"]}, InvalidInput),
        ({"metadata": {"a": 1}}, InvalidInput),
    ],
)
async def test_bad_wishes_are_refused_before_anything_exists(
    fleet: Fleet, settings: Settings, wishes: dict[str, object], error: type[Exception]
) -> None:
    before = sorted((settings.home / "sandboxes").iterdir()), await fleet.list()
    with pytest.raises(error) as raised:
        await fleet.create(**wishes)  # type: ignore[arg-type]
    assert type(raised.value) is error
    assert (sorted((settings.home / "sandboxes").iterdir()), await fleet.list()) == before


@pytest.mark.parametrize("sandbox_id", ["no-such", "../x", "x" * 10_000, "nul\0", "\ud800", ""])
async def test_an_unknown_sandbox_is_not_found(fleet: Fleet, sandbox_id: str) -> None:
    with pytest.raises(SandboxNotFound):
        await fleet.get(sandbox_id)
    with pytest.raises(SandboxNotFound):
        await fleet.kill(sandbox_id)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"host_memory_reserve_mib": 2**24}, HostMemoryShort),
        ({"host_disk_reserve_mib": 2**30}, HostDiskShort),
    ],
)
async def test_a_host_that_is_short_refuses_and_creates_nothing(
    settings: Settings, change: dict[str, int], error: type[Exception]
) -> None:
    async with await Fleet.open(dataclasses.replace(settings, **change), maintain=False) as short:
        before = sorted((settings.home / "sandboxes").iterdir())
        with pytest.raises(error, match="MiB"):
            await short.create()
        assert sorted((settings.home / "sandboxes").iterdir()) == before


async def test_promised_memory_has_a_limit(settings: Settings, create: CreateSandbox) -> None:
    await create()
    async with await Fleet.open(dataclasses.replace(settings, memory_oversubscription=1.0), maintain=False) as strict:
        made = []
        try:
            with pytest.raises(HostMemoryShort, match="memory_oversubscription"):
                for _ in range(1000):
                    made.append(await strict.create())
        finally:
            for sandbox in made:
                await sandbox.kill()


async def test_many_creates_at_once_all_answer(create: CreateSandbox) -> None:
    made = await asyncio.gather(*(create() for _ in range(8)))
    answers = await asyncio.gather(*(said(sandbox, "hostname") for sandbox in made))
    assert answers == [sandbox.id for sandbox in made]


async def test_a_pool_hands_out_machines_that_are_as_fresh_as_any(settings: Settings) -> None:
    async with await Fleet.open(dataclasses.replace(settings, pool_size=2), maintain=False) as pooled:
        first = await pooled.create()
        await pooled.filled("base")
        made = [first, *[await pooled.create(env={"N": str(n)}, metadata={"n": str(n)}) for n in range(2)]]
        try:
            ids = [await said(sandbox, "hostname; cat /etc/machine-id; head -c 8 /dev/urandom | od -An -tx1") for sandbox in made]
            assert [lines.split("\n")[0] for lines in ids] == [sandbox.id for sandbox in made]
            assert len({line for lines in ids for line in lines.split("\n")}) == 9, ids
            assert await said(made[2], "echo $N; cat /proc/loadavg >/dev/null; ls -A /workspace") == "1"
            assert abs(float(await said(made[2], "date +%s.%N")) - time.time()) < 30
            assert [record.metadata for record in await pooled.list({"n": "1"})] == [{"n": "1"}]
        finally:
            for sandbox in made:
                await sandbox.kill()
    async with await Fleet.open(settings, maintain=False) as after:
        assert not [record for record in await after.list() if record.id in {sandbox.id for sandbox in made}]


async def test_a_snapshot_that_goes_while_it_is_wanted_keeps_no_memory(
    fleet: Fleet, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_images() -> int:
        links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
        return sum("memfd:belljar-ram" in str(link.readlink()) for link in links)

    snapshot = await sandbox.snapshot()
    get, asked = fleet._context.records.get_snapshot, []

    def gone_the_second_time(snapshot_id: str) -> object:
        asked.append(snapshot_id)
        if len(asked) % 2 == 0:
            raise SnapshotNotFound("it was removed just now")
        return get(snapshot_id)

    with monkeypatch.context() as patch:
        patch.setattr(fleet._context.records, "get_snapshot", gone_the_second_time)
        with pytest.raises(SnapshotNotFound):
            await fleet.create(snapshot=snapshot.id)
        before = open_images()  # with the one that is kept for whoever asks next
        with pytest.raises(SnapshotNotFound):
            await fleet.create(snapshot=snapshot.id)
        assert open_images() == before
    await fleet.remove_snapshot(snapshot.id)
