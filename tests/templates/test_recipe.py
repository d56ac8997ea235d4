"""Recipes: inheritance, digests, and errors that name the key."""

from __future__ import annotations

from pathlib import Path

import pytest

from belljar.errors import InvalidInput, TemplateNotFound
from belljar.settings import load_settings
from belljar.templates.recipe import WarmContext, list_recipes, load_recipe

BASE = """
name = "base"
description = "d"
suite = "bookworm"
packages = ["python3"]
wheels = ["pip==1.0"]
workdir = "/workspace"
vcpus = 2
memory_mib = 512
disk_mib = 1024
warmup = ["true"]
[context]
preload = ["json"]
warm = ["1 + 1"]
[files]
"/data.csv" = "files/data.csv"
[[users]]
name = "user"
uid = 1000
sudo = true
owns = ["/workspace"]
"""
CHILD = 'name = "child"\naliases = ["the_child"]\ndescription = "d"\nextends = "base"\n'


@pytest.fixture
def recipes(tmp_path: Path) -> Path:
    (tmp_path / "base" / "files").mkdir(parents=True)
    (tmp_path / "base" / "files" / "data.csv").write_text("a,b\n")
    (tmp_path / "base" / "wheels.lock").write_text("# made\npip==1.0\nhelper==2\n")
    write(tmp_path, "base", BASE)
    write(tmp_path, "child", CHILD)
    return tmp_path


def write(recipes: Path, name: str, content: str) -> None:
    (recipes / name).mkdir(exist_ok=True)
    (recipes / name / "recipe.toml").write_text(content)


def test_a_policy_is_inherited_or_replaced_and_changes_the_digest(recipes: Path) -> None:
    without = load_recipe("child", recipes).digest
    assert not load_recipe("base", recipes).egress
    write(recipes, "base", BASE.replace("[context]", '[egress]\nallow = ["PyPI.org"]\n[context]'))
    child = load_recipe("child", recipes)
    assert child.egress["mode"] == "allow-list" and child.egress["allow"] == ["pypi.org"]
    assert child.digest != without and child.root_digest == load_recipe("child", recipes).root_digest
    write(recipes, "child", CHILD + '[egress]\nmode = "off"\n')
    assert load_recipe("child", recipes).egress["mode"] == "off"
    for wrong in ('mode = "shut"', 'allow = ["not a host"]', "allows = []"):
        write(recipes, "child", CHILD + f"[egress]\n{wrong}\n")
        with pytest.raises(InvalidInput, match="egress"):
            load_recipe("child", recipes)


def test_a_child_inherits_the_machine_and_adds_to_the_image(recipes: Path) -> None:
    write(recipes, "child", CHILD + 'memory_mib = 1024\nwheels = ["extra==3"]\n')
    (recipes / "child" / "wheels.lock").write_text("extra==3\n")
    child = load_recipe("child", recipes)
    assert (child.suite, child.workdir, child.warmup) == ("bookworm", "/workspace", ("true",))
    assert (child.vcpus, child.memory_mib, child.disk_mib) == (2, 1024, 1024)
    assert child.packages == () and child.all_packages == ("python3",)
    assert child.all_wheels == ("extra==3", "helper==2", "pip==1.0")
    assert [recipe.name for recipe in child.lineage] == ["base", "child"]
    assert not child.extended and child.parent is not None and child.parent.extended


def test_a_child_inherits_the_context_as_a_whole_or_replaces_it(recipes: Path) -> None:
    assert load_recipe("child", recipes).context == WarmContext(("json",), ("1 + 1",))
    write(recipes, "child", CHILD + '[context]\npreload = ["os.path"]\n')
    assert load_recipe("child", recipes).context == WarmContext(("os.path",), ())
    write(recipes, "base", BASE.replace('[context]\npreload = ["json"]\nwarm = ["1 + 1"]\n', ""))
    assert load_recipe("base", recipes).context is None


def test_an_alias_finds_the_recipe(recipes: Path) -> None:
    assert load_recipe("the_child", recipes).name == "child"


def test_digests_do_not_depend_on_where_the_folder_is_or_on_the_order_of_keys(
    recipes: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    before = load_recipe("child", recipes)
    moved = recipes.rename(tmp_path_factory.mktemp("other") / "recipes")
    write(moved, "child", "\n".join(reversed(CHILD.splitlines())))
    after = load_recipe("child", moved)
    assert (after.digest, after.root_digest) == (before.digest, before.root_digest)


@pytest.mark.parametrize(
    ("old", "new", "image_changes"),
    [
        ("memory_mib = 512", "memory_mib = 513", False),
        ('warmup = ["true"]', 'warmup = ["false"]', False),
        ('preload = ["json"]', "preload = []", False),
        ('warm = ["1 + 1"]', 'warm = ["2 + 2"]', False),
        ('workdir = "/workspace"', 'workdir = "/srv"', False),
        ('packages = ["python3"]', 'packages = ["python3", "git"]', True),
        ("sudo = true", "sudo = false", True),
        ('"/data.csv"', '"/other.csv"', True),
        ('description = "d"', 'description = "e"', None),
    ],
)
def test_what_a_recipe_says_is_in_its_digests(recipes: Path, old: str, new: str, image_changes: bool | None) -> None:
    before, parent_before = load_recipe("child", recipes), load_recipe("base", recipes)
    assert old in BASE
    write(recipes, "base", BASE.replace(old, new))
    after, parent_after = load_recipe("child", recipes), load_recipe("base", recipes)
    assert (parent_before.digest != parent_after.digest) == (image_changes is not None)
    assert (before.root_digest != after.root_digest) == bool(image_changes)


def test_a_files_content_and_mode_are_in_the_digest(recipes: Path) -> None:
    file = recipes / "base" / "files" / "data.csv"
    seen = {load_recipe("base", recipes).root_digest}
    file.write_text("c,d\n")
    seen.add(load_recipe("base", recipes).root_digest)
    file.chmod(0o755)
    seen.add(load_recipe("base", recipes).root_digest)
    assert len(seen) == 3


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ('name = "base"', 'name = "other"', "name"),
        ('description = "d"', "description = 1", "description"),
        ('suite = "bookworm"', 'suite = "--help"', "suite"),
        ('suite = "bookworm"\n', "", "suite"),
        ('packages = ["python3"]', 'packages = ["a,b"]', "packages"),
        ('packages = ["python3"]', 'packages = "python3"', "packages"),
        ('wheels = ["pip==1.0"]', 'wheels = ["pip"]', "wheels"),
        ('wheels = ["pip==1.0"]', 'wheels = ["pip==9"]', "wheels"),
        ('workdir = "/workspace"', 'workdir = "workspace"', "workdir"),
        ('workdir = "/workspace"', 'workdir = "/a/../b"', "workdir"),
        ("vcpus = 2", "vcpus = 0", "vcpus"),
        ("vcpus = 2", "vcpus = true", "vcpus"),
        ("memory_mib = 512", "memory_mib = -1", "memory_mib"),
        ("disk_mib = 1024", "disk_mib = 1e9", "disk_mib"),
        ('warmup = ["true"]', "warmup = [1]", "warmup"),
        ('preload = ["json"]', 'preload = ["os; import sys"]', "preload"),
        ('preload = ["json"]', 'preload = "json"', "preload"),
        ('warm = ["1 + 1"]', "warm = [1]", "warm"),
        ('warm = ["1 + 1"]', 'warmth = ["1 + 1"]', "warmth"),
        ('"/data.csv" =', '"/../data.csv" =', "files"),
        ('"files/data.csv"', '"../../../etc/passwd"', "files"),
        ('"files/data.csv"', '"files/none"', "files"),
        ("uid = 1000", "uid = 0", "uid"),
        ("sudo = true", 'sudo = "yes"', "sudo"),
        ("vcpus = 2", "vcpus = 2\nvcpu = 2", "vcpu"),
    ],
)
def test_a_bad_recipe_names_the_key(recipes: Path, old: str, new: str, key: str) -> None:
    assert old in BASE
    write(recipes, "base", BASE.replace(old, new))
    with pytest.raises(InvalidInput, match=f"{key}: ") as caught:
        load_recipe("base", recipes)
    assert caught.value.details == {"key": key}


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('extends = "child"', "circle"),
        ('extends = "none"', "no recipe 'none'"),
        ('extends = "base"\nsuite = "trixie"', "inherited"),
    ],
)
def test_a_bad_parent_is_refused(recipes: Path, line: str, problem: str) -> None:
    write(recipes, "child", CHILD.replace('extends = "base"', line))
    with pytest.raises(InvalidInput, match=problem):
        load_recipe("child", recipes)


def test_recipes_that_extend_each_other_are_refused(recipes: Path) -> None:
    write(recipes, "base", 'name = "base"\ndescription = "d"\nextends = "child"\n')
    with pytest.raises(InvalidInput, match="circle"):
        load_recipe("child", recipes)


def test_a_wheel_pinned_differently_than_by_the_parent_is_refused(recipes: Path) -> None:
    write(recipes, "child", CHILD + 'wheels = ["Pip==2.0"]\n')
    (recipes / "child" / "wheels.lock").write_text("Pip==2.0\n")
    with pytest.raises(InvalidInput, match="pinned twice"):
        load_recipe("child", recipes)


def test_an_alias_that_means_two_recipes_is_refused(recipes: Path) -> None:
    write(recipes, "child", CHILD.replace('["the_child"]', '["base"]'))
    with pytest.raises(InvalidInput, match="already means"):
        list_recipes(recipes)


def test_an_unknown_template_is_not_found_and_the_known_ones_are_named(recipes: Path) -> None:
    with pytest.raises(TemplateNotFound, match="known: base, child"):
        load_recipe("nope", recipes)


@pytest.mark.parametrize("name", ["", "a/b", "../base", "a\0b", "x" * 10_000, "Base"])
def test_a_malformed_name_is_invalid(recipes: Path, name: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        load_recipe(name, recipes)
    assert len(caught.value.message) < 200


def test_a_broken_recipe_does_not_hide_the_others(recipes: Path) -> None:
    write(recipes, "broken", "name = ")
    assert load_recipe("base", recipes).name == "base"
    with pytest.raises(InvalidInput, match="cannot be read"):
        load_recipe("broken", recipes)


def test_the_recipes_of_this_repository_are_valid() -> None:
    recipes = {recipe.name: recipe for recipe in list_recipes(load_settings({}).recipes)}
    assert {"base", "python-data", "code-interpreter"} <= recipes.keys()
    assert load_recipe("code_interpreter", load_settings({}).recipes).name == "code-interpreter"
    base = recipes["base"]
    assert (base.vcpus, base.memory_mib, base.disk_mib, base.workdir) == (2, 2048, 10240, "/workspace")
    assert recipes["code-interpreter"].workdir == "/home/user"
