"""Reading and writing files through the agent."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest

from belljar.errors import BelljarError, DiskFull, FileDenied, FileError, FileMissing, InvalidInput, IsADirectory, NotADirectory
from belljar.vm.link import Message
from tests.guest.conftest import DEADLINE_S, Guest

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="changing users needs root")


def leftovers(guest: Guest) -> list[str]:
    return [path.name for path in guest.home.rglob(".belljar-*")]


async def test_large_binary_file_comes_back_the_same(guest: Guest) -> None:
    data = os.urandom(5_000_000)
    answer = await guest.write("big.bin", data)
    assert answer == {"path": str(guest.home / "big.bin"), "bytes": len(data)}
    assert await guest.read("big.bin") == data
    assert leftovers(guest) == []


async def test_empty_file(guest: Guest) -> None:
    assert (await guest.write("empty", b""))["bytes"] == 0
    assert await guest.read("empty") == b""


async def test_part_of_a_file(guest: Guest) -> None:
    await guest.write("x", b"0123456789")
    assert await guest.read("x", offset=3, length=4) == b"3456"
    assert await guest.read("x", offset=100) == b""
    assert await guest.read("x", length=0) == b""


async def test_read_says_size_and_mode_first(guest: Guest) -> None:
    await guest.write("x", b"abc", mode=0o750)
    async with await guest.link.open("file.read", {"path": "x"}) as channel:
        first = await channel.receive()
    assert isinstance(first, Message)
    assert (first.body["size"], first.body["mode"]) == (3, 0o750)


async def test_kernel_files_without_a_size_are_read(guest: Guest) -> None:
    assert (await guest.read("/proc/version")).startswith(b"Linux")
    assert (await guest.read("/sys/kernel/mm/transparent_hugepage/enabled")).strip()


async def test_append(guest: Guest) -> None:
    await guest.write("log", b"one\n", append=True)
    await guest.write("log", b"two\n", append=True)
    assert await guest.read("log") == b"one\ntwo\n"


async def test_replacing_keeps_the_mode(guest: Guest) -> None:
    await guest.write("script", b"1", mode=0o755)
    await guest.write("script", b"2")
    assert (guest.home / "script").stat().st_mode & 0o777 == 0o755


async def test_write_through_a_symbolic_link_keeps_the_link(guest: Guest) -> None:
    (guest.home / "link").symlink_to("real")
    await guest.write("link", b"x")
    assert (guest.home / "link").is_symlink()
    assert (guest.home / "real").read_bytes() == b"x"


async def test_hard_links_see_the_new_content(guest: Guest) -> None:
    (guest.home / "a").write_text("old")
    (guest.home / "b").hardlink_to(guest.home / "a")
    await guest.write("a", b"new")
    assert (guest.home / "b").read_text() == "new"


async def test_running_program_can_be_replaced(guest: Guest) -> None:
    program = guest.home / "program"
    program.write_bytes(Path("/bin/sleep").read_bytes())
    program.chmod(0o755)
    name = str((await guest.ask("process.start", argv=[str(program), "1000"], background=True))["started"]["id"])
    await guest.write("program", b"new")
    assert program.read_bytes() == b"new"
    await guest.ask("process.kill", id=name)


async def test_write_that_is_given_up_leaves_the_old_file(guest: Guest) -> None:
    await guest.write("x", b"old")
    channel = await guest.link.open("file.write", {"path": "x"})
    await channel.send(bytes(1_000_000))
    await channel.aclose()
    async with asyncio.timeout(DEADLINE_S):
        while leftovers(guest):
            await asyncio.sleep(0.01)
    assert await guest.read("x") == b"old"


async def test_odd_names(guest: Guest) -> None:
    for name in ("with space", "ünïcode ☃", "new\nline", "-dash", "\udcff\udcfe"):
        await guest.write(name, name.encode("utf-8", "surrogateescape"))
        assert await guest.read(name) == name.encode("utf-8", "surrogateescape")


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("missing", FileMissing),
        ("/", IsADirectory),
        ("/etc/passwd/x", NotADirectory),
        ("x" * 300, InvalidInput),
        ("/".join(["x" * 200] * 30), InvalidInput),
        ("", InvalidInput),
        ("a\0b", InvalidInput),
        (5, InvalidInput),
        (None, InvalidInput),
        (["x"], InvalidInput),
        ("fifo", InvalidInput),
        ("socket", InvalidInput),
        ("/dev/zero", InvalidInput),
        ("loop", InvalidInput),
    ],
)
async def test_reading_what_cannot_be_read_is_a_typed_error(guest: Guest, path: object, error: type[BelljarError]) -> None:
    os.mkfifo(guest.home / "fifo")
    (guest.home / "loop").symlink_to("loop")
    with socket.socket(socket.AF_UNIX) as sock:
        os.chdir(guest.home)  # the address of a socket is short
        sock.bind("socket")
        channel = await guest.link.open("file.read", {"path": path})
        with pytest.raises(error):
            await channel.receive()


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("/", IsADirectory),
        (".", IsADirectory),
        ("new/", IsADirectory),
        ("/etc/passwd/x", NotADirectory),
        ("/proc/version", FileError),
        ("/proc/no/such", FileMissing),
        ("fifo", InvalidInput),
        ("x" * 300, InvalidInput),
        ("/dev/full", DiskFull),
    ],
)
async def test_writing_where_nothing_can_be_written_is_a_typed_error(guest: Guest, path: str, error: type[BelljarError]) -> None:
    os.mkfifo(guest.home / "fifo")
    with pytest.raises(error):
        await guest.write(path, b"x")


@pytest.mark.parametrize("params", [{"offset": -1}, {"length": "x"}, {"offset": 1.5}, {"offset": True}, {"user": "who"}])
async def test_bad_parameters_are_invalid_input(guest: Guest, params: dict[str, object]) -> None:
    channel = await guest.link.open("file.read", {"path": "/etc/passwd", **params})
    with pytest.raises(InvalidInput):
        await channel.receive()


# -- users


@ROOT_ONLY
async def test_user_reads_and_writes_with_its_own_rights_only(guest: Guest) -> None:
    (guest.home / "secret").write_text("s")
    (guest.home / "secret").chmod(0o600)
    with pytest.raises(FileDenied):
        await guest.read("secret", user="nobody")
    with pytest.raises(FileDenied):
        await guest.write("mine", b"x", user="nobody")
    with pytest.raises(FileDenied):
        await guest.write("secret", b"x", user="nobody")
    with pytest.raises(FileDenied):
        await guest.write("/etc/passwd", b"x", user="nobody", atomic=False)
    assert await guest.read("secret") == b"s"


@ROOT_ONLY
async def test_what_a_user_creates_is_its_own(guest: Guest) -> None:
    guest.home.chmod(0o777)
    await guest.write("a/b/c", b"x", user="nobody")
    for part in ("a", "a/b", "a/b/c"):
        assert (guest.home / part).stat().st_uid == 65534


@ROOT_ONLY
async def test_writable_file_in_a_folder_that_is_not(guest: Guest) -> None:
    target = guest.home / "shared"
    target.write_text("old")
    os.chown(target, 65534, 65534)
    await guest.write("shared", b"new", user="nobody")
    assert target.read_text() == "new"


@ROOT_ONLY
async def test_many_users_at_once_do_not_mix(guest: Guest) -> None:
    (guest.home / "secret").write_text("s")
    (guest.home / "secret").chmod(0o600)

    async def try_as(user: str) -> bool:
        try:
            return await guest.read("secret", user=user) == b"s"
        except FileDenied:
            return False

    users = ["root", "nobody"] * 50
    assert await asyncio.gather(*map(try_as, users)) == [user == "root" for user in users]
