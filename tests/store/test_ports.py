"""Shared ports in the database."""

from __future__ import annotations

from pathlib import Path

from belljar.store.db import Records, SandboxRecord
from belljar.store.ports import PortRecord, SharedPorts


def test_ports_are_private_until_shared_and_end_with_their_sandbox(tmp_path: Path) -> None:
    records = Records(tmp_path / "belljar.db")
    ports = SharedPorts(records.database)
    for name in ("sb-1", "sb-2"):
        records.insert_sandbox(SandboxRecord(name, "base", "d", "running", 1.0, 1, 128, 128))
    assert ports.find("sb-1", 80) == PortRecord("sb-1", 80)
    assert ports.share("sb-1", 80, public=True, label="web").public
    ports.share("sb-1", 22, public=False, label="")
    ports.share("sb-2", 80, public=False, label="other")
    assert [(each.port, each.public, each.label) for each in ports.list("sb-1")] == [(22, False, ""), (80, True, "web")]
    assert not ports.share("sb-1", 80, public=False, label="again").public
    assert ports.find("sb-1", 80).links_since == 0
    ports.withdraw("sb-1", 80)
    ports.withdraw("sb-1", 81)
    assert [each.port for each in ports.list("sb-1")] == [22]
    assert ports.find("sb-1", 80).links_since > 0 < ports.find("sb-1", 81).links_since
    since = ports.find("sb-1", 80).links_since
    assert ports.share("sb-1", 80, public=True, label="").links_since == since  # old links stay ended
    records.delete_sandbox("sb-1")
    assert ports.list("sb-1") == [] and ports.find("sb-1", 80) == PortRecord("sb-1", 80)
    assert [each.label for each in ports.list("sb-2")] == ["other"]
    records.close()
