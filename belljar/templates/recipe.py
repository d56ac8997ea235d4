"""Recipes: what a template is made of, as templates/<name>/recipe.toml.

    name, aliases, description      what it is called; the name is the folder's
    extends                         the recipe it builds on; everything below is inherited from it
    suite, packages                 Debian release and packages
    wheels                          PyPI packages, pinned; wheels.lock in the folder pins everything they pull in
    [files]                         path in the guest = file in the recipe's folder
    [links]                         path in the guest = what the symbolic link points to
    [[users]]                       name, uid, sudo, owns (directories)
    workdir                         where processes start
    vcpus, memory_mib, disk_mib     the machine
    warmup                          shell lines that the default user runs before the snapshot is taken
    [egress]                        mode, allow, deny, limits: what its sandboxes may connect to unless they are given a policy
    [context]                       with it, sandboxes have a Python context from the start:
        preload                     modules that all Python contexts find imported (not bound to names)
        warm                        cells that it runs before the snapshot is taken; they should leave no names behind

Two digests: `root_digest` covers what the root image is made of, `digest` the machine, the warm-up and the context too. So
another amount of memory bakes another template from the same image.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from belljar.egress.policy import parse_policy
from belljar.errors import InvalidInput, TemplateNotFound
from belljar.templates.fields import Fields, guest_path, lock_lines

# Part of every digest: bump it when the builder makes something else out of the same recipe.
BUILDER_GENERATION = 2

RECIPE_FILE = "recipe.toml"
LOCK_FILE = "wheels.lock"
NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}", re.ASCII)


@dataclass(frozen=True)
class User:
    """An account in the guest; its home is /home/<name>."""

    name: str
    uid: int
    sudo: bool
    owns: tuple[str, ...]


@dataclass(frozen=True)
class File:
    """A file of the recipe's folder, as it goes into the image."""

    target: str
    content: bytes
    executable: bool


@dataclass(frozen=True)
class WarmContext:
    """The Python context that sandboxes have from the start."""

    preload: tuple[str, ...]
    cells: tuple[str, ...]


@dataclass(frozen=True)
class Recipe:
    """One recipe. `packages`, `wheels`, `files`, `links` and `users` are its own, not its parent's; the rest is in force."""

    name: str
    aliases: tuple[str, ...]
    description: str
    parent: Recipe | None
    suite: str
    packages: tuple[str, ...]
    wheels: tuple[str, ...]
    locked: tuple[str, ...]
    files: tuple[File, ...]
    links: tuple[tuple[str, str], ...]
    users: tuple[User, ...]
    workdir: str
    vcpus: int
    memory_mib: int
    disk_mib: int
    warmup: tuple[str, ...]
    context: WarmContext | None
    egress: Mapping[str, Any]  # empty: whatever the server's default is
    extended: bool  # another recipe of the folder builds on it, so its tree is worth keeping

    @property
    def lineage(self) -> tuple[Recipe, ...]:
        """From the first ancestor down to this recipe."""
        return (*(self.parent.lineage if self.parent else ()), self)

    @property
    def all_packages(self) -> tuple[str, ...]:
        return tuple(sorted({package for recipe in self.lineage for package in recipe.packages}))

    @property
    def all_wheels(self) -> tuple[str, ...]:
        """Everything installed from PyPI, as name==version."""
        return tuple(sorted(pin for recipe in self.lineage for pin in recipe.locked))

    @cached_property
    def root_digest(self) -> str:
        """Names the root image."""
        return _digest(
            {
                "generation": BUILDER_GENERATION,
                "parent": self.parent.root_digest if self.parent else None,
                "suite": self.suite,
                "packages": sorted(self.packages),
                "wheels": sorted(self.locked),
                "files": [[file.target, hashlib.sha256(file.content).hexdigest(), file.executable] for file in self.files],
                "links": self.links,
                "users": [[user.name, user.uid, user.sudo, user.owns] for user in self.users],
            }
        )

    @cached_property
    def digest(self) -> str:
        """Names everything that the recipe says."""
        return _digest(
            {
                "root": self.root_digest,
                "name": self.name,
                "workdir": self.workdir,
                "machine": [self.vcpus, self.memory_mib, self.disk_mib],
                **({"egress": self.egress} if self.egress else {}),
                "warmup": self.warmup,
                "context": [self.context.preload, self.context.cells] if self.context else None,
            }
        )


def load_recipe(name_or_alias: str, recipes_dir: Path) -> Recipe:
    """The recipe with that name or alias."""
    if not NAME.fullmatch(name_or_alias):
        shown = repr(name_or_alias if len(name_or_alias) <= 40 else name_or_alias[:40] + "…")
        raise InvalidInput(f"{shown} is not a template name: lower-case letters, digits, '-' and '_', at most 63")
    drafts = _drafts(recipes_dir)
    for name, draft in drafts.items():
        aliases = draft.get("aliases")
        if name == name_or_alias or (isinstance(aliases, list) and name_or_alias in aliases):
            return _load(name, recipes_dir, drafts, ())
    if (recipes_dir / name_or_alias / RECIPE_FILE).exists():
        return _load(name_or_alias, recipes_dir, drafts, ())  # not readable as TOML: say why
    known = ", ".join(drafts) or "none"
    raise TemplateNotFound(f"there is no template {name_or_alias!r} in {recipes_dir}; known: {known}", template=name_or_alias)


def list_recipes(recipes_dir: Path) -> list[Recipe]:
    """All recipes of a folder, by name."""
    drafts = _drafts(recipes_dir)
    recipes = [_load(name, recipes_dir, drafts, ()) for name in drafts]
    owner: dict[str, str] = {}
    for recipe in recipes:
        for name in (recipe.name, *recipe.aliases):
            if owner.setdefault(name, recipe.name) != recipe.name:
                raise InvalidInput(f"{recipe.name}: aliases: {name!r} already means {owner[name]}", key="aliases")
    return recipes


def _drafts(recipes_dir: Path) -> dict[str, dict[str, Any]]:
    """Every recipe file that can be read, unchecked: one broken recipe must not hide the others."""
    drafts = {}
    for path in sorted(recipes_dir.glob(f"*/{RECIPE_FILE}")):
        try:
            drafts[path.parent.name] = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
            continue
    return drafts


def _load(name: str, recipes_dir: Path, drafts: dict[str, dict[str, Any]], children: tuple[str, ...]) -> Recipe:
    folder = recipes_dir / name
    try:
        content = tomllib.loads((folder / RECIPE_FILE).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as problem:
        raise InvalidInput(f"{folder / RECIPE_FILE} cannot be read: {problem}") from problem
    fields = Fields(f"{name}/{RECIPE_FILE}", content)
    if fields.text("name") != name:
        fields.bad("name", f"must be the folder's name, {name!r}")
    aliases = fields.texts("aliases")
    for alias in (name, *aliases):
        if not NAME.fullmatch(alias):
            fields.bad("aliases" if alias != name else "name", f"{alias[:40]!r} is not lower-case letters, digits, '-' and '_'")
    parent = None
    if (extends := fields.text("extends", "")) != "":
        if extends == name or extends in children:
            fields.bad("extends", "recipes extend each other in a circle")
        if extends not in drafts:
            fields.bad("extends", f"there is no recipe {extends!r}")
        parent = _load(extends, recipes_dir, drafts, (*children, name))
    wheels = fields.texts("wheels")
    recipe = Recipe(
        name=name,
        aliases=aliases,
        description=fields.text("description"),
        parent=parent,
        suite=_suite(fields, parent),
        packages=fields.words("packages", r"[a-z0-9][a-z0-9+.-]+"),
        wheels=wheels,
        locked=lock_lines(fields, folder / LOCK_FILE, wheels, parent.all_wheels if parent else ()),
        files=_files(fields, folder),
        links=tuple(sorted((guest_path(fields, "links", where), to) for where, to in fields.table("links").items())),
        users=_users(fields),
        workdir=guest_path(fields, "workdir", fields.text("workdir", parent.workdir if parent else None)),
        vcpus=fields.whole("vcpus", 1, 64, parent.vcpus if parent else None),
        memory_mib=fields.whole("memory_mib", 128, 2**20, parent.memory_mib if parent else None),
        disk_mib=fields.whole("disk_mib", 64, 2**24, parent.disk_mib if parent else None),
        warmup=fields.texts("warmup", parent.warmup if parent else ()),
        context=_context(fields, parent),
        egress=_egress(fields, parent),
        extended=any(draft.get("extends") == name for draft in drafts.values()),
    )
    fields.finish()
    return recipe


def _suite(fields: Fields, parent: Recipe | None) -> str:
    if parent is None:
        return fields.word("suite", r"[a-z]+")
    if "suite" in fields.content:
        fields.bad("suite", f"is inherited from {parent.name} and cannot be set here")
    return parent.suite


def _context(fields: Fields, parent: Recipe | None) -> WarmContext | None:
    section = fields.section("context")
    if section is None:
        return parent.context if parent else None
    context = WarmContext(section.words("preload", r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*"), section.texts("warm"))
    section.finish()
    return context


def _egress(fields: Fields, parent: Recipe | None) -> Mapping[str, Any]:
    section = fields.section("egress")
    if section is None:
        return parent.egress if parent else {}
    try:
        return parse_policy(section.content).to_json()
    except InvalidInput as problem:
        fields.bad("egress", problem.message)


def _files(fields: Fields, folder: Path) -> tuple[File, ...]:
    files = []
    for target, source in fields.table("files").items():
        path = folder / source
        if not path.resolve().is_relative_to(folder.resolve()) or not path.is_file():
            fields.bad("files", f"{source!r} is not a file in the recipe's folder")
        executable = bool(path.stat().st_mode & 0o100)
        files.append(File(guest_path(fields, "files", target), path.read_bytes(), executable))
    return tuple(sorted(files, key=lambda file: file.target))


def _users(fields: Fields) -> tuple[User, ...]:
    users = []
    for entry in fields.tables("users"):
        name = entry.word("name", r"[a-z][a-z0-9_-]{0,30}")
        owns = tuple(guest_path(entry, "owns", path) for path in entry.texts("owns"))
        users.append(User(name, entry.whole("uid", 1000, 59999), entry.flag("sudo", False), owns))
        entry.finish()
    return tuple(users)


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
