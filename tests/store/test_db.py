"""Records: what is remembered, and what happens when the file is shared, damaged or from another version."""

from __future__ import annotations

import multiprocessing
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from belljar.errors import AlreadyExists, HostDiskShort, HostError, HostSetup, SandboxNotFound, SnapshotNotFound
from belljar.store import database
from belljar.store.db import Records, SandboxRecord, SnapshotRecord
from belljar.store.schema import MIGRATIONS


def sandbox(name: str = "a", **changes: object) -> SandboxRecord:
    record = SandboxRecord(
        id=name, template="base", template_digest="d1", state="running", created_at=9.0, vcpus=2, memory_mib=64, disk_mib=64
    )
    return replace(record, **changes)  # type: ignore[arg-type]


def snapshot(name: str = "s", **changes: object) -> SnapshotRecord:
    record = SnapshotRecord(id=name, sandbox_id="a", template="base", template_digest="d1", created_at=1.0, size_bytes=2**40)
    return replace(record, **changes)  # type: ignore[arg-type]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "belljar.db"


@pytest.fixture
def records(path: Path) -> Iterator[Records]:
    opened = Records(path)
    yield opened
    opened.close()


def test_a_sandbox_comes_back_as_it_was_put_in(path: Path, records: Records) -> None:
    whole = sandbox(
        origin_snapshot="s1", parent="p", expires_at=200.5, metadata={'quo"te': "ü\\"}, env={"A": "1=2"}, uid=7, reason="why"
    )
    whole = replace(whole, workspace="w", persistent=True, ttl_s=7.5)
    assert records.insert_sandbox(whole) == whole
    other_process = Records(path)
    assert other_process.get_sandbox("a") == whole
    other_process.close()


def test_unknown_ids_are_not_found(records: Records) -> None:
    assert records.find_sandbox("nope") is None
    assert records.find_snapshot("nope") is None
    for odd in ("nope", "", "a\0b", "\ud800", "x" * 10_000, "../a", "' OR 1=1 --"):
        with pytest.raises(SandboxNotFound):
            records.get_sandbox(odd)
        with pytest.raises(SandboxNotFound):
            records.update_sandbox(odd, state="paused")
        with pytest.raises(SnapshotNotFound):
            records.get_snapshot(odd)
        assert not records.delete_sandbox(odd)
        assert not records.delete_snapshot(odd)


def test_the_same_id_or_uid_twice_is_refused_and_leaves_the_first(records: Records) -> None:
    records.insert_sandbox(sandbox(uid=7))
    with pytest.raises(AlreadyExists):
        records.insert_sandbox(sandbox(state="other"))
    with pytest.raises(AlreadyExists):
        records.insert_sandbox(sandbox("b", uid=7))
    assert [r.state for r in records.list_sandboxes()] == ["running"]


def test_list_is_oldest_first_and_filters_by_metadata_and_state(records: Records) -> None:
    records.insert_sandbox(sandbox("new", created_at=3.0, metadata={"team": "x", "n": "1"}))
    records.insert_sandbox(sandbox("old", created_at=1.0, metadata={"team": "x"}, state="paused"))
    records.insert_sandbox(sandbox("mid", created_at=2.0))
    assert [r.id for r in records.list_sandboxes()] == ["old", "mid", "new"]
    assert [r.id for r in records.list_sandboxes(metadata={"team": "x"})] == ["old", "new"]
    assert [r.id for r in records.list_sandboxes(metadata={"team": "x", "n": "1"})] == ["new"]
    assert [r.id for r in records.list_sandboxes(states={"paused"})] == ["old"]
    assert records.list_sandboxes(states=()) == []


def test_update_changes_only_what_it_names(records: Records) -> None:
    records.insert_sandbox(sandbox(metadata={"k": "v"}, reason="because"))
    updated = records.update_sandbox("a", state="hibernated", uid=None, env={"X": "1"}, reason=None, durable=True)
    assert updated == sandbox(state="hibernated", metadata={"k": "v"}, env={"X": "1"})
    assert records.get_sandbox("a") == updated


def test_update_refuses_fields_that_do_not_exist(records: Records) -> None:
    records.insert_sandbox(sandbox())
    for changes in ({"colour": "red"}, {"id": "b"}, {}):
        with pytest.raises(TypeError):
            records.update_sandbox("a", durable=False, **changes)


def test_expired_lists_the_longest_overdue_first_and_never_the_immortal(records: Records) -> None:
    records.insert_sandbox(sandbox("late", expires_at=20.0))
    records.insert_sandbox(sandbox("later", expires_at=30.0))
    records.insert_sandbox(sandbox("earlier", expires_at=10.0))
    records.insert_sandbox(sandbox("immortal"))
    assert [r.id for r in records.expired(20.0)] == ["earlier", "late"]


def test_uids_are_unique_reused_and_run_out_with_a_clear_error(records: Records) -> None:
    assert [records.insert_sandbox(sandbox(name), uids=range(500, 503)).uid for name in "abc"] == [500, 501, 502]
    with pytest.raises(HostError, match="all 3 user ids"):
        records.insert_sandbox(sandbox("d"), uids=range(500, 503))
    assert records.find_sandbox("d") is None
    records.delete_sandbox("b")
    assert records.insert_sandbox(sandbox("d"), uids=range(500, 503)).uid == 501


def test_snapshots_outlive_their_sandbox(records: Records) -> None:
    records.insert_sandbox(sandbox())
    record = records.insert_snapshot(snapshot(metadata={"k": "v"}))
    records.delete_sandbox("a")
    assert records.get_snapshot("s") == record
    assert records.list_snapshots(metadata={"k": "v"}) == [record]
    assert records.list_snapshots(metadata={"k": "w"}) == []
    with pytest.raises(AlreadyExists):
        records.insert_snapshot(snapshot())
    assert records.delete_snapshot("s")
    assert records.list_snapshots() == []


def test_threads_may_share_one_records(records: Records) -> None:
    with ThreadPoolExecutor(8) as pool:
        uids = list(pool.map(lambda n: records.insert_sandbox(sandbox(str(n)), uids=range(100)).uid, range(64)))
    assert sorted(uids) == list(range(64))  # type: ignore[type-var]


def _insert_many(path: Path, worker: int) -> None:
    records = Records(path)
    for n in range(20):
        records.insert_sandbox(sandbox(f"{worker}-{n}"), uids=range(1000))
    records.close()


def test_processes_that_start_on_a_new_file_at_once_all_succeed(path: Path) -> None:
    workers = [multiprocessing.get_context("spawn").Process(target=_insert_many, args=(path, n)) for n in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
    assert [worker.exitcode for worker in workers] == [0] * 6
    records = Records(path)
    assert sorted(r.uid or 0 for r in records.list_sandboxes()) == list(range(120))
    records.close()


def test_the_file_is_readable_by_its_owner_alone(path: Path, records: Records) -> None:
    records.insert_sandbox(sandbox(env={"TOKEN": "secret"}))
    for file in path.parent.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file


@pytest.mark.parametrize("content", [b"not a database at all " * 100, b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_damaged_file_says_what_to_do_and_is_left_alone(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(HostSetup, match="backup"):
        Records(path)
    assert path.read_bytes() == content


def test_damage_found_later_is_reported_the_same_way(path: Path, records: Records) -> None:
    records.insert_sandbox(sandbox())
    with sqlite3.connect(path) as direct:
        direct.execute("UPDATE sandboxes SET env = '[broken'")
    with pytest.raises(HostSetup, match=r"the record of a in .* is damaged"):
        records.get_sandbox("a")
    with sqlite3.connect(path) as direct:
        direct.execute("UPDATE sandboxes SET env = '[]'")
    for look in (records.list_sandboxes, records.probe):
        with pytest.raises(HostSetup, match="delete it there"):
            look()


def test_a_file_that_is_up_to_date_is_opened_without_writing_to_it(path: Path, records: Records) -> None:
    records.insert_sandbox(sandbox())
    before = path.with_name(f"{path.name}-wal").read_bytes()
    again = Records(path)
    assert path.with_name(f"{path.name}-wal").read_bytes() == before
    again.close()


def test_a_disk_that_takes_nothing_is_not_called_damage(path: Path) -> None:
    """Whoever moved the file away for that would lose everything."""
    opened = Records(path)
    opened.insert_sandbox(sandbox())
    opened.close()
    code = (
        "import resource, signal, sys; from pathlib import Path\n"
        "from belljar.errors import BelljarError; from belljar.store.db import Records\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
        "try: Records(Path(sys.argv[1]))\n"
        "except BelljarError as problem: print(type(problem).__name__, problem.message)"
    )
    said = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=60)
    assert said.stdout.startswith("HostError cannot read or write") and "away" not in said.stdout, (said.stdout, said.stderr)


def test_a_missing_folder_or_a_folder_in_its_place_is_a_setup_error(tmp_path: Path) -> None:
    with pytest.raises(HostSetup, match="folder"):
        Records(tmp_path / "missing" / "belljar.db")
    with pytest.raises(HostSetup):
        Records(tmp_path)


def test_a_file_of_a_newer_belljar_is_not_touched(path: Path) -> None:
    with sqlite3.connect(path) as direct:
        direct.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    with pytest.raises(HostSetup, match="newer Belljar"):
        Records(path)


def test_a_lock_that_is_never_released_ends_in_an_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "BUSY_TIMEOUT_S", 0.05)
    records = Records(path)
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    with pytest.raises(HostError, match="locked"):
        records.insert_sandbox(sandbox())
    blocker.close()
    records.insert_sandbox(sandbox())
    records.close()


def test_a_full_disk_is_told_apart_and_the_records_go_on(records: Records) -> None:
    pages = records.database.connection.execute("PRAGMA page_count").fetchone()[0]
    records.database.connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(HostDiskShort):
        records.insert_sandbox(sandbox(env={"BIG": "x" * 1_000_000}))
    records.database.connection.execute("PRAGMA max_page_count = 1000000")
    assert records.insert_sandbox(sandbox()).id == "a"


def test_a_file_of_the_first_schema_keeps_its_rows_and_gets_defaults(path: Path) -> None:
    with sqlite3.connect(path) as direct:
        for statement in MIGRATIONS[0]:
            direct.execute(statement)
        columns = "id, template, template_digest, state, created_at, metadata, env, vcpus, memory_mib, disk_mib"
        direct.execute(f"INSERT INTO sandboxes ({columns}) VALUES ('a', 'base', 'd1', 'running', 9.0, '{{}}', '{{}}', 2, 64, 64)")
        direct.execute("INSERT INTO snapshots VALUES ('s', 'a', 'base', 'd1', 1.0, 5, '{}')")
        direct.execute("PRAGMA user_version = 1")
    records = Records(path)
    assert records.get_sandbox("a") == sandbox()
    assert records.get_snapshot("s") == snapshot(size_bytes=5)
    records.close()


def test_a_workspace_lists_its_own_and_a_snapshot_belongs_to_its_sandboxs(records: Records) -> None:
    records.insert_sandbox(sandbox("mine", workspace="m"))
    records.insert_sandbox(sandbox("theirs", workspace="t"))
    records.insert_snapshot(snapshot(sandbox_id="mine"))
    assert [r.id for r in records.list_sandboxes(workspace="m")] == ["mine"]
    assert [r.id for r in records.list_snapshots(workspace="m")] == ["s"]
    assert records.list_snapshots(workspace="t") == []


def test_another_connection_of_the_same_process_keeps_the_first_ones_locks(tmp_path: Path) -> None:
    path = tmp_path / "belljar.db"
    first = Records(path)
    Records(path).close()
    code = "import sys; from pathlib import Path; from belljar.store.db import Records; Records(Path(sys.argv[1])).close()"
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)
    # The last connection to go removes the log; taken for the last one while we are here, it would take our writes with it.
    assert path.with_name("belljar.db-wal").exists()
    first.close()
