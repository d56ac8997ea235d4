"""Files and refreshes as SandBase's later pages have them."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator

import pandastack
import pytest

from tests.server.conftest import Api, MakeBox, eventually


@pytest.fixture
def at(box: pandastack.Sandbox) -> str:
    return f"/sandboxes/{box.id}/filesystem"


@pytest.fixture
def folder(api: Api, at: str) -> Iterator[str]:
    path = "/tmp/sandbase-files"
    assert api("POST", f"{at}/mkdir", json={"path": path}).json() == {"path": path}
    yield path
    assert api("DELETE", f"{at}?path={path}&recursive=1").status_code == 204


def test_content_as_base64(api: Api, at: str, folder: str) -> None:
    path, raw = f"{folder}/main.py", bytes(range(256))
    written = api("POST", at, json={"path": path, "content": base64.b64encode(raw).decode()})
    assert written.status_code == 200 and written.content == b"", written.text
    assert base64.b64decode(api("GET", f"{at}?path={path}").json()["content"]) == raw
    assert api("GET", f"{at}/download?path={path}").content == raw
    entry = {"name": "main.py", "path": path, "isDir": False, "size": 256}
    shown = api("GET", f"{at}/stat?path={path}").json()
    assert {name: shown[name] for name in entry} == entry and shown["modTime"] > 0
    assert [each["name"] for each in api("GET", f"{at}/list?path={folder}").json()] == ["main.py"]
    assert isinstance(api("GET", f"{at}/list").json(), list)
    moved = api("POST", f"{at}/move", json={"source": path, "destination": f"{folder}/moved.py"})
    assert moved.json() == {"path": f"{folder}/moved.py"} and api("GET", f"{at}?path={path}").status_code == 404
    assert api("DELETE", f"{at}?path={folder}/moved.py").status_code == 204


def test_uploads_as_forms(api: Api, at: str, folder: str) -> None:
    raw = bytes(range(256)) * 8000
    path = f"{folder}/up load.bin"
    done = api("POST", f"{at}/upload", data={"path": path}, files={"file": ("x.bin", raw)})
    assert done.status_code == 200 and done.json() == {"path": path, "size": len(raw)}, done.text
    assert api("GET", f"{at}/download?path={path}").content == raw
    done = api("POST", f"{at}/upload?path={path}", files={"file": ("x.bin", b"\r\n--not-the-boundary\r\n")})
    assert done.status_code == 200 and api("GET", f"{at}/download?path={path}").content == b"\r\n--not-the-boundary\r\n"
    for field in range(3):  # the boundary may be cut anywhere on its way
        body = b'--b\r\nContent-Disposition: form-data; name="path"\r\n\r\n%s\r\n' % path.encode()
        body += b'--b\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\nhalf\r\n--b--\r\n'
        step = 7 + field

        def pieces(body: bytes = body, step: int = step) -> Iterator[bytes]:
            for start in range(0, len(body), step):
                yield body[start : start + step]

        headers = {"Content-Type": "multipart/form-data; boundary=b"}
        assert api("POST", f"{at}/upload", data=pieces(), headers=headers).json() == {"path": path, "size": 4}


def test_bad_forms_write_nothing(api: Api, at: str, folder: str) -> None:
    path = f"{folder}/never"
    part = b'--b\r\nContent-Disposition: form-data; name="%s"%s\r\n\r\n%s\r\n'
    named = part % (b"path", b"", path.encode())
    file = part % (b"file", b'; filename="f"', b"content")
    form = "multipart/form-data; boundary=b"
    bad = [
        ("application/json", b"{}"),
        ("multipart/form-data", named + file + b"--b--\r\n"),
        (form, b""),
        (form, b"no form at all"),
        (form, named + b"--b--\r\n"),
        (form, named + file),
        (form, named + file + file + b"--b--\r\n"),
        (form, file + b"--b--\r\n"),
        (form, part % (b"path", b"", b"x" * 100_000) + file + b"--b--\r\n"),
        (form, (part % (b"more", b"", b"x")) * 40 + named + file + b"--b--\r\n"),
    ]
    for number, (kind, body) in enumerate(bad):
        answer = api("POST", f"{at}/upload", data=body, headers={"Content-Type": kind})
        assert 400 <= answer.status_code < 500 and answer.json()["message"], (number, answer.text)
    # What a write that failed had begun goes a moment after it.
    eventually(lambda: bool(api("GET", f"{at}/list?path={folder}").json() == []), "the empty folder")


def test_bad_file_calls(api: Api, at: str, folder: str) -> None:
    for method, path, body, status in (
        ("GET", "", None, 400),
        ("GET", "?path=/no/such", None, 404),
        ("GET", f"?path={folder}", None, 422),
        ("POST", "", {"path": f"{folder}/x"}, 400),
        ("POST", "", {"path": f"{folder}/x", "content": "no base64!"}, 400),
        ("POST", "", {"path": "/etc/x", "content": ""}, 403),
        ("DELETE", "?path=/no/such", None, 404),
        ("GET", "/download?path=/no/such", None, 404),
        ("GET", "/list?path=/etc/hostname", None, 422),
        ("GET", "/stat?path=/no/such", None, 404),
        ("POST", "/mkdir", {}, 400),
        ("POST", "/mkdir", {"path": "/etc/x"}, 403),
        ("POST", "/move", {"source": "/tmp/x"}, 400),
        ("POST", "/move", {"source": "/no/such", "destination": f"{folder}/x"}, 404),
    ):
        answer = api(method, at + path, json=body)
        said = json.loads(answer.text)
        assert answer.status_code == status == said["code"] and said["message"], (path, answer.text)
    assert api("GET", f"{at}/list?path={folder}").json() == []


def test_a_refresh_lengthens_a_life_and_never_shortens_it(api: Api, make: MakeBox) -> None:
    box = make(ttl_seconds=600)
    at = f"/sandboxes/{box.id}"
    before = api("GET", at).json()["endAt"]
    assert api("POST", f"{at}/refreshes", json={"duration": 60}).status_code == 204
    assert api("GET", at).json()["endAt"] == before
    assert api("POST", f"{at}/refreshes", json={"duration": 3600}).status_code == 204
    assert api("GET", at).json()["endAt"] > before
    for bad in ({"duration": 0}, {"duration": 3601}, {"duration": "long"}):
        assert api("POST", f"{at}/refreshes", json=bad).status_code == 400
    assert api("POST", "/sandboxes/sb-none/refreshes").status_code == 404
