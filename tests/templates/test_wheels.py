"""Scripts and folders of wheels, as the guest needs them."""

from __future__ import annotations

from pathlib import Path

import pytest

from belljar.templates.wheels import EPOCH, make_venv, set_dates, with_guest_python


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"#!/home/me/.venv/bin/python\nimport x\n", b"#!/opt/venv/bin/python\nimport x\n"),
        (b"#!/bin/sh\n'''exec' \"/a b/python\" \"$0\" \"$@\"\n' '''\nimport x\n", b"#!/opt/venv/bin/python\nimport x\n"),
        (b"#!/bin/sh\necho\n", b"#!/bin/sh\necho\n"),
        (b"\x7fELF\0python\n", b"\x7fELF\0python\n"),
        (b"", b""),
    ],
)
def test_scripts_start_the_guests_python(before: bytes, after: bytes) -> None:
    assert with_guest_python(before) == after


def test_a_virtual_environment_is_laid_out_for_the_guest(tmp_path: Path) -> None:
    activate = tmp_path / "activate"
    activate.write_text('VIRTUAL_ENV="__VENV_DIR__"\nPATH="$VIRTUAL_ENV/__VENV_BIN_NAME__:$PATH"\n')
    make_venv(tmp_path / "root", "3.11.2", activate)
    venv = tmp_path / "root" / "opt" / "venv"
    assert str((venv / "bin" / "python").readlink()) == "/usr/bin/python3.11"
    assert "include-system-site-packages = false" in (venv / "pyvenv.cfg").read_text()
    assert '"/opt/venv"' in (venv / "bin" / "activate").read_text() and "__" not in (venv / "bin" / "activate").read_text()


def test_every_file_gets_the_same_date(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "f").write_text("x")
    (tmp_path / "l").symlink_to("nowhere")
    set_dates(tmp_path)
    assert {int(path.lstat().st_mtime) for path in tmp_path.rglob("*")} == {EPOCH}
