"""The command line as a user types it, on real sandboxes: each call is a process of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from belljar.settings import Settings

Belljar = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def belljar(settings: Settings, tmp_path: Path) -> Iterator[Belljar]:
    def run(*words: str, stdin: str = "", check: bool = True) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "belljar.cli.main", *words]
        env = {**os.environ, "BELLJAR_HOME": str(settings.home)}
        done = subprocess.run(argv, input=stdin, capture_output=True, text=True, timeout=200, env=env, cwd=tmp_path)
        if check:
            assert done.returncode == 0, f"{words}: {done.returncode}: {done.stderr}"
        return done

    made = {line["id"] for line in json.loads(run("ps", "--json").stdout)}
    yield run
    left = {line["id"] for line in json.loads(run("ps", "--json").stdout)} - made
    for sandbox in left:
        run("kill", sandbox, check=False)


def test_run_runs_code_and_leaves_nothing(belljar: Belljar, tmp_path: Path) -> None:
    before = belljar("ps", "--json").stdout
    assert belljar("run", "-c", "print(6 * 7)").stdout == "42\n"
    (tmp_path / "script.py").write_text("import sys\nprint('out')\nprint('err', file=sys.stderr)\nsys.exit(7)\n")
    failed = belljar("run", "script.py", check=False)
    assert (failed.returncode, failed.stdout, failed.stderr) == (7, "out\n", "err\n")
    assert belljar("run", "--language", "bash", "-c", "echo $((1 + 1))").stdout == "2\n"
    assert belljar("run", "--timeout", "2", "-c", "while True: pass", check=False).returncode == 124
    assert belljar("ps", "--json").stdout == before


def test_a_sandbox_lives_across_calls(belljar: Belljar, tmp_path: Path) -> None:
    sandbox = belljar("create", "--metadata", "from=cli").stdout.strip()
    assert belljar("exec", sandbox, "--", "hostname").stdout.strip() == sandbox
    assert belljar("exec", sandbox, "--", "cat", stdin="through\nthe pipe\n").stdout == "through\nthe pipe\n"
    assert belljar("exec", sandbox, "--", "sh", "-c", "exit 5", check=False).returncode == 5
    (tmp_path / "folder" / "deep").mkdir(parents=True)
    (tmp_path / "folder" / "deep" / "data").write_bytes(bytes(range(256)) * 1000)
    belljar("cp", "folder", f"{sandbox}:/workspace/folder")
    belljar("cp", f"{sandbox}:/workspace/folder", "back")
    assert (tmp_path / "back" / "deep" / "data").read_bytes() == bytes(range(256)) * 1000
    process = belljar("exec", "-d", sandbox, "--", "sh", "-c", "echo started; sleep 600").stdout.split()[0]
    assert process in belljar("ps", sandbox).stdout
    (child,) = belljar("fork", sandbox).stdout.split()
    assert belljar("exec", child, "--", "wc", "-c", "/workspace/folder/deep/data").stdout.startswith("256000 ")
    assert process in belljar("ps", child).stdout, "the child lost the parent's process"
    belljar("hibernate", sandbox)
    refused = belljar("exec", sandbox, "--", "true", check=False)
    assert refused.returncode == 1 and "wake" in refused.stderr
    belljar("wake", sandbox)
    assert belljar("exec", sandbox, "--", "hostname").stdout.strip() == sandbox
    snapshot = belljar("snapshot", "create", sandbox).stdout.split()[0]
    copy = belljar("create", "--snapshot", snapshot).stdout.strip()
    assert belljar("exec", copy, "--", "ls", "/workspace/folder/deep").stdout == "data\n"
    stats = json.loads(belljar("stats", sandbox, "--json").stdout)
    assert stats["guest"]["cpu"]["count"] == 2
    belljar("kill", sandbox, child, copy)
    belljar("snapshot", "rm", snapshot)
    assert sandbox not in belljar("ps").stdout


def test_forward_leads_into_a_sandbox_that_is_asleep(belljar: Belljar, settings: Settings) -> None:
    sandbox = belljar("create").stdout.strip()
    belljar("exec", "-d", sandbox, "cd /etc && exec python3 -m http.server 8000 --bind 127.0.0.1")
    belljar("exec", sandbox, "until (exec 3<>/dev/tcp/127.0.0.1/8000) 2>/dev/null; do sleep 0.2; done", "--timeout", "120")
    belljar("hibernate", sandbox)
    argv = [sys.executable, "-m", "belljar.cli.main", "forward", sandbox, "0:8000"]
    environ = {**os.environ, "BELLJAR_HOME": str(settings.home), "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as forward:
        assert forward.stdout is not None
        found = re.search(r"127\.0\.0\.1:(\d+)", forward.stdout.readline())
        try:
            assert found, "it ended without forwarding"
            with urllib.request.urlopen(f"http://127.0.0.1:{found.group(1)}/hostname", timeout=120) as answer:
                assert answer.read().decode().strip() == sandbox
        finally:
            forward.send_signal(signal.SIGTERM)
            _, said = forward.communicate(timeout=60)
    assert forward.returncode == 143 and said == "", said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("exec", "sb-none", "--", "true"), "no sandbox"),
        (("kill", "sb-none"), "no sandbox"),
        (("create", "--template", "none"), "no template"),
        (("create", "--template", "a/b"), "not valid"),
        (("create", "--snapshot", "none"), "no snapshot"),
        (("create", "--ttl", "-5"), "ttl"),
        (("create", "--memory", "1000000"), "memory_mib"),
        (("run", "no-such-file.py"), "no-such-file.py"),
        (("snapshot", "rm", "none"), "no snapshot"),
        (("template", "build", "none"), "none"),
        (("fork", "sb-none"), "no sandbox"),
        (("forward", "sb-none", "80"), "no sandbox"),
        (("forward", "sb-none", "80:"), "LOCAL:PORT"),
    ],
)
def test_mistakes_get_one_line_that_says_what_was_wrong(belljar: Belljar, words: tuple[str, ...], said: str) -> None:
    done = belljar(*words, check=False)
    assert done.returncode in (1, 2)
    assert said in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert done.stdout == ""


def test_doctor_tells_what_this_machine_will_use(belljar: Belljar) -> None:
    told = json.loads(belljar("doctor", "--json").stdout)
    assert told["accelerator"] in ("kvm", "tcg")
    assert {row["check"] for row in told["checks"]} >= {"memory", "disk", "reflink", "QEMU", "accelerator", "privileges", "jail"}
    text = belljar("doctor").stdout
    assert told["accelerator"] in text and "Isolation" in text


def test_templates_are_listed_and_shown(belljar: Belljar) -> None:
    names = {row["name"] for row in json.loads(belljar("template", "list", "--json").stdout)}
    assert names >= {"base", "python-data", "code-interpreter"}
    assert json.loads(belljar("template", "show", "base", "--json").stdout)["manifest"]["memory_mib"] == 2048
