"""cp: what a place means, and where things land."""

from __future__ import annotations

from pathlib import Path

import pytest

from belljar.cli.copying import Remote, parse_place
from belljar.errors import FileMissing, InvalidInput
from tests.cli.conftest import Command, StubFleet


@pytest.mark.parametrize(
    ("word", "place"),
    [
        ("sb-1:/a/b", Remote("sb-1", "/a/b")),
        ("sb-1:rel", Remote("sb-1", "rel")),
        ("sb-1:", Remote("sb-1", ".")),
        ("sb-1:/a:b", Remote("sb-1", "/a:b")),
        ("plain", Path("plain")),
        ("./a:b", Path("./a:b")),
        ("/a:b", Path("/a:b")),
        (":x", Path(":x")),
        ("..:x", Path("..:x")),
    ],
)
def test_a_place_is_local_or_in_a_sandbox(word: str, place: Path | Remote) -> None:
    assert parse_place(word) == place


async def test_exactly_one_side_is_in_a_sandbox(stub_fleet: StubFleet, belljar: Command) -> None:
    for words in (["a", "b"], ["sb-1:/a", "sb-1:/b"], ["", "sb-1:/a"]):
        with pytest.raises(InvalidInput):
            await belljar("cp", *words)


async def test_files_go_in_and_out_under_the_name_or_into_the_folder(fleet: StubFleet, belljar: Command, tmp_path: Path) -> None:
    assert fleet.guest is not None
    home = fleet.guest.home
    (tmp_path / "here").write_bytes(b"\0\xff")
    (home / "dir").mkdir()
    await belljar("cp", str(tmp_path / "here"), f"sb-1:{home}/there")
    await belljar("cp", str(tmp_path / "here"), f"sb-1:{home}/dir")
    await belljar("cp", str(tmp_path / "here"), f"sb-1:{home}/new/")
    await belljar("cp", str(tmp_path / "here"), "sb-1:")
    for path in ("there", "dir/here", "new/here", "here"):
        assert (home / path).read_bytes() == b"\0\xff", path
    (tmp_path / "out").mkdir()
    await belljar("cp", f"sb-1:{home}/there", str(tmp_path / "out"))
    await belljar("cp", f"sb-1:{home}/there", str(tmp_path / "renamed"))
    assert (tmp_path / "out" / "there").read_bytes() == (tmp_path / "renamed").read_bytes() == b"\0\xff"


async def test_folders_go_both_ways_and_skipped_links_are_told(
    fleet: StubFleet, belljar: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fleet.guest is not None
    home = fleet.guest.home
    (tmp_path / "src" / "sub").mkdir(parents=True)
    (tmp_path / "src" / "sub" / "f").write_text("1")
    (tmp_path / "src" / "link").symlink_to("/etc/passwd")
    await belljar("cp", str(tmp_path / "src"), f"sb-1:{home}/copy")
    await belljar("cp", str(tmp_path / "src"), f"sb-1:{home}/copy")
    assert (home / "copy" / "sub" / "f").read_text() == (home / "copy" / "src" / "sub" / "f").read_text() == "1"
    assert capsys.readouterr().err.count("link: symlink") == 2
    await belljar("cp", f"sb-1:{home}/copy/sub", str(tmp_path / "back"))
    assert (tmp_path / "back" / "f").read_text() == "1"


async def test_a_missing_file_is_a_clear_error(fleet: StubFleet, belljar: Command, tmp_path: Path) -> None:
    assert fleet.guest is not None
    with pytest.raises(FileMissing):
        await belljar("cp", f"sb-1:{fleet.guest.home}/missing", str(tmp_path))
    with pytest.raises(InvalidInput, match="this host"):
        await belljar("cp", str(tmp_path / "missing"), f"sb-1:{fleet.guest.home}/x")
    assert list(fleet.guest.home.iterdir()) == []
