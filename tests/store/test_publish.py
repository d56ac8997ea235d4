"""Work in progress is never seen, and what a dead process left behind goes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from belljar.errors import BuildFailed
from belljar.store.publish import exclusive, exclusive_async, publish, remove_published, sweep, workplace


def test_published_work_appears_whole_under_its_name(tmp_path: Path) -> None:
    target = tmp_path / "roots" / "abc"
    with workplace(tmp_path / "tmp", "root") as work:
        built = work.path / "image"
        (built / "inner").mkdir(parents=True)
        (built / "inner" / "file").write_text("content")
        (built / "link").symlink_to("nowhere")
        assert not target.exists()
        publish(built, target)
    assert (target / "inner" / "file").read_text() == "content"
    assert list((tmp_path / "tmp").iterdir()) == []


def test_failed_work_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), workplace(tmp_path, "root") as work:
        (work.path / "half").write_text("x")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_publishing_never_replaces_what_is_there(tmp_path: Path) -> None:
    for name in ("new", "old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    with pytest.raises(OSError):
        publish(tmp_path / "new", tmp_path / "old")
    assert (tmp_path / "old" / "file").read_text() == "old"


def test_work_of_a_process_that_died_is_swept_and_live_work_is_not(tmp_path: Path) -> None:
    script = f"""
import os
from pathlib import Path
from belljar.store.publish import workplace
with workplace(Path({str(tmp_path)!r}), "root") as work:
    (work.path / "half").write_text("x")
    os._exit(9)
"""
    subprocess.run([sys.executable, "-c", script], check=False, timeout=60)
    (abandoned,) = tmp_path.iterdir()
    with workplace(tmp_path, "tree") as other:
        assert sweep(tmp_path, "tree") == []
        assert other.path.exists() and abandoned.exists()
    assert sweep(tmp_path, "root") == [abandoned]
    assert list(tmp_path.iterdir()) == []


def test_work_is_not_swept_while_a_child_process_still_works_in_it(tmp_path: Path) -> None:
    with workplace(tmp_path, "root") as work:
        child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=[work.fd])
        work.path.rename(tmp_path / "root-moved")  # so that leaving does not remove it, as when the builder is killed
    assert sweep(tmp_path, "root") == []
    child.communicate(timeout=60)
    assert sweep(tmp_path, "root") == [tmp_path / "root-moved"]


def test_a_lock_admits_one_and_tells_the_others_once(tmp_path: Path) -> None:
    told: list[int] = []
    with (
        exclusive(tmp_path / "lock", 1),
        pytest.raises(BuildFailed, match="held by another process"),
        exclusive(tmp_path / "lock", 0.3, lambda: told.append(1)),
    ):
        pytest.fail("two holders")
    assert told == [1]
    with exclusive(tmp_path / "lock", 1):
        pass


async def test_who_is_cancelled_while_waiting_for_a_lock_never_gets_it(tmp_path: Path) -> None:
    lock, told = tmp_path / "lock", asyncio.Event()

    async def wait() -> None:
        async with exclusive_async(lock, 60, told.set):
            pytest.fail("the lock was had by two")

    with exclusive(lock, 1):
        waiting = asyncio.create_task(wait())
        async with asyncio.timeout(60):
            await told.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    await asyncio.sleep(0.3)  # long enough for a thread that still waits to take it
    with exclusive(lock, 0):
        pass


async def test_a_lock_that_stays_held_is_an_error_for_asyncio_too(tmp_path: Path) -> None:
    with exclusive(tmp_path / "lock", 1), pytest.raises(BuildFailed, match="held by another process"):
        async with exclusive_async(tmp_path / "lock", 0.05):
            pytest.fail("the lock was had by two")
    async with exclusive_async(tmp_path / "lock", 0.05):
        pass


def test_a_removal_that_is_interrupted_leaves_no_half_of_it_under_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    published, tmp = tmp_path / "templates" / "abc", tmp_path / "tmp"
    published.mkdir(parents=True)
    for name in ("manifest.json", "memory"):
        (published / name).write_text("x")

    def interrupted(path: Path, **_: object) -> None:
        next(path.rglob("memory")).unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("belljar.store.publish.shutil.rmtree", interrupted)
        remove_published(published, tmp)
    assert not published.exists()
    remove_published(published, tmp)  # what is not there is removed already, and the rest of the first try goes
    assert list(tmp.iterdir()) == []
