"""Logs: every line once, in order, whoever reads, and whatever becomes of the server."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from belljar.service.logs import GATHER_BYTES, MAX_LINE_BYTES, Line, Logs
from belljar.store.layout import Layout

BOX = "sb-1"


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    layout = Layout(tmp_path)
    layout.prepare()
    layout.sandbox(BOX).mkdir()
    return layout


def texts(lines: list[Line]) -> list[str]:
    return [line.text for line in lines]


async def test_lines_of_programs_are_never_mixed(layout: Layout) -> None:
    logs = Logs(layout)
    with logs.writer(BOX) as one, logs.writer(BOX) as two:
        one.write("stdout", b"be")
        two.write("stdout", b"other\n")
        one.write("stderr", "trouble\n")
        one.write("stdout", b"gin\r\nend")
        assert await logs.read(BOX) == [Line("stdout", "other"), Line("stderr", "trouble"), Line("stdout", "begin")]
    assert texts(await logs.read(BOX))[-1] == "end", "a last line without an end is a line"


async def test_what_was_written_survives_the_process(layout: Layout) -> None:
    logs = Logs(layout)
    with logs.writer(BOX) as writer:
        writer.write("stdout", "kept \N{SNOWMAN} \udcff\n")
    for _ in range(100):
        if (layout.sandbox(BOX) / "output.log").exists():
            break
        await asyncio.sleep(0.05)
    # Nobody closed or flushed anything: this is what a killed server leaves.
    assert texts(await Logs(layout).read(BOX)) == ["kept \N{SNOWMAN} ?"]


async def test_a_flood_is_bounded_and_ends_with_its_newest(layout: Layout) -> None:
    logs = Logs(layout)
    with logs.writer(BOX) as writer:
        writer.write("stdout", b"x" * (3 * GATHER_BYTES) + b"\n")
        for number in range(100_000):
            writer.write("stdout", b"line %d\n" % number)
    kept = await logs.read(BOX)
    assert kept[-1].text == "line 99999" and max(len(line.text) for line in kept) <= MAX_LINE_BYTES
    assert sum(len(line.text) + 2 for line in kept) <= GATHER_BYTES and len(kept) > 10_000


async def test_a_follower_gets_every_line_once(layout: Layout) -> None:
    logs = Logs(layout)
    writer = logs.writer(BOX)
    seen: list[str] = []

    async def follow() -> None:
        async for batch in logs.follow(BOX):
            seen.extend(texts(batch))
            if seen and seen[-1] == "last":
                return

    writer.write("stdout", "".join(f"{number}\n" for number in range(50)))
    following = asyncio.create_task(follow())
    for number in range(50, 500):
        writer.write("stdout", f"{number}\n")
        if number % 7 == 0:
            await asyncio.sleep(0)
        if number % 100 == 0:
            await asyncio.sleep(0.06)
    writer.write("stdout", "last\n")
    await asyncio.wait_for(following, 30)
    assert seen == [*(str(number) for number in range(500)), "last"]
    assert texts(await logs.read(BOX)) == seen


async def test_background_output_goes_down_once_however_often_it_is_read(layout: Layout) -> None:
    logs = Logs(layout)
    async with logs.reading(BOX, "p1") as out:
        assert logs.is_read(BOX, "p1") and not logs.is_read(BOX, "p2")
        out.write_at("stdout", 0, b"one\ntw")
    assert not logs.is_read(BOX, "p1")
    async with logs.reading(BOX, "p1") as out:
        assert out.position("stdout") == 4, "the unfinished line is read again"
        out.write_at("stdout", 0, b"one\ntwo\n")
    assert texts(await logs.read(BOX)) == ["one", "two"]
    # Another server, which finds the positions beside the lines.
    logs = Logs(layout)
    async with logs.reading(BOX, "p1") as out:
        out.write_at("stdout", 0, b"one\ntwo\nthree\nfo")
        out.write_at("stdout", 100, b"after a gap\nend")
        out.end()
    assert texts(await logs.read(BOX)) == ["one", "two", "three", "fo", "after a gap", "end"]


async def test_a_process_with_a_strange_name_forges_no_line(layout: Layout) -> None:
    name = "p\nostdout forged 1 2\n"
    async with Logs(layout).reading(BOX, name) as out:
        out.write_at("stderr", 0, b"real\n")
    logs = Logs(layout)
    for _ in range(100):
        if await logs.read(BOX):
            break
        await asyncio.sleep(0.05)
    assert texts(await logs.read(BOX)) == ["real"]
    async with logs.reading(BOX, name) as out:
        assert out.position("stderr") == 5


async def test_a_sandbox_that_is_gone_has_no_log(layout: Layout) -> None:
    logs = Logs(layout)
    with logs.writer(BOX) as writer:
        writer.write("stdout", "one\n")
        layout.sandbox(BOX).rmdir()
        writer.write("stdout", "two\n")
    assert await logs.read(BOX) == []
    logs.keep([])
    assert not layout.sandbox(BOX).exists()
    await logs.aclose()
