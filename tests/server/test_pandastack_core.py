"""The published `pandastack` client, unmodified, against a real server: sandboxes, commands, files."""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path
from typing import Any

import pandastack
import pytest
from pandastack.exceptions import AuthError, BadRequestError, NotFoundError, SandboxTimeout

from tests.server.conftest import Api, MakeBox, Server


def test_create_get_list_kill(client: pandastack.Client, make: MakeBox) -> None:
    made = make("base", metadata={"team": "blue", "secret.key": "hidden"}, ttl_seconds=600)
    assert made.status == "running" and made.template == "base" and made.cpu >= 1 and made.memory_mb >= 128
    again = client.sandboxes.get(made.id)
    assert again.metadata == {"team": "blue"} and again.persistent is False and again.created_at
    assert made.id in [found.id for found in client.sandboxes.list()]
    made.kill()
    made.kill()  # it is gone, and that is no error
    with pytest.raises(NotFoundError):
        client.sandboxes.get(made.id)
    assert made.id not in [found.id for found in client.sandboxes.list()]


def test_a_with_block_ends_the_sandbox(client: pandastack.Client) -> None:
    with client.sandboxes.create("base") as made:
        assert made.exec("echo in").stdout == "in\n"
    with pytest.raises(NotFoundError):
        client.sandboxes.get(made.id)


def test_exec(box: pandastack.Sandbox) -> None:
    done = box.exec("echo out; echo err >&2; exit 3")
    assert (done.stdout, done.stderr, done.exit_code) == ("out\n", "err\n", 3)
    assert box.commands.run("printf 'ü€'").stdout == "ü€"
    assert box.exec("kill -9 $$").exit_code == 137


def test_run_code(box: pandastack.Sandbox) -> None:
    assert box.run_code("print(6 * 7)").stdout == "42\n"
    assert box.run_code('x="a b"; echo "$x"', language="bash").stdout == "a b\n"


def test_a_command_that_takes_too_long_is_a_timeout(box: pandastack.Sandbox) -> None:
    with pytest.raises(SandboxTimeout):
        box.exec("sleep 600", timeout_seconds=1)


def test_a_command_may_be_silent_for_longer_than_the_client_waits(client: pandastack.Client, box: pandastack.Sandbox) -> None:
    impatient = pandastack.Client(api_key=client.api_key, api_url=client.api_url, timeout=10)
    assert impatient.sandboxes.get(box.id).exec("sleep 12; echo done", timeout_seconds=60).stdout == "done\n"


def test_a_timeout_after_signs_of_life_is_still_a_timeout(client: pandastack.Client, box: pandastack.Sandbox) -> None:
    impatient = pandastack.Client(api_key=client.api_key, api_url=client.api_url, timeout=10)
    with pytest.raises(SandboxTimeout):
        impatient.sandboxes.get(box.id).exec("sleep 600", timeout_seconds=12)


def test_exec_stream(box: pandastack.Sandbox) -> None:
    out: list[str] = []
    err: list[str] = []
    command = "for i in 1 2 3; do echo $i; done; printf '\\342\\202'; sleep 0.3; printf '\\254'; echo e >&2; exit 7"
    code = box.exec_stream(command, out.append, err.append)
    assert ("".join(out), "".join(err), code) == ("1\n2\n3\n€", "e\n", 7)


def test_exec_stream_reports_what_went_wrong(client: pandastack.Client, box: pandastack.Sandbox) -> None:
    with pytest.raises(SandboxTimeout):
        box.exec_stream("echo before; sleep 600", timeout_seconds=1)
    with pytest.raises(SandboxTimeout):
        box.exec_stream("sleep 600", timeout_seconds=1)
    nobody = pandastack.Sandbox(id="sb-none", template="base", status="running", cpu=1, memory_mb=1, _client=client)
    with pytest.raises(NotFoundError):
        nobody.exec_stream("true")


def test_leaving_a_stream_ends_the_command(api: Api, box: pandastack.Sandbox) -> None:
    with api("POST", f"/v1/sandboxes/{box.id}/exec/stream", json={"cmd": "echo on; exec sleep 4711"}, stream=True) as answer:
        assert next(answer.iter_lines()) == b"event: stdout"
    for _ in range(100):
        if box.exec("pgrep -f '[s]leep 4711'; sleep 0.1").stdout == "":
            return
    pytest.fail("the command outlived its reader")


def test_files(box: pandastack.Sandbox, tmp_path: Path) -> None:
    fs = box.filesystem
    content = bytes(range(256)) * 10
    fs.write("/tmp/deep/er/file +ü.bin", content)
    assert fs.read("/tmp/deep/er/file +ü.bin") == content
    fs.write("/tmp/deep/er/file +ü.bin", "text")
    assert fs.read("/tmp/deep/er/file +ü.bin") == b"text"
    fs.write("/tmp/deep/empty", b"")
    assert fs.read("/tmp/deep/empty") == b""
    assert [(entry.name, entry.is_dir) for entry in fs.listdir("/tmp/deep")] == [("empty", False), ("er", True)]
    assert fs.stat("/tmp/deep/er").is_dir and fs.stat("/tmp/deep/er/file +ü.bin").size == 4
    assert fs.exists("/tmp/deep") and not fs.exists("/tmp/shallow")
    assert [entry[0] for entry in fs.walk("/tmp/deep")] == ["/tmp/deep", "/tmp/deep/er"]
    fs.download("/tmp/deep/empty", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b""


def test_a_link_is_what_it_leads_to(box: pandastack.Sandbox) -> None:
    box.exec("mkdir -p /tmp/l/d; cd /tmp/l; echo 1234 > d/f; ln -sfn d dir; ln -sfn dir/f file; ln -sfn nowhere broken")
    assert box.filesystem.stat("/tmp/l/dir").is_dir
    assert box.filesystem.stat("/tmp/l/file").size == 5
    assert not box.filesystem.exists("/tmp/l/broken")


def test_a_missing_file_is_not_found(box: pandastack.Sandbox) -> None:
    for ask in (box.filesystem.read, box.filesystem.stat, box.filesystem.listdir):
        with pytest.raises(NotFoundError):
            ask("/no/such")
    with pytest.raises(BadRequestError):
        box.filesystem.read("/tmp")


def memory_kib(server: Server) -> int:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))


def test_large_files_pass_through_without_staying(server: Server, api: Api, box: pandastack.Sandbox) -> None:
    piece, count = os.urandom(1 << 20), 64
    before = memory_kib(server)
    peak = [before]
    stop = threading.Event()
    watcher = threading.Thread(target=lambda: [peak.append(memory_kib(server)) for _ in iter(lambda: stop.wait(0.05), True)])
    watcher.start()
    path = {"path": "/tmp/large"}
    assert api("PUT", f"/v1/sandboxes/{box.id}/fs", params=path, data=(piece for _ in range(count))).json()["bytes"] == count << 20
    digest = hashlib.sha256()
    with api("GET", f"/v1/sandboxes/{box.id}/fs", params=path, stream=True) as answer:
        for chunk in answer.iter_content(1 << 18):
            digest.update(chunk)
    stop.set()
    watcher.join()
    assert digest.hexdigest() == hashlib.sha256(piece * count).hexdigest()
    assert max(peak) - before < 32 << 10
    assert api("DELETE", f"/v1/sandboxes/{box.id}/fs", params=path).status_code == 204


def test_an_upload_that_breaks_off_leaves_the_old_file(api: Api, box: pandastack.Sandbox) -> None:
    box.filesystem.write("/tmp/kept", b"old")

    def broken() -> Any:
        yield b"new" * 1000
        raise OSError("cable cut")

    with pytest.raises(OSError, match="cable cut"):
        api("PUT", f"/v1/sandboxes/{box.id}/fs", params={"path": "/tmp/kept"}, data=broken())
    assert box.filesystem.read("/tmp/kept") == b"old"


def test_a_wrong_key_is_an_auth_error(server: Server) -> None:
    for key in ("pds_" + "0" * 32, "pds_short", "Bearer", "x" * 10_000):
        with pytest.raises(AuthError):
            pandastack.Client(api_key=key, api_url=server.url).sandboxes.list()
