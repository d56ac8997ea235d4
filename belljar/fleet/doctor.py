"""What this machine can do for sandboxes, and what it will use, in words that a person can act on."""

from __future__ import annotations

import os
import shutil
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from belljar.errors import BelljarError
from belljar.fleet.admission import meminfo
from belljar.settings import Settings
from belljar.store.layout import Layout
from belljar.templates.bake import host_facts
from belljar.templates.kernel import build_kernel
from belljar.templates.steps import Progress
from belljar.vm.disk import probe_reflink
from belljar.vm.host import HostFacts, cpu_name, find_qemu

Verdict = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Row:
    """One thing that was looked at."""

    check: str
    verdict: Verdict
    value: str
    advice: str = ""


@dataclass
class Report:
    """The table, and what it means for the user."""

    rows: list[Row] = field(default_factory=list)
    isolation: list[str] = field(default_factory=list)
    accelerator: str = "none"

    @property
    def exit_code(self) -> int:
        return 1 if any(row.verdict == "fail" for row in self.rows) else 0

    def add(self, check: str, verdict: Verdict, value: str, advice: str = "") -> None:
        self.rows.append(Row(check, verdict, value, advice))

    def to_json(self) -> dict[str, Any]:
        rows = [asdict(row) for row in self.rows]
        return {"ok": self.exit_code == 0, "accelerator": self.accelerator, "checks": rows, "isolation": self.isolation}


def doctor_report(settings: Settings, progress: Progress) -> Report:
    """Look at everything. Boots a guest, so it takes a few seconds."""
    report = Report()
    _memory(report, settings)
    _disk(report, settings)
    _programs(report)
    facts = _host(report, settings, progress)
    if facts:
        report.accelerator = facts.accelerator
        _privileges(report, facts)
        report.isolation = isolation(facts)
    return report


def _memory(report: Report, settings: Settings) -> None:
    memory = meminfo()
    total, free = memory["MemTotal"] >> 20, memory["MemAvailable"] >> 20
    short = free < settings.host_memory_reserve_mib + 512
    advice = "free some memory, or lower host_memory_reserve_mib" if short else ""
    report.add("memory", "fail" if short else "ok", f"{free} of {total} MiB available", advice)


def _disk(report: Report, settings: Settings) -> None:
    layout = Layout(settings.home)
    try:
        layout.prepare()
        reflink = probe_reflink(layout.tmp)
    except OSError as problem:
        report.add("store", "fail", f"{settings.home}: {problem.strerror}", "set BELLJAR_HOME to a folder that you may write to")
        return
    status = os.statvfs(layout.home)
    free = status.f_bavail * status.f_frsize >> 20
    short = free < settings.host_disk_reserve_mib + 6144
    report.add("disk", "warn" if short else "ok", f"{free} MiB free for the store", "templates need up to 6 GiB" if short else "")
    if reflink:
        report.add("reflink", "ok", "copies of disks are free")
    else:
        report.add("reflink", "warn", "copies of disks are real copies", "put BELLJAR_HOME on XFS or btrfs to make forks cheaper")


def _programs(report: Report) -> None:
    for program, package, needed in (("mke2fs", "e2fsprogs", True), ("mmdebstrap", "mmdebstrap", False)):
        found = shutil.which(program) or shutil.which(program, path="/usr/sbin:/sbin")
        why = "needed to build templates"
        report.add(
            program,
            "ok" if found else "fail" if needed else "warn",
            found or "missing",
            "" if found else f"{why}: install {package}",
        )


def _host(report: Report, settings: Settings, progress: Progress) -> HostFacts | None:
    try:
        path, version = find_qemu(settings.qemu)
        report.add("QEMU", "ok", f"{version} ({path})")
        layout = Layout(settings.home)
        kernel = build_kernel(layout, progress)
        facts = host_facts(settings, layout, kernel, fresh=True)
    except BelljarError as problem:
        report.add("accelerator", "fail", problem.message)
        return None
    slow = "code runs 8 to 13 times slower than natively; use a host with KVM for production"
    fast = facts.accelerator == "kvm"
    report.add("accelerator", "ok" if fast else "warn", f"{facts.accelerator}: {facts.accelerator_reason}", "" if fast else slow)
    report.add("CPU", "ok", f"{os.cpu_count()} x {cpu_name()}")
    return facts


def _privileges(report: Report, facts: HostFacts) -> None:
    if facts.is_root:
        report.add("privileges", "ok", "root: each VMM runs under a user id of its own")
    else:
        report.add("privileges", "ok", "unprivileged: all VMMs run under your own user id")
    advice = "" if facts.jail else "make user namespaces usable for unprivileged users and install bubblewrap"
    report.add("jail", "ok" if facts.jail else "warn", facts.jail_reason, advice)


def isolation(facts: HostFacts) -> list[str]:
    """What stands between guest code and the host, outermost last, and what would make it better."""
    lines = [
        "Each sandbox has a kernel of its own in a virtual machine without a network card.",
        "QEMU runs with its seccomp filter: it cannot start programs or gain privileges.",
    ]
    if facts.accelerator == "tcg":
        lines.append("The guest's CPU is emulated in software. QEMU's emulator is large and not hardened as a security boundary;")
        lines.append("KVM would make the CPU itself that boundary, and is also about ten times faster.")
    else:
        lines.append("The CPU's virtualisation separates guest and host.")
    if facts.jail:
        lines.append("Each QEMU is in its own namespaces: no network, no other processes, no files but its own.")
    else:
        lines.append("QEMU is NOT in namespaces of its own: one that is taken over can read what its user can. See the row `jail`.")
    if not facts.is_root:
        lines.append("All QEMUs share your user id; run the owner as root to give each a user id of its own.")
    return lines
