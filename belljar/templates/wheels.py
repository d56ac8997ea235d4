"""The guest's virtual environment, laid out from the host: /opt/venv, wheels only.

pip on the host fetches and unpacks the wheels for the guest's Python and platform, so any host Python will do and nothing of
the image runs. The lock file names every package, so pip resolves nothing: the host's Python version cannot change the outcome.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from belljar.errors import BuildFailed, HostSetup
from belljar.templates.steps import Progress, run_step

PYTHON = "3.11"
VENV = "opt/venv"
SITE = f"{VENV}/lib/python{PYTHON}/site-packages"
# The newest C library that bookworm's 2.36 satisfies, and everything older.
PLATFORMS = ("manylinux2014_x86_64", *(f"manylinux_2_{minor}_x86_64" for minor in range(36, 4, -1)))
# Every file gets this date, so that the same wheels make the same image and compiled modules stay valid.
EPOCH = 1_700_000_000


def install_wheels(pins: Sequence[str], staging: Path, scratch: Path, progress: Progress, fd: int) -> None:
    """Put `pins` into an empty `staging`, laid out like the root of the guest."""
    unpacked = scratch / "unpacked"
    list_file = scratch / "wheels.txt"
    list_file.write_text("".join(f"{pin}\n" for pin in pins))
    temporary = scratch / "pip"
    temporary.mkdir()
    target = ["--target", str(unpacked), "--python-version", PYTHON, "--implementation", "cp", "--only-binary=:all:"]
    platforms = [word for platform in PLATFORMS for word in ("--platform", platform)]
    options = ["--no-deps", "--no-compile", "--no-input", "--disable-pip-version-check", "--progress-bar=off"]
    command = [sys.executable, "-m", "pip", "install", *options, *target, *platforms, "-r", str(list_file)]
    step = f"install {len(pins)} wheels"
    try:
        run_step(step, command, progress=progress, env={"TMPDIR": str(temporary)}, keep_fds=[fd])
    except BuildFailed as failure:
        if "No module named pip" in failure.message:
            raise HostSetup(f"{sys.executable} has no pip; run: make setup") from failure
        raise
    _arrange(unpacked, staging)


def make_venv(staging: Path, version: str, activate: Path) -> None:
    """An empty virtual environment in `staging`. `activate` is the script that Debian's own venv module would fill in."""
    bin_folder = staging / VENV / "bin"
    bin_folder.mkdir(parents=True, exist_ok=True)
    (staging / SITE).mkdir(parents=True, exist_ok=True)
    (staging / VENV / "lib64").symlink_to("lib")
    for name in ("python", "python3", f"python{PYTHON}"):
        (bin_folder / name).symlink_to(f"/usr/bin/python{PYTHON}")
    settings = f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {version}\n"
    (staging / VENV / "pyvenv.cfg").write_text(settings)
    words = {"__VENV_DIR__": f"/{VENV}", "__VENV_NAME__": "venv", "__VENV_BIN_NAME__": "bin", "__VENV_PROMPT__": "(venv) "}
    text = activate.read_text()
    for word, value in words.items():
        text = text.replace(word, value)
    (bin_folder / "activate").write_text(text)


def set_dates(staging: Path) -> None:
    for directory, folders, files in os.walk(staging, topdown=False):
        for name in (*folders, *files):
            os.utime(Path(directory) / name, (EPOCH, EPOCH), follow_symlinks=False)


def _arrange(unpacked: Path, staging: Path) -> None:
    """From pip's --target, where everything lies in one folder, to a virtual environment."""
    for name in ("bin", "share", "etc", "include"):
        if (source := unpacked / name).is_dir():
            target = staging / VENV / name
            target.parent.mkdir(parents=True, exist_ok=True)
            source.rename(target)
    site = staging / SITE
    site.parent.mkdir(parents=True, exist_ok=True)
    unpacked.rename(site)
    for record in site.glob("*.dist-info/RECORD"):
        # pip counted from lib/python; uninstalling in the guest must find bin and share from lib/python3.11/site-packages.
        record.write_text(re.sub(r"^\.\./\.\./", "../../../", record.read_text(encoding="utf-8"), flags=re.M), encoding="utf-8")
    for script in (staging / VENV / "bin").glob("*"):
        script.write_bytes(with_guest_python(script.read_bytes()))


def with_guest_python(script: bytes) -> bytes:
    """A script whose first lines start the host's Python, made to start the guest's. Anything else is left as it is."""
    line = f"#!/{VENV}/bin/python\n".encode()
    if script.startswith(b"#!/bin/sh\n'''exec' "):  # the form for interpreter paths that are long or hold a space
        return line + script.split(b"\n", 3)[3]
    first, newline, rest = script.partition(b"\n")
    if first.startswith(b"#!") and b"python" in first and newline:
        return line + rest
    return script
