"""QEMU's command line: what must always be in it, and what must never be."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from belljar.vm.argv import Descriptors, qemu_argv
from belljar.vm.host import HostFacts
from belljar.vm.jail import ROOT_IN_JAIL, jailed
from belljar.vm.spec import Accelerator, Fingerprint, Shape


def facts(accelerator: Accelerator = "tcg") -> HostFacts:
    return HostFacts("/usr/bin/qemu", "7.2", accelerator, "", True, "", 2_500_000, True, 104)


RESTORE = Descriptors(ram=10, root=11, disk=12, monitor=13, agent=14, state=15)
BOOT = Descriptors(ram=10, root=11, disk=12, monitor=13, agent=14, kernel=16, initrd=17)


@pytest.mark.parametrize("fds", [RESTORE, BOOT])
@pytest.mark.parametrize("accelerator", ["kvm", "tcg"])
def test_every_machine_is_confined_and_has_no_network_card(fds: Descriptors, accelerator: Accelerator) -> None:
    argv = qemu_argv("x", Shape(2, 512), facts(accelerator), fds)
    assert "spawn=deny" in argv[argv.index("-sandbox") + 1]
    assert "-nodefaults" in argv and "-no-user-config" in argv
    assert not [word for word in argv if "netdev" in word or "virtio-net" in word or word == "-net" or word == "-nic"]


def test_no_path_of_the_host_reaches_qemu() -> None:
    words = qemu_argv("x", Shape(2, 512), facts(), RESTORE)[1:]
    paths = [part for word in words for part in word.replace("=", ",").split(",") if part.startswith("/")]
    assert all(path.startswith(("/proc/self/fd/", "/dev/fdset/")) for path in paths), paths


def test_a_root_image_that_the_jail_shows_is_read_only() -> None:
    argv = qemu_argv("x", Shape(2, 512), facts(), dataclasses.replace(RESTORE, root=None))
    assert f"file.filename={ROOT_IN_JAIL}" in " ".join(argv) and "set=1" not in " ".join(argv)
    words = jailed(argv, info_fd=3, kvm=False, root=Path("/somewhere/root.ext4"))
    assert words[(at := words.index("/somewhere/root.ext4")) - 1 : at + 2] == ["--ro-bind", "/somewhere/root.ext4", ROOT_IN_JAIL]


def test_a_restore_maps_memory_privately_and_a_boot_shares_it() -> None:
    restore = " ".join(qemu_argv("x", Shape(2, 512), facts(), RESTORE))
    boot = " ".join(qemu_argv("x", Shape(2, 512), facts(), BOOT))
    assert "share=off" in restore and "-incoming fd:15" in restore and "-kernel" not in restore
    assert "share=on" in boot and "-kernel /proc/self/fd/16" in boot and "-incoming" not in boot


def test_the_accelerator_changes_nothing_but_the_cpu() -> None:
    kvm, tcg = (qemu_argv("x", Shape(2, 512), facts(a), RESTORE) for a in ("kvm", "tcg"))
    differing = {pair for pair in zip(kvm, tcg, strict=True) if pair[0] != pair[1]}
    assert {pair[0] for pair in differing} == {"kvm", "host"}


def test_a_jailed_machine_sees_kvm_only_when_it_uses_it() -> None:
    assert "/dev/kvm" in jailed(["qemu"], info_fd=3, kvm=True, root=None)
    assert "/dev/kvm" not in jailed(["qemu"], info_fd=3, kvm=False, root=None)


def test_a_fingerprint_names_what_differs() -> None:
    mine = Fingerprint("7.2", "tcg", "max", "d")
    assert mine.mismatch(Fingerprint("7.2", "tcg", "max", "d")) is None
    assert "7.2" in (mine.mismatch(Fingerprint("8.2", "tcg", "max", "d")) or "")
