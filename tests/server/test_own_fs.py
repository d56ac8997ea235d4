"""Files beyond reading and writing: parts, modes, other users, folders moved and copied, changes watched, trees as archives."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from typing import Any

import pandastack
import pytest

from tests.server.conftest import Api
from tests.server.own import streaming


@pytest.fixture
def at(box: pandastack.Sandbox) -> str:
    return f"/v1/sandboxes/{box.id}/fs"


@pytest.fixture
def folder(api: Api, at: str, request: pytest.FixtureRequest) -> Iterator[str]:
    path = f"/tmp/{request.node.name.replace('[', '-').replace(']', '')}"[:100]
    assert api("POST", f"{at}/mkdir", json={"path": path}).status_code == 204
    yield path
    api("DELETE", f"{at}?path={path}&recursive=1&user=root")


def test_parts_modes_and_additions(api: Api, at: str, folder: str) -> None:
    path = f"{folder}/file"
    assert api("PUT", f"{at}?path={path}&mode=0600", data=b"0123456789").json() == {"path": path, "bytes": 10}
    assert api("GET", f"{at}/stat?path={path}").json()["permissions"] == "0600"
    assert api("GET", f"{at}?path={path}&offset=3&length=4").content == b"3456"
    assert api("GET", f"{at}?path={path}&offset=8").content == b"89"
    assert api("GET", f"{at}?path={path}&offset=99").content == b"" == api("GET", f"{at}?path={path}&length=0").content
    assert api("PUT", f"{at}?path={path}&append=1", data=b"ab").status_code == 200
    assert api("GET", f"{at}?path={path}&offset=9").content == b"9ab"
    for query in ("offset=-1", "offset=x", "length=1.5", "length=-1"):
        assert api("GET", f"{at}?path={path}&{query}").status_code == 400, query
    for query in ("mode=999", "mode=rw", "mode=77777", "append=maybe"):
        assert api("PUT", f"{at}?path={path}&{query}", data=b"x").status_code == 400, query
    assert api("GET", f"{at}?path={path}").content == b"0123456789ab"


def test_acting_as_somebody_else(api: Api, at: str, folder: str) -> None:
    path = f"{folder}/roots"
    assert api("PUT", f"{at}?path={path}&mode=600&user=root", data=b"secret").status_code == 200
    assert api("GET", f"{at}?path={path}").status_code == 403
    assert api("GET", f"{at}?path={path}&user=root").content == b"secret"
    assert api("GET", f"{at}/stat?path={path}&user=root").json()["owner"] == "root"
    assert api("GET", f"{at}?path={path}&user=nobody-at-all").status_code == 400


def test_folders_are_listed_as_deep_as_wanted(api: Api, at: str, folder: str) -> None:
    api("PUT", f"{at}?path={folder}/a/b/c.txt", data=b"x")
    names = [entry["name"] for entry in api("GET", f"{at}/dir?path={folder}").json()["entries"]]
    assert names == ["a"]
    paths = [entry["path"] for entry in api("GET", f"{at}/dir?path={folder}&depth=3").json()["entries"]]
    assert paths == [f"{folder}/a", f"{folder}/a/b", f"{folder}/a/b/c.txt"]
    for depth in ("0", "-1", "x", "5000"):
        assert api("GET", f"{at}/dir?path={folder}&depth={depth}").status_code == 400


def test_things_are_made_moved_and_copied(api: Api, at: str, folder: str) -> None:
    assert api("POST", f"{at}/mkdir", json={"path": f"{folder}/x/y"}).status_code == 204
    assert api("POST", f"{at}/mkdir", json={"path": f"{folder}/p/q", "parents": False}).status_code == 404
    assert api("POST", f"{at}/mkdir", json={"path": f"{folder}/x", "parents": False}).status_code == 409
    api("PUT", f"{at}?path={folder}/x/y/file", data=b"content")
    assert api("POST", f"{at}/copy", json={"source": f"{folder}/x", "target": f"{folder}/z"}).status_code in (409, 422)
    done = api("POST", f"{at}/copy", json={"source": f"{folder}/x", "target": f"{folder}/z", "recursive": True})
    assert done.status_code == 204, done.text
    assert api("POST", f"{at}/move", json={"source": f"{folder}/x/y/file", "target": f"{folder}/moved"}).status_code == 204
    assert api("GET", f"{at}?path={folder}/moved").content == b"content" == api("GET", f"{at}?path={folder}/z/y/file").content
    assert api("GET", f"{at}?path={folder}/x/y/file").status_code == 404
    for route in ("move", "copy"):
        gone = {"source": f"{folder}/none", "target": f"{folder}/t"}
        assert api("POST", f"{at}/{route}", json=gone).json()["code"] == "file_not_found"
        for bad in ({}, {"source": "a"}, {"source": "", "target": "b"}, {"source": "a\0", "target": "b"}, {**gone, "x": 1}):
            assert api("POST", f"{at}/{route}", json=bad).status_code == 400, bad
    assert api("POST", f"{at}/mkdir", json={"path": "/etc/mine"}).status_code == 403
    assert api("POST", f"{at}/mkdir", json={"path": f"{folder}/moved/x"}).json()["code"] == "not_a_directory"


def test_changes_are_followed(api: Api, at: str, folder: str) -> None:
    with streaming(api, "GET", f"{at}/watch?path={folder}&recursive=1") as found:
        assert next(found) == ("watching", {"path": folder, "recursive": True})
        api("POST", f"{at}/mkdir", json={"path": f"{folder}/new"})
        name, change = next(found)
        assert (name, change["type"], change["path"]) == ("change", "created", f"{folder}/new")
        api("POST", f"{at}/move", json={"source": f"{folder}/new", "target": f"{folder}/newer"})
        moved = next(found)[1]
        assert (moved["type"], moved["path"], moved["from"]) == ("moved", f"{folder}/newer", f"{folder}/new")
        life = api("GET", f"{at.removesuffix('/fs')}/lifecycle").json()
        assert life["open_streams"] == 1 and "stream" in life["reason"]
    assert api("GET", f"{at}/watch?path=/no/such/path").status_code == 404
    assert api("GET", f"{at}/watch").status_code == 400
    assert api("GET", f"{at}/watch?path={folder}&recursive=deep").status_code == 400


# -- trees --------------------------------------------------------------------------------------------------------------------


def archive(**files: bytes) -> bytes:
    return pack([(tarfile.TarInfo(name), content) for name, content in files.items()])


def pack(members: list[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for info, content in members:
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return packed.getvalue()


def unpacked(content: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        found = {member.name: tar.extractfile(member) for member in tar if member.isfile()}
        return {name: file.read() for name, file in found.items() if file is not None}


def test_a_tree_goes_in_and_comes_out(api: Api, at: str, folder: str) -> None:
    files = {"a.txt": b"one", "deep/er/b.bin": bytes(range(256)) * 5000, "empty": b"", "späti und mehr": b"x"}
    done = api("PUT", f"{at}/tree?path={folder}/tree", data=archive(**files))
    assert done.status_code == 200, done.text
    assert api("GET", f"{at}?path={folder}/tree/deep/er/b.bin").content == files["deep/er/b.bin"]
    answer = api("GET", f"{at}/tree?path={folder}/tree")
    assert answer.headers["content-type"] == "application/x-tar"
    assert {name.removeprefix("./"): content for name, content in unpacked(answer.content).items()} == files
    assert unpacked(api("GET", f"{at}/tree?path={folder}/tree/a.txt").content) == {"a.txt": b"one"}
    api("PUT", f"{at}?path={folder}/-rf", data=b"odd")
    assert unpacked(api("GET", f"{at}/tree?path={folder}/-rf").content) == {"-rf": b"odd"}


def test_a_large_tree_streams_both_ways(api: Api, at: str, folder: str) -> None:
    content = archive(**{f"file{number}": b"x" * 2_000_000 for number in range(10)})

    def pieces() -> Iterator[bytes]:
        for start in range(0, len(content), 1 << 20):
            yield content[start : start + (1 << 20)]

    assert api("PUT", f"{at}/tree?path={folder}", data=pieces()).status_code == 200
    assert sum(map(len, unpacked(api("GET", f"{at}/tree?path={folder}").content).values())) == 20_000_000


def test_a_tree_does_not_leave_its_folder(api: Api, at: str, folder: str) -> None:
    climbing = api("PUT", f"{at}/tree?path={folder}/in", data=archive(**{"../climbed": b"x"}))
    assert climbing.status_code == 400 and "'..'" in climbing.json()["error"], climbing.text
    assert api("GET", f"{at}/stat?path={folder}/climbed").status_code == 404
    link = tarfile.TarInfo("link")
    link.type, link.linkname = tarfile.SYMTYPE, folder
    through = api("PUT", f"{at}/tree?path={folder}/in", data=pack([(link, b""), (tarfile.TarInfo("link/through"), b"x")]))
    assert 400 <= through.status_code < 500, through.text
    assert api("GET", f"{at}/stat?path={folder}/through").status_code == 404
    # A name from the root is taken as one from the folder.
    assert api("PUT", f"{at}/tree?path={folder}/in", data=archive(**{f"{folder}/rooted": b"x"})).status_code == 200
    assert api("GET", f"{at}/stat?path={folder}/rooted").status_code == 404
    assert api("GET", f"{at}?path={folder}/in{folder}/rooted").content == b"x"


def test_trees_that_fail_say_why(api: Api, at: str, folder: str) -> None:
    good = archive(a=b"x" * 5000)
    bad: list[tuple[str, bytes, int]] = [
        (folder, b"this is no archive" * 100, 400),
        (folder, good[:3000], 400),
        ("/etc/mine", good, 403),
        (f"{folder}/a/b", good, 422),
    ]
    assert api("PUT", f"{at}/tree?path={folder}", data=good).status_code == 200
    for path, content, status in bad:
        answer = api("PUT", f"{at}/tree?path={path}", data=content)
        assert answer.status_code == status and answer.json()["error"], (path, answer.text)
    assert api("GET", f"{at}/tree?path=/no/such").json()["code"] == "file_not_found"
    assert api("GET", f"{at}/tree").status_code == 400 == api("PUT", f"{at}/tree").status_code
    api("PUT", f"{at}?path={folder}/hidden/x&user=root&mode=600", data=b"x")
    assert api("GET", f"{at}/tree?path={folder}/hidden/x").status_code == 403
    assert unpacked(api("GET", f"{at}/tree?path={folder}/hidden/x&user=root").content) == {"x": b"x"}


def test_a_new_folder_is_there_with_all_of_its_tree_or_not_at_all(api: Api, at: str, folder: str) -> None:
    def names(path: str) -> list[str]:
        return sorted(entry["name"] for entry in api("GET", f"{at}/dir?path={path}").json()["entries"])

    api("POST", f"{at}/mkdir", json={"path": f"{folder}/there"})
    files = archive(a=b"x" * 5000, b=b"y" * 5000)
    for path in (f"{folder}/new", f"{folder}/new/", f"{folder}/there"):
        assert api("PUT", f"{at}/tree?path={path}", data=files[:8000]).json()["code"] == "invalid_input"
    assert names(folder) == ["there"], "a failure has left something"
    assert names(f"{folder}/there") != [], "into a folder that is there, what came is unpacked as it comes"
    for path in (f"{folder}/new", f"{folder}/new2/", f"{folder}/deep/er/new", f"{folder}/there"):
        assert api("PUT", f"{at}/tree?path={path}", data=files).status_code == 200
        assert names(path) == ["a", "b"]
    assert names(folder) == ["deep", "new", "new2", "there"]
    owner = api("GET", f"{at}/stat?path={folder}/new").json()
    assert (owner["owner"], owner["permissions"]) == ("user", "0755")


def test_a_sandbox_without_tar_says_so(api: Api, make: Any) -> None:
    bare = make()
    assert bare.exec("sudo rm /bin/tar /usr/bin/tar; ! command -v tar").exit_code == 0
    at = f"/v1/sandboxes/{bare.id}/fs/tree?path=/tmp"
    assert api("GET", at).json()["code"] == "not_supported" == api("PUT", at, data=archive(a=b"")).json()["code"]
