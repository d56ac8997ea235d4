"""A systemd unit for the server.

What matters most in it: sandboxes must outlive the server. systemd ends all processes of a unit with it, unless it is told to end
only the main one, and takes one machine's death for lack of memory as the unit's own, unless it is told to go on.

What is left out would break sandboxes: MemoryDenyWriteExecute (QEMU translates code), PrivateDevices and ProtectClock (/dev/kvm),
RestrictNamespaces and SystemCallFilter (bubblewrap makes namespaces), ProtectKernelTunables, ProtectKernelLogs and ProtectProc
(they cover parts of /proc, and no process without privileges may then mount one of its own, as each jail does).
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from belljar.settings import Settings

UNIT = """\
[Unit]
Description=Belljar, sandboxes over HTTP
After=network-online.target
Wants=network-online.target

[Service]
Type=notify
NotifyAccess=main
ExecStart={command}
Environment=BELLJAR_HOME={home}
Environment=PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
WorkingDirectory=/
Restart=on-failure
RestartSec=2
TimeoutStartSec=120
TimeoutStopSec={stop_s}

# Sandboxes are processes of this unit, and live on when the server stops, restarts or dies.
KillMode=process
OOMPolicy=continue
TasksMax=infinity
LimitNOFILE=1048576

# What a server needs to write is its home, and nothing else of the system.
ProtectSystem=strict
ReadWritePaths={home}
ProtectHome=read-only
PrivateTmp=yes
ProtectHostname=yes
ProtectKernelModules=yes
ProtectControlGroups=yes
LockPersonality=yes
RestrictRealtime=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
UMask=0077

[Install]
WantedBy=multi-user.target
"""


def render_unit(argv: Sequence[str], settings: Settings) -> str:
    """The unit that runs the command line `argv` again, with those settings' home."""
    words = [str(Path(argv[0]).absolute()), *(word for word in argv[1:] if word != "--print-unit")]
    # systemd expands these two characters itself, also inside quotes.
    command = " ".join(shlex.quote(word).replace("%", "%%").replace("$", "$$") for word in words)
    home, stop_s = str(settings.home).replace("%", "%%"), int(settings.shutdown_grace_s) + 50
    return UNIT.format(command=command, home=home, stop_s=stop_s)
