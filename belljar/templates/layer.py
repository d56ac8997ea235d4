"""What a recipe lays over a tree: wheels, files, links and users, and the clean-up that makes an image of it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from belljar.errors import BuildFailed
from belljar.store.publish import Workplace
from belljar.templates.recipe import Recipe
from belljar.templates.steps import Progress, as_root, run_step
from belljar.templates.wheels import PYTHON, SITE, VENV, install_wheels, make_venv, set_dates

VENV_OWNER = "1000:1000"
HOSTNAME = "belljar"
QUIET: Progress = lambda _: None  # noqa: E731
# Files go, folders stay: apt wants its own to be there.
EMPTIED = ("var/cache/apt", "var/lib/apt/lists", "var/log", "tmp", "run")
# In place of what mmdebstrap copied from the host.
PLAIN = {
    "etc/hostname": f"{HOSTNAME}\n",
    "etc/hosts": f"127.0.0.1 localhost\n127.0.1.1 {HOSTNAME}\n::1 localhost ip6-localhost\n",
    "etc/machine-id": "",
    "etc/resolv.conf": "",
}
# Compiling in parallel needs semaphores, and those need /dev/shm.
COMPILE = """mount -t tmpfs shm "$1/dev/shm" &&
exec chroot "$1" /usr/bin/python3 -m compileall -q -j 0 --invalidation-mode timestamp "$2"
"""


def apply_layer(recipe: Recipe, tree: Path, work: Workplace, progress: Progress) -> None:
    """Everything of `recipe` itself (not of its parents) into `tree`."""
    staging, scratch = work.path / "staging", work.path / "scratch"
    staging.mkdir()
    scratch.mkdir()
    if recipe.locked:
        install_wheels(recipe.locked, staging, scratch, progress, work.fd)
        if recipe.parent is None or not recipe.parent.all_wheels:
            make_venv(staging, python_version(tree), tree / f"usr/lib/python{PYTHON}/venv/scripts/common/activate")
        set_dates(staging)
    _stage_files(recipe, staging)
    _merge(staging, tree, work)
    if recipe.locked:
        (tree / "dev/shm").mkdir(parents=True, exist_ok=True)
        command = as_root("sh", "-c", COMPILE, "sh", tree, f"/{SITE}")
        # 1: some file did not compile. Packages do carry such files, as test data or for other Pythons.
        run_step("compile the wheels' Python files", command, progress=progress, keep_fds=[work.fd], ok=(0, 1))
    for user in recipe.users:
        _add_user(user.name, user.uid, user.sudo, tree)
        owned = [tree / path.lstrip("/") for path in (f"/home/{user.name}", *user.owns)]
        run_step("create", as_root("mkdir", "-p", *owned), progress=QUIET)
        run_step("own", as_root("chown", "-R", f"{user.uid}:{user.uid}", *owned), progress=QUIET)
    if recipe.locked:
        run_step("own", as_root("chown", "-R", VENV_OWNER, tree / VENV), progress=QUIET)
    _clean(tree)
    shutil.rmtree(scratch)
    shutil.rmtree(staging)


def python_version(tree: Path) -> str:
    """The full version of the tree's Python, as dpkg knows it."""
    status = (tree / "var/lib/dpkg/status").read_text(encoding="utf-8")
    match = re.search(rf"^Package: python{PYTHON}-minimal\n(?:.+\n)*?Version: ([0-9.]+)", status, re.M)
    if match is None:
        raise BuildFailed(f"wheels need python3 (Python {PYTHON}) and python3-venv among the packages", step="wheels")
    return match.group(1)


def _stage_files(recipe: Recipe, staging: Path) -> None:
    for file in recipe.files:
        target = staging / file.target.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.content)
        target.chmod(0o755 if file.executable else 0o644)
    for where, to in recipe.links:
        link = staging / where.lstrip("/")
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)  # a wheel's own command may be what the link replaces
        link.symlink_to(to)


def _merge(staging: Path, tree: Path, work: Workplace) -> None:
    """Folders keep the tree's owner and mode; files are linked, not copied, and replace what was there."""
    script = 'cd "$1" && find . -mindepth 1 -type d | (cd "$2" && tr "\\n" "\\0" | xargs -0 -r mkdir -p) && '
    script += 'find . -mindepth 1 ! -type d -print0 | xargs -0 -r cp -alf --parents -t "$2"'
    run_step("merge", as_root("sh", "-c", script, "sh", staging, tree), progress=QUIET, keep_fds=[work.fd])


def _add_user(name: str, uid: int, sudo: bool, tree: Path) -> None:
    etc = tree / "etc"
    lines = {
        "passwd": f"{name}:x:{uid}:{uid}::/home/{name}:/bin/bash",
        "group": f"{name}:x:{uid}:",
        "shadow": f"{name}:!:19000:0:99999:7:::",
        "gshadow": f"{name}:!::",
    }
    for file, line in lines.items():
        with (etc / file).open("a") as out:
            out.write(line + "\n")
    home = tree / "home" / name
    shutil.copytree(etc / "skel", home, symlinks=True, dirs_exist_ok=True)
    if sudo:
        rule = etc / "sudoers.d" / name
        rule.write_text(f"{name} ALL=(ALL:ALL) NOPASSWD: ALL\n")
        rule.chmod(0o440)


def _clean(tree: Path) -> None:
    emptied = [tree / folder for folder in EMPTIED]
    run_step("clean", as_root("find", *emptied, "-xdev", "!", "-type", "d", "-delete"), progress=QUIET)
    for name, content in PLAIN.items():
        path = tree / name
        if path.is_symlink():
            path.unlink()
        path.write_text(content)
    (tree / "usr/lib/belljar").mkdir(exist_ok=True)
