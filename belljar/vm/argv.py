"""(what a machine is given) -> QEMU's arguments. Pure: one small function per device.

No path of the host reaches QEMU: memory, images, sockets and state are descriptors that it inherits, so its file system can be
empty.
"""

from __future__ import annotations

from dataclasses import dataclass

from belljar.vm.host import HostFacts
from belljar.vm.jail import ROOT_IN_JAIL
from belljar.vm.spec import AGENT_PORT, EMULATED_CPU, Shape

# `spawn` and `elevateprivileges` matter most: a VMM that was taken over cannot start a program or become someone else.
SECCOMP = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"
CONSOLE_BYTES = 65536
# Bounds the translated code of one machine; QEMU's own default is a gigabyte.
TRANSLATION_MIB = 256


@dataclass(frozen=True)
class Descriptors:
    """Numbers of the inherited descriptors. Exactly one of `state` (restore) and `kernel`+`initrd` (boot) is given."""

    ram: int
    root: int | None  # None: the jail shows it by path, read-only
    disk: int
    monitor: int
    agent: int
    state: int | None = None
    kernel: int | None = None
    initrd: int | None = None

    def numbers(self) -> list[int]:
        return [fd for fd in vars(self).values() if fd is not None]


def _accelerator(facts: HostFacts) -> list[str]:
    if facts.accelerator == "kvm":
        return ["-accel", "kvm", "-cpu", "host"]
    return ["-accel", f"tcg,thread=multi,tb-size={TRANSLATION_MIB}", "-cpu", EMULATED_CPU]


def _memory(shape: Shape, fd: int, *, shared: bool) -> list[str]:
    share = "on" if shared else "off"
    backend = f"memory-backend-file,id=ram,size={shape.memory_mib}M,mem-path=/proc/self/fd/{fd},share={share},merge=off,dump=off"
    return ["-m", f"{shape.memory_mib}M", "-object", backend]


def _root(fd: int | None) -> list[str]:
    # A VMM that has the owner's own uid could make the file writable through a descriptor of it; through a read-only mount it
    # cannot. With another uid the descriptor is safe, and that uid could not reach the path.
    name = ROOT_IN_JAIL if fd is None else "/dev/fdset/1"
    given = [] if fd is None else ["-add-fd", f"fd={fd},set=1"]
    node = f"driver=raw,node-name=root,read-only=on,file.driver=file,file.filename={name},file.locking=off,file.read-only=on"
    return [*given, "-blockdev", node, "-device", "virtio-blk-device,drive=root,serial=belljar-root"]


def _disk(fd: int) -> list[str]:
    # Flushes are skipped: what the host's page cache holds outlives QEMU, and a snapshot syncs what it keeps. A host that is out
    # of space must show as an I/O error in the guest, not as a machine that silently stops.
    file = "file.driver=file,file.filename=/dev/fdset/2,file.locking=off,cache.no-flush=on,file.cache.no-flush=on"
    node = f"driver=raw,node-name=disk,{file},discard=unmap,file.discard=unmap"
    device = "virtio-blk-device,drive=disk,serial=belljar-disk,werror=report,rerror=report"
    return ["-add-fd", f"fd={fd},set=2", "-blockdev", node, "-device", device]


def _wire(fd: int) -> list[str]:
    return [
        "-device", "virtio-serial-device,max_ports=2",
        "-chardev", f"socket,id=agent,fd={fd},server=on,wait=off",
        "-device", f"virtserialport,chardev=agent,name={AGENT_PORT}",
    ]  # fmt: skip


def _monitor(fd: int) -> list[str]:
    return ["-chardev", f"socket,id=qmp,fd={fd},server=on,wait=off", "-mon", "chardev=qmp,mode=control"]


def _console() -> list[str]:
    # A ring in memory: a guest that writes to its console for ever fills nobody's disk.
    return ["-chardev", f"ringbuf,id=console,size={CONSOLE_BYTES}", "-serial", "chardev:console"]


def kernel_words(facts: HostFacts) -> str:
    """The kernel's command line. Whoever changes it must bump BAKE_GENERATION in templates/bake.py."""
    words = "console=ttyS0 reboot=t panic=-1 quiet mitigations=off nopti init_on_alloc=0 transparent_hugepage=madvise"
    if facts.accelerator == "tcg":
        # An emulated guest cannot calibrate the counter itself. Left to itself it hangs, or distrusts the counter and keeps time
        # by timer ticks: in steps of 4 ms, losing time under load, and never idle.
        words += f" tsc_early_khz={facts.tsc_khz} tsc=reliable clocksource=tsc"
        # Programs at the same addresses every time let the emulator use its translation of the C library again.
        words += " norandmaps"
    return words


def _start(fds: Descriptors, facts: HostFacts, extra: str) -> list[str]:
    if fds.state is not None:
        return ["-incoming", f"fd:{fds.state}", "-global", "migration.send-configuration=off"]
    boot = ["-kernel", f"/proc/self/fd/{fds.kernel}", "-initrd", f"/proc/self/fd/{fds.initrd}"]
    return [*boot, "-append", f"{kernel_words(facts)} {extra}".strip()]


def qemu_argv(name: str, shape: Shape, facts: HostFacts, fds: Descriptors, *, extra: str = "") -> list[str]:
    """The whole command line. A machine with `state` waits, paused, once the state is loaded."""
    return [
        facts.qemu,
        "-name", f"belljar-{name}",
        "-nodefaults", "-no-user-config", "-display", "none", "-S",
        "-M", "microvm,memory-backend=ram,mem-merge=off,dump-guest-core=off",
        "-smp", str(shape.vcpus),
        # A guest that ends is kept, paused, until its console has been read.
        "-action", "reboot=shutdown,shutdown=pause",
        "-sandbox", SECCOMP,
        *_accelerator(facts),
        *_memory(shape, fds.ram, shared=fds.state is None),
        *_root(fds.root),
        *_disk(fds.disk),
        *_wire(fds.agent),
        *_monitor(fds.monitor),
        *_console(),
        *_start(fds, facts, extra),
    ]  # fmt: skip
