"""An unprivileged user with the packages installed runs sandboxes: create, exec, fork, hibernate, adopt."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from belljar.settings import Settings
from belljar.store.layout import Layout

UID = 1_899_999_999
# What the fleet imports beside the standard library.
NEEDED = ("numpy", "numpy.libs", "h11", "dns", "idna", "cryptography", "cffi", "_cffi_backend*")

# Everything that is privileged when root does it, done without: jail, descriptors, pagemap, another process's memory.
SESSION = """
import asyncio, os, sys
from belljar.settings import load_settings
from belljar.fleet.sandboxes import Fleet

async def main():
    assert os.geteuid() != 0
    async with await Fleet.open(load_settings()) as fleet:
        facts = fleet._context.facts
        print("jail", facts.jail, facts.jail_reason)
        sandbox = await fleet.create()
        print("id", (await sandbox.processes.run("id -un; sudo id -un", timeout_s=60)).stdout.decode().split())
        await sandbox.processes.run("echo kept > /workspace/f; echo kept > /dev/shm/m", timeout_s=60)
        (child,) = await sandbox.fork()
        print("child", (await child.processes.run("cat /workspace/f /dev/shm/m", timeout_s=60)).stdout.decode().split())
        await child.hibernate()
        await child.wake()
        print("woken", (await child.processes.run("cat /workspace/f /dev/shm/m", timeout_s=60)).stdout.decode().split())
        stats = await child.stats()
        mounts = [line.split() for line in open(f"/proc/{stats['host']['pid']}/mountinfo")]
        print("root", [m[5].split(",")[0] for m in mounts if m[4] == "/root.ext4"])
        print("uid", os.stat(f"/proc/{stats['host']['pid']}").st_uid == os.getuid())
    async with await Fleet.open(load_settings()) as fleet:
        adopted = await fleet.get(sandbox.id)
        snapshot = await adopted.snapshot()
        again = await fleet.create(snapshot=snapshot.id)
        print("adopted", (await again.processes.run("cat /workspace/f", timeout_s=60)).stdout.decode().split())
        for record in await fleet.list():
            await fleet.kill(record.id)
        print("left", os.listdir(os.path.join(load_settings().home, "sandboxes")))

asyncio.run(main())
"""


@pytest.fixture
def home(own_settings: Settings) -> Iterator[Path]:
    """A store of that user's own, with the template base in it."""
    if os.geteuid() != 0:
        pytest.skip("needs root to become another user; run as that user instead")
    place = Path(tempfile.mkdtemp(prefix="belljar-rootless-"))
    store, own = Layout(own_settings.home), Layout(place / "home")
    own.prepare()
    digest = store.name("base").read_text().strip()
    own.name("base").write_text(digest)
    for folder in (store.template(digest), *store.kernels.iterdir(), *(store.cache / "kernel-files").iterdir()):
        target = own.home / folder.relative_to(store.home)
        subprocess.run(["cp", "-a", "--sparse=always", str(folder), str(target)], check=True)
    code = Path(__file__).parent.parent / "belljar"
    shutil.copytree(code, place / "code" / "belljar", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(own_settings.recipes, place / "code" / "templates")
    subprocess.run(["chown", "-R", f"{UID}:{UID}", str(place)], check=True)
    place.chmod(0o755)
    yield place
    shutil.rmtree(place)


def test_everything_works_without_privileges(home: Path) -> None:
    site = next(path for path in sys.path if path.endswith("site-packages"))
    code = f"import sys; sys.path[:0] = [{str(home / 'code')!r}, {str(home / 'site')!r}]\n{SESSION}"
    # The user may not read this checkout or its environment, as is proper; what it needs of them is given to it.
    (home / "site").mkdir()
    for name in NEEDED:
        for found in Path(site).glob(name):
            copy = shutil.copytree if found.is_dir() else shutil.copy2
            copy(found, home / "site" / found.name)
    subprocess.run(["chown", "-R", f"{UID}:{UID}", str(home / "site")], check=True)
    python = "/usr/bin/python3" if Path("/usr/bin/python3.11").exists() else sys.executable
    ran = subprocess.run(
        [python, "-c", code],
        user=UID,
        group=UID,
        extra_groups=[],
        cwd=home,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "BELLJAR_HOME": str(home / "home"), "HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    said = dict(line.split(" ", 1) for line in ran.stdout.splitlines())
    assert said["id"] == "['user', 'root']"
    assert said["child"] == said["woken"] == "['kept', 'kept']"
    assert said["adopted"] == "['kept']"
    assert said["uid"] == "True"
    if said["jail"].startswith("True"):
        # With the owner's own uid a descriptor of the file could be made writable; a read-only mount cannot.
        assert said["root"] == "['ro']"
    assert said["left"] == "[]"
