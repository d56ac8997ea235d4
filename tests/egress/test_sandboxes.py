"""Policy, limits and secrets of real sandboxes, also when these are forked, saved, put to sleep and found again."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

import pytest

from belljar.errors import InvalidInput, NotFound
from belljar.fleet.sandbox import Sandbox
from belljar.fleet.sandboxes import Fleet
from tests.conftest import CreateSandbox, said
from tests.egress.test_gateway import eventually
from tests.egress.world import World

DEADLINE_S = 60


def reach(host: str, port: int) -> list[str]:
    """Says hello to an echo server, and prints what came back or which error there was."""
    code = f"""
import socket
try:
    s = socket.create_connection(({host!r}, {port}), 30)
    s.sendall(b"hello"); print(s.recv(5).decode())
except OSError as problem:
    print(type(problem).__name__, problem.errno)
"""
    return ["python3", "-c", code]


@pytest.fixture
async def port(world: World) -> int:
    for name in ("echo.test", "other.test"):
        world.name(name)
    return await world.servers.echo()


async def test_an_allow_list_at_create(make: CreateSandbox, port: int) -> None:
    sandbox = await make(egress=[f"echo.test:{port}"])
    assert sandbox.egress.policy.mode == "allow-list"
    assert await said(sandbox, reach("echo.test", port)) == "hello"
    assert (await said(sandbox, reach("other.test", port))).startswith("gaierror")
    assert (await said(sandbox, reach("127.0.0.1", port))).startswith("ConnectionRefusedError"), "that is the guest's own loopback"
    assert (await said(sandbox, reach("1.1.1.1", 443))) == "ConnectionRefusedError 111"
    refused = [(line.target, line.rule) for line in sandbox.egress.log() if line.verdict == "refused"]
    assert ("other.test", "mode allow-list") in refused and ("1.1.1.1:443", "mode allow-list") in refused


async def test_off_and_on_again_at_run_time(make: CreateSandbox, port: int) -> None:
    sandbox = await make(egress="off")
    assert (await said(sandbox, reach("echo.test", port))).startswith("gaierror")
    await sandbox.egress.set_policy("open")
    assert await said(sandbox, reach("echo.test", port)) == "hello"
    wait = f"import socket\ns = socket.create_connection(('echo.test', {port}))\nprint('up', flush=True)\nprint(s.recv(1))"
    async with await sandbox.processes.start(["python3", "-u", "-c", wait], stdin=False) as process:
        assert b"up" in (await anext(aiter(process))).data
        await sandbox.egress.set_policy("off")
        rest = b"".join([output.data async for output in process])
    assert b"ConnectionResetError" in rest, "an open connection outlived the policy"
    with pytest.raises(InvalidInput):
        await sandbox.egress.set_policy({"allow": ["not a host"]})
    assert sandbox.egress.policy.mode == "off"


async def test_a_cell_is_told_what_was_refused(box: Sandbox) -> None:
    code = "import socket\ntry:\n    socket.create_connection(('10.0.0.1', 80), 30)\nexcept OSError as e:\n    print(e.errno)"
    ran = await box.run_code(code, timeout_s=60)
    assert ran.stdout == "111\n"
    (note,) = ran.notes
    assert note.startswith("network: 10.0.0.1:80 was refused: 10.0.0.1 is private")
    assert (await box.run_code("1", timeout_s=60)).notes == ()


async def hold(sandbox: Sandbox, port: int) -> str:
    """The process of a program that has a connection and waits for what never comes.

    The program itself has it: one that only the host has made yet is asked for again after a restore, and then works.
    """
    code = f"import socket\ns = socket.create_connection(('echo.test', {port}), 120)\nopen('/tmp/held', 'w')\nprint(s.recv(1))"
    held = await sandbox.processes.start(["python3", "-c", code], background=True)
    await said(sandbox, "until [ -e /tmp/held ]; do sleep 0.05; done")
    assert sandbox.egress.counters.open == 1
    return held.id


async def test_children_have_policy_and_secrets_of_their_own(make: CreateSandbox, world: World, port: int, tmp_path: Path) -> None:
    api = world.web(tmp_path, world.name("api.test"))
    host = f"api.test:{api.port}"
    secrets = [{"host": host, "header": "X-Key", "value": "one"}]
    parent = await make(egress=["echo.test", "api.test"], egress_secrets=secrets)
    ask = f"curl -sS -m 60 -o /dev/null -w '%{{http_code}}' https://{host}/echo"
    assert await said(parent, ask) == "200"
    held = await hold(parent, port)
    (child,) = await parent.fork()
    try:
        assert child.egress.policy == parent.egress.policy
        assert child.egress.secrets == [{"host": host, "header": "X-Key"}]
        async with await child.processes.attach(held) as process:
            rest = b"".join([output.data async for output in process])
        assert b"ConnectionResetError" in rest, "the child's copy of a connection was not closed"
        assert parent.egress.counters.open == 1, "the parent's own connection was lost"
        assert await said(child, ask) == "200"
        await child.egress.set_secret(host, "X-Key", "two")
        assert await said(child, ask) == "200" and api.requests[-1]["headers"]["x-key"] == "two"
        assert await said(parent, ask) == "200" and api.requests[-1]["headers"]["x-key"] == "one"
        await child.egress.set_policy("off")
        assert await said(parent, reach("echo.test", port)) == "hello"
        assert parent.record.egress_authority != child.record.egress_authority != ""
        await child.egress.remove_secret(host, "X-Key")
        with pytest.raises(NotFound):
            await child.egress.remove_secret(host, "X-Key")
        await child.egress.set_policy("open")
        failed = await child.processes.run(ask, timeout_s=60)
        assert failed.exit_code == 60, "without a secret the guest speaks to the server itself, which it does not trust"
    finally:
        await child.kill()


async def test_sleep_snapshot_and_a_new_owner_keep_everything(make: CreateSandbox, world: World, port: int, tmp_path: Path) -> None:
    api = world.web(tmp_path, world.name("api.test"))
    host = f"api.test:{api.port}"
    sandbox = await make(egress=["echo.test", "api.test"])
    await sandbox.egress.set_secret(host, "X-Key", "kept")
    ask = f"curl -sS -m 60 -o /dev/null -w '%{{http_code}}' https://{host}/echo"
    held = await hold(sandbox, port)
    await sandbox.hibernate()
    assert sandbox.egress.counters.open == 0
    await sandbox.egress.set_policy(["echo.test", "api.test", "other.test"])
    await sandbox.wake()
    async with await sandbox.processes.attach(held) as process:
        assert b"ConnectionResetError" in b"".join([output.data async for output in process])
    assert await said(sandbox, reach("other.test", port)) == "hello"
    assert await said(sandbox, ask) == "200" and api.requests[-1]["headers"]["x-key"] == "kept"
    snapshot = await sandbox.snapshot()
    copy = await make(snapshot=snapshot.id)
    assert copy.egress.policy == sandbox.egress.policy
    assert await said(copy, ask) == "200" and api.requests[-1]["headers"]["x-key"] == "kept"
    closed = await make(snapshot=snapshot.id, egress="off", egress_secrets=[])
    assert closed.egress.policy.mode == "off" and not closed.egress.secrets
    await world.fleet.remove_snapshot(snapshot.id)
    await sandbox.detach()
    async with await Fleet.open(world.fleet._context.settings, maintain=False) as later:
        again = await later.get(sandbox.id)
        assert await said(again, reach("other.test", port)) == "hello"
        assert await said(again, ask) == "200" and api.requests[-1]["headers"]["x-key"] == "kept"


async def test_the_network_comes_back_without_a_call(make: CreateSandbox, world: World, port: int) -> None:
    """A session that breaks is made again for the guest's own sake."""
    sandbox = await make()
    loop = (
        f"import socket, time\nwhile True:\n    try:\n        socket.create_connection(('echo.test', {port}), 20).sendall(b'x')\n"
    )
    loop += "    except OSError: pass\n    time.sleep(0.2)"
    await sandbox.processes.start(["python3", "-c", loop], background=True)
    await eventually(lambda: sandbox.egress.counters.allowed > 1, "the first connections")
    assert sandbox._running is not None and sandbox._running.link is not None
    await sandbox._running.link.aclose()
    before = sandbox.egress.counters.allowed
    await eventually(lambda: sandbox.egress.counters.allowed > before + 1, "connections after the session was lost")


async def test_the_settings_decide_where_nobody_else_does(world: World, port: int) -> None:
    settings = dataclasses.replace(world.fleet._context.settings, egress="echo.test, *.example.test", egress_connections=3)
    async with await Fleet.open(settings, maintain=False) as fleet:
        sandbox = await fleet.create("base")
        try:
            assert [rule.text for rule in sandbox.egress.policy.allow] == ["echo.test", "*.example.test"]
            assert sandbox.egress.limits.connections == 3
            assert await said(sandbox, reach("echo.test", port)) == "hello"
            assert (await said(sandbox, reach("other.test", port))).startswith("gaierror")
        finally:
            await sandbox.kill()
    for bad in ({"egress": "no host"}, {"egress_dns": "x"}, {"egress_allow_private": "x"}, {"egress_ca_file": "/nowhere"}):
        with pytest.raises(InvalidInput, match=next(iter(bad))):
            await Fleet.open(dataclasses.replace(settings, **bad), maintain=False)


async def test_a_guest_that_opens_connections_without_end_harms_only_itself(make: CreateSandbox, box: Sandbox, port: int) -> None:
    sandbox = await make(egress={"mode": "open", "limits": {"connections": 20}})
    code = f"""
import socket
opened = refused = 0
kept = []
for _ in range(300):
    try:
        kept.append(socket.create_connection(("echo.test", {port}), 30)); opened += 1
    except OSError:
        refused += 1
print(opened, refused)
"""
    flood = asyncio.create_task(said(sandbox, ["python3", "-c", code]))
    assert await said(box, reach("echo.test", port)) == "hello"
    opened, refused = map(int, (await flood).split())
    assert opened == 20 and refused == 280
    await eventually(lambda: sandbox.egress.counters.open == 0, "the end of what the program held")
    assert await said(sandbox, reach("echo.test", port)) == "hello"


async def test_records_show_no_secret(make: CreateSandbox, world: World) -> None:
    sandbox = await make(egress_secrets=[{"host": "api.test", "header": "X-Key", "value": "hidden-value"}])
    records = [repr(sandbox.record), repr(await world.fleet.list()), repr(sandbox.egress.secrets)]
    assert not any("hidden-value" in text or "PRIVATE KEY" in text for text in records)
    found = await sandbox.processes.run("sudo grep -rls hidden-value /etc /home /root /run /tmp /var /workspace", timeout_s=100)
    assert found.stdout == b""


async def test_a_machine_that_was_started_ahead_gets_the_policy_too(world: World, port: int) -> None:
    settings = dataclasses.replace(world.fleet._context.settings, pool_size=1)
    async with await Fleet.open(settings, maintain=False) as fleet:
        await fleet.filled("base")
        sandbox = await fleet.create("base", egress=["echo.test"], egress_secrets=[{"host": "a.test", "header": "X", "value": "y"}])
        try:
            assert sandbox.record.egress_authority, "it was not told whom to trust"
            assert await said(sandbox, reach("echo.test", port)) == "hello"
            assert (await said(sandbox, reach("other.test", port))).startswith("gaierror")
        finally:
            await sandbox.kill()


async def test_a_limit_in_all_is_one_over_all_owners(make: CreateSandbox, world: World, port: int) -> None:
    sandbox = await make(egress={"mode": "open", "limits": {"bytes": 10}})
    assert await said(sandbox, reach("echo.test", port)) == "hello"
    await sandbox.detach()
    async with await Fleet.open(world.fleet._context.settings, maintain=False) as later:
        again = await later.get(sandbox.id)
        assert await said(again, reach("echo.test", port)) == "ConnectionRefusedError 111"
        assert again.egress.log()[-1].rule == "limit bytes"
        await again.egress.set_policy("open")
        assert await said(again, reach("echo.test", port)) == "hello"
