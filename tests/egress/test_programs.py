"""Programs in a real guest use the network as they always do: nothing in them knows of Belljar."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import importlib.util
import json
import shutil
import subprocess
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from websockets.asyncio.server import ServerConnection
from websockets.asyncio.server import serve as serve_websockets

from belljar.fleet.sandbox import Sandbox
from tests.conftest import CreateSandbox, said
from tests.egress.postgres import Postgres
from tests.egress.web import Web
from tests.egress.world import World


@pytest.fixture(scope="module")
def site(world: World, tmp_path_factory: pytest.TempPathFactory) -> Web:
    folder = tmp_path_factory.mktemp("site")
    (folder / "large.bin").write_bytes(bytes(range(256)) * 16384)
    world.name("www.test")
    return world.web(folder)


async def test_curl_over_http(box: Sandbox, site: Web) -> None:
    answer = json.loads(await said(box, f"curl -sS -d body http://www.test:{site.port}/echo"))
    assert answer == {"method": "POST", "path": "/echo", "body": "body"}
    assert site.requests[-1]["headers"]["host"] == f"www.test:{site.port}"


async def test_a_large_download_arrives_whole(box: Sandbox, site: Web) -> None:
    digest = hashlib.sha256(bytes(range(256)) * 16384).hexdigest()
    assert digest in await said(box, f"curl -sS http://www.test:{site.port}/large.bin | sha256sum")


async def test_tls_reaches_the_server_itself(box: Sandbox, world: World, tmp_path: Path) -> None:
    secure = world.web(tmp_path, world.name("secure.test"))
    url = f"https://secure.test:{secure.port}/echo"
    refused = await box.processes.run(f"curl -sS {url}", timeout_s=120)
    assert refused.exit_code == 60, "the guest does not know the tests' authority, and must say so"
    await box.files.upload(world.authority.file, "/tmp/authority.pem")
    assert json.loads(await said(box, f"curl -sS --cacert /tmp/authority.pem {url}"))["path"] == "/echo"


async def test_python_sockets_names_and_reverse_names(box: Sandbox, world: World) -> None:
    port = await world.servers.echo()
    world.name("echo.test")
    code = f"""
import socket
connection = socket.create_connection(("echo.test", {port}))
peer = connection.getpeername()[0]
connection.sendall(b"hello")
connection.shutdown(socket.SHUT_WR)
print(connection.makefile("rb").read(), socket.gethostbyaddr(peer)[0])
"""
    assert await said(box, ["python3", "-c", code]) == "b'hello' echo.test"


async def test_a_websocket_from_a_program(box: Sandbox, world: World) -> None:
    async def shout(connection: ServerConnection) -> None:
        async for message in connection:
            await connection.send(str(message).upper())

    world.name("ws.test")
    async with serve_websockets(shout, "127.0.0.1", 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        await _upload_package(box, "websockets")
        code = (
            f"from websockets.sync.client import connect as c\nwith c('ws://ws.test:{port}') as w: w.send('hello'); print(w.recv())"
        )
        assert await said(box, ["env", "PYTHONPATH=/tmp/packages", "python3", "-c", code]) == "HELLO"


async def test_pip_installs_from_an_index(box: Sandbox, world: World, tmp_path: Path) -> None:
    wheel = tmp_path / "simple" / "belljar-greeting" / "belljar_greeting-1.0-py3-none-any.whl"
    wheel.parent.mkdir(parents=True)
    _make_wheel(wheel)
    (wheel.parent / "index.html").write_text(f'<a href="{wheel.name}">{wheel.name}</a>')
    index = world.web(tmp_path)
    world.name("packages.test")
    options = f"--index-url http://packages.test:{index.port}/simple/ --trusted-host packages.test --disable-pip-version-check"
    await said(
        box, f"pip install -q --break-system-packages {options} belljar-greeting || pip install -q {options} belljar-greeting"
    )
    assert await said(box, "python3 -c 'import belljar_greeting; print(belljar_greeting.TEXT)'") == "installed"


async def test_git_clones_over_http(box: Sandbox, world: World, tmp_path: Path) -> None:
    if shutil.which("git") is None:
        pytest.skip("this host has no git")
    work, bare = tmp_path / "work", tmp_path / "repo.git"
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.com"]
    for command in (
        ["git", "init", "-q", str(work)],
        ["git", "-C", str(work), *identity, "commit", "-q", "--allow-empty", "-m", "the first one"],
        ["git", "clone", "-q", "--bare", str(work), str(bare)],
        ["git", "-C", str(bare), "update-server-info"],
    ):
        subprocess.run(command, check=True, capture_output=True, timeout=60)
    server = world.web(tmp_path)
    world.name("git.test")
    await said(box, f"rm -rf /tmp/clone && git clone -q http://git.test:{server.port}/repo.git /tmp/clone")
    assert "the first one" in await said(box, "git -C /tmp/clone log --oneline")


async def test_postgresql(box: Sandbox, world: World) -> None:
    server = await asyncio.to_thread(Postgres)
    world.at_end(server.stop)
    world.name("db.test")
    for package in ("pg8000", "scramp", "asn1crypto", "dateutil"):
        await _upload_package(box, package)
    code = f"""
import pg8000.native
with pg8000.native.Connection("tester", host="db.test", port={server.port}, password="pw", database="postgres") as db:
    db.run("CREATE TABLE t (n int)")
    db.run("INSERT INTO t SELECT generate_series(1, 5000)")
    print(db.run("SELECT sum(n), count(*) FROM t"))
"""
    assert await said(box, ["env", "PYTHONPATH=/tmp/packages", "python3", "-c", code]) == "[[12502500, 5000]]"


async def test_udp_and_ping_are_refused_at_once(box: Sandbox) -> None:
    code = """
import socket
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
u.settimeout(30)
try:
    u.connect(("1.1.1.1", 123)); u.send(b"x"); u.recv(1)
    print("answered")
except TimeoutError:
    print("silence")
except OSError as problem:
    print("refused")
"""
    assert await said(box, ["python3", "-c", code]) == "refused"


@pytest_asyncio.fixture
async def interpreter(make: CreateSandbox) -> AsyncIterator[Sandbox]:
    yield await make("code-interpreter")


async def test_requests_and_fetch_in_cells(interpreter: Sandbox, site: Web, world: World, tmp_path: Path) -> None:
    url = f"http://www.test:{site.port}/echo"
    ran = await interpreter.run_code(f"import requests\nrequests.get({url!r}, timeout=60).json()['path']", timeout_s=120)
    assert ran.error is None and ran.text == "'/echo'", ran
    ran = await interpreter.run_code(f"(await (await fetch({url!r})).json()).path", "javascript", timeout_s=120)
    assert ran.error is None and "/echo" in (ran.text or ""), ran
    api = world.web(tmp_path, world.name("api.test"))
    await interpreter.egress.set_secret(f"api.test:{api.port}", "X-Key", "hidden-value")
    code = f"requests.post('https://api.test:{api.port}/echo', data='x', timeout=60).status_code"
    ran = await interpreter.run_code(code, timeout_s=120)
    assert ran.error is None and ran.text == "200", ran
    assert api.requests[-1]["headers"]["x-key"] == "hidden-value"


async def _upload_package(sandbox: Sandbox, name: str) -> None:
    """A pure Python package of this environment into the guest, without its caches."""
    spec = importlib.util.find_spec(name)
    assert spec is not None and spec.origin is not None
    if not await sandbox.files.exists(f"/tmp/packages/{name}"):
        folder = Path(spec.origin).parent
        await sandbox.files.upload(folder, f"/tmp/packages/{name}")
        for about in folder.parent.glob(f"{name}-*.dist-info"):  # some look up their own version there
            await sandbox.files.upload(about, f"/tmp/packages/{about.name}")


def _make_wheel(path: Path) -> None:
    files = {
        "belljar_greeting.py": b"TEXT = 'installed'\n",
        "belljar_greeting-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: belljar-greeting\nVersion: 1.0\n",
        "belljar_greeting-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "belljar_greeting-1.0.dist-info/RECORD"
    lines = [
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}"
        for name, data in files.items()
    ]
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
        archive.writestr(record, "\n".join([*lines, f"{record},,"]) + "\n")
