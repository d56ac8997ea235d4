"""The documents keep up with the code: settings, errors, commands and operations are named, examples run, links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from belljar.cli.main import build_parser
from belljar.errors import BY_CODE
from belljar.fleet.sandboxes import Fleet
from belljar.settings import SETTINGS, Settings

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
# A mirror or registry of whoever develops here has no place in the repository; the public ones do.
MIRROR = re.compile(
    r"https?://(?!(?:pypi\.org|deb\.debian\.org|registry\.npmjs\.org)\b)"
    r"[\w.@:-]*(?:artifact|nexus|mirror|proxy|registry|pypi|\.internal\b|\.corp\b|\.lan\b)[\w.@:-]*",
    re.IGNORECASE,
)


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def command_names(parser: Any, path: str = "belljar") -> list[str]:
    nested = [action for action in parser._actions if hasattr(action, "choices") and isinstance(action.choices, dict)]
    if not nested:
        return [path]
    return [found for name, child in nested[0].choices.items() for found in command_names(child, f"{path} {name}")]


def examples(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", read(page), re.M | re.S)


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_setting_is_documented_with_its_default() -> None:
    rows = [line for line in read("docs/operations.md").splitlines() if line.startswith("|")]
    for setting in SETTINGS:
        (row,) = [row for row in rows if f"`{setting.env}`" in row]
        assert row.startswith(f"| `{setting.key}`") and row.endswith(f"| {setting.help} |")
        assert setting.key == "recipes" or f"| `{setting.default}` |" in row


def test_every_error_is_documented_with_its_class_and_status() -> None:
    page = read("docs/library.md")
    for code, kind in BY_CODE.items():
        assert re.search(rf"`{code}` \| `{kind.__name__}` \|.*\| {kind.status} \| {kind.retry} \|", page), code


def test_every_command_is_documented() -> None:
    page = read("docs/cli.md")
    assert not [name for name in command_names(build_parser()) if f"## `{name}`" not in page]


def test_the_command_reference_is_current() -> None:
    ran = subprocess.run([sys.executable, str(ROOT / "scripts/cli-reference"), "--check"], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


def test_every_operation_of_the_agent_is_documented() -> None:
    page = read("docs/wire.md")
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "belljar/guest").glob("*.py"))
    operations = set(re.findall(r"\"((?:process|file)\.[a-z]+)\":", sources))
    assert {"process.start", "file.read"} <= operations
    assert not [name for name in sorted(operations) if f"`{name}`" not in page]


def test_the_readme_is_short() -> None:
    assert len(read("README.md").splitlines()) < 200


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_documents_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), f"{page.name} links to {link}"
        assert not anchor or anchor in anchors(target), f"{page.name} links to {link}"


def test_no_file_names_a_developers_machine() -> None:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    own_paths = (f"{ROOT}/", f"{Path.home()}/.local", f"{Path.home()}/.cache")
    found = []
    for path in (ROOT / name for name in listed.stdout.decode().split("\0") if name):
        text = path.read_bytes().decode(errors="replace") if path.is_file() else ""
        found += [f"{path.name}: {own}" for own in own_paths if own in text]
        found += [f"{path.name}: {match.group()}" for match in MIRROR.finditer(text)]
    assert not found, "\n".join(found)


# The examples that are a whole program, and those that are the body of one.
def as_program(example: str) -> str:
    if "asyncio.run(" in example:
        return example
    head = "import asyncio\nfrom belljar.fleet.sandboxes import Fleet\nfrom belljar.settings import load_settings\n\n"
    body = "fleet = await Fleet.open(load_settings())\n" + example + "\nawait fleet.aclose()\n"
    return f"{head}async def main():\n{textwrap.indent(body, '    ')}\n\nasyncio.run(main())\n"


# Those that need a server are run by tests/sdk/test_docs.py.
EXAMPLES = [
    (page, number)
    for page in ("README.md", "docs/library.md", "docs/network.md")
    for number, example in enumerate(examples(page))
    if "from belljar import" not in example
]


@pytest.mark.parametrize(("page", "number"), EXAMPLES)
async def test_examples_print_what_they_say(page: str, number: int, settings: Settings, fleet: Fleet) -> None:
    example = examples(page)[number]
    # The fleet of this run is open all the while: two owners of one home must not disturb each other.
    ran = subprocess.run(
        [sys.executable, "-c", as_program(example)],
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "BELLJAR_HOME": str(settings.home), "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    said = ran.stdout.replace("\n", " ")
    for promised in re.findall(r"print\(.*\)  # (.+?)(?:, then .*|: .*| \.\.\.)?$", example, re.M):
        assert promised in said, f"{promised!r} was promised; printed was {ran.stdout}"
