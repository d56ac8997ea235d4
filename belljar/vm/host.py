"""What this host can do for machines, asked of the host itself and not guessed from files that merely exist."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import platform
import re
import shutil
import subprocess
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from belljar.errors import HostSetup
from belljar.vm.jail import probe_jail
from belljar.vm.spec import EMULATED_CPU, Accelerator, Fingerprint

PROBE_MARK = b"BELLJAR-PROBE-OK"
PROBE_DEADLINE_S = 15.0
# Bump when the device list of argv.py changes: a saved state fits only the devices it was saved from.
DEVICES = "microvm:root,disk,serial1:1"


@dataclass(frozen=True)
class HostFacts:
    """Everything machines need to know of the host. Probed once, cached in a file, and passed down."""

    qemu: str
    qemu_version: str
    accelerator: Accelerator
    accelerator_reason: str
    jail: bool
    jail_reason: str
    tsc_khz: int
    is_root: bool
    kvm_gid: int | None

    @property
    def fingerprint(self) -> Fingerprint:
        # Under emulation guests count time by the host's counter: a host with another rate would run their clocks wrong.
        cpu = f"host:{cpu_name()}" if self.accelerator == "kvm" else f"{EMULATED_CPU}@{self.tsc_khz / 1e6:.1f}GHz"
        return Fingerprint(qemu=self.qemu_version, accelerator=self.accelerator, cpu=cpu, devices=DEVICES)


def cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"


def find_qemu(name: str) -> tuple[str, str]:
    """The absolute path and version of QEMU."""
    path = shutil.which(name)
    if not path:
        raise HostSetup(f"{name} is not installed; run `make setup`, or install the package qemu-system-x86")
    said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20, check=False).stdout
    found = re.search(r"version (\S+)", said)
    if not found:
        raise HostSetup(f"{path} --version said nothing understandable: {said[:200]!r}")
    return path, found.group(1)


def probe_tsc_khz() -> int:
    """The rate of this CPU's time stamp counter.

    An emulated guest sees the host's counter and cannot calibrate it against an emulated timer: left alone, about one boot in
    three hangs. The figure in /proc/cpuinfo follows frequency scaling, so the counter itself is timed.
    """
    code = b"\x0f\x31\x48\xc1\xe2\x20\x48\x09\xd0\xc3"  # rdtsc; shl rdx,32; or rax,rdx; ret
    page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code)
    handle = ctypes.c_char.from_buffer(page)
    rdtsc = ctypes.CFUNCTYPE(ctypes.c_uint64)(ctypes.addressof(handle))
    rates = []
    for _ in range(5):
        began, first = time.perf_counter_ns(), rdtsc()
        time.sleep(0.01)
        last, ended = rdtsc(), time.perf_counter_ns()
        rates.append((last - first) * 1_000_000 // (ended - began))
    del handle
    page.close()
    return int(sorted(rates)[len(rates) // 2])


def probe_boot(qemu: str, accelerator: Accelerator, kernel: Path, initrd: Path, tsc_khz: int, deadline_s: float) -> str | None:
    """Boot a tiny guest that prints a mark and powers off. None if it did, else what happened instead."""
    cpu = "host" if accelerator == "kvm" else "max"
    words = f"console=ttyS0 reboot=t panic=-1 quiet belljar.probe=1 tsc_early_khz={tsc_khz}"
    argv = [
        qemu,
        "-accel",
        accelerator,
        "-cpu",
        cpu,
        "-M",
        "microvm",
        "-m",
        "256",
        "-nodefaults",
        "-no-user-config",
        "-display",
        "none",
    ]
    argv += ["-no-reboot", "-serial", "stdio", "-kernel", str(kernel), "-initrd", str(initrd), "-append", words]
    with tempfile.TemporaryFile() as console:
        child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=console, stderr=subprocess.STDOUT)
        try:
            child.wait(deadline_s)
            ended = f"QEMU ended with {child.returncode}"
        except subprocess.TimeoutExpired:
            ended = f"no sign of life within {deadline_s:g} s"
        finally:
            child.kill()
            child.wait()
        console.seek(0)
        output = console.read(1 << 20)
    if PROBE_MARK in output:
        return None
    tail = output[-300:].decode(errors="replace").strip()
    return f"{ended}; last output: {tail!r}" if tail else ended


def probe_accelerator(qemu: str, wanted: str, kernel: Path, initrd: Path, tsc_khz: int) -> tuple[Accelerator, str]:
    """KVM where a guest really boots under it, emulation elsewhere; with the reason in words."""
    if wanted == "tcg":
        return "tcg", "emulation was asked for"
    if not Path("/dev/kvm").exists():
        problem: str | None = "/dev/kvm does not exist"
    elif not os.access("/dev/kvm", os.R_OK | os.W_OK):
        problem = "/dev/kvm may not be opened by this user; add it to the group kvm"
    else:
        problem = probe_boot(qemu, "kvm", kernel, initrd, tsc_khz, PROBE_DEADLINE_S)
    if problem is None:
        return "kvm", "a guest booted under KVM"
    if wanted == "kvm":
        raise HostSetup(f"KVM was asked for, but {problem}. Set accel to auto or tcg to use emulation.")
    return "tcg", f"KVM is not usable: {problem}"


def _kvm_gid() -> int | None:
    try:
        return Path("/dev/kvm").stat().st_gid
    except OSError:
        return None


def probe_host(
    *, qemu_name: str, wanted: str, jail: str, kernel: Path, initrd: Path, cache: Path, fresh: bool = False
) -> HostFacts:
    """All facts. The accelerator's verdict costs a boot, so it is kept in `cache` for as long as nothing that matters changes."""
    qemu, version = find_qemu(qemu_name)
    kvm_usable = os.access("/dev/kvm", os.R_OK | os.W_OK)
    key = [version, wanted, str(kernel), platform.release(), cpu_name(), kvm_usable, os.geteuid(), jail]
    if not fresh and (facts := _read_cache(cache, key)):
        return facts
    tsc_khz = probe_tsc_khz()
    accelerator, reason = probe_accelerator(qemu, wanted, kernel, initrd, tsc_khz)
    jailed, jail_reason = (False, "switched off in the settings") if jail == "off" else probe_jail()
    facts = HostFacts(
        qemu=qemu,
        qemu_version=version,
        accelerator=accelerator,
        accelerator_reason=reason,
        jail=jailed,
        jail_reason=jail_reason,
        tsc_khz=tsc_khz,
        is_root=os.geteuid() == 0,
        kvm_gid=_kvm_gid(),
    )
    scratch = cache.with_name(f"{cache.name}.{os.getpid()}")
    scratch.write_text(json.dumps({"key": key, "facts": asdict(facts)}))
    scratch.replace(cache)
    return facts


def _read_cache(cache: Path, key: list[object]) -> HostFacts | None:
    try:
        stored = json.loads(cache.read_text())
        return HostFacts(**stored["facts"]) if stored["key"] == key else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
