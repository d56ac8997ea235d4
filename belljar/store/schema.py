"""The tables, version by version.

Each entry takes the schema one version further; `user_version` of the file counts how many were applied. Never edit one that
was released.
"""

from __future__ import annotations

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE sandboxes (
            id TEXT PRIMARY KEY, template TEXT NOT NULL, template_digest TEXT NOT NULL, origin_snapshot TEXT, parent TEXT,
            state TEXT NOT NULL, created_at REAL NOT NULL, expires_at REAL, metadata TEXT NOT NULL, env TEXT NOT NULL,
            vcpus INTEGER NOT NULL, memory_mib INTEGER NOT NULL, disk_mib INTEGER NOT NULL, uid INTEGER UNIQUE, reason TEXT
        ) STRICT""",
        "CREATE INDEX sandboxes_expires_at ON sandboxes (expires_at) WHERE expires_at IS NOT NULL",
        """CREATE TABLE snapshots (
            id TEXT PRIMARY KEY, sandbox_id TEXT NOT NULL, template TEXT NOT NULL, template_digest TEXT NOT NULL,
            created_at REAL NOT NULL, size_bytes INTEGER NOT NULL, metadata TEXT NOT NULL
        ) STRICT""",
    ),
    (
        "ALTER TABLE sandboxes ADD COLUMN workspace TEXT NOT NULL DEFAULT 'default'",
        "ALTER TABLE sandboxes ADD COLUMN persistent INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE sandboxes ADD COLUMN ttl_s REAL",
        "CREATE INDEX sandboxes_workspace ON sandboxes (workspace)",
        "ALTER TABLE snapshots ADD COLUMN workspace TEXT NOT NULL DEFAULT 'default'",
        """CREATE TABLE tokens (
            hash TEXT PRIMARY KEY, prefix TEXT NOT NULL UNIQUE, label TEXT NOT NULL, workspace TEXT NOT NULL,
            admin INTEGER NOT NULL, created_at REAL NOT NULL, expires_at REAL
        ) STRICT""",
        """CREATE TABLE events (
            seq INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, workspace TEXT NOT NULL, sandbox_id TEXT NOT NULL,
            type TEXT NOT NULL, payload TEXT NOT NULL
        ) STRICT""",
        "CREATE INDEX events_of_sandbox ON events (sandbox_id, seq)",
        "CREATE INDEX events_of_workspace ON events (workspace, seq)",
    ),
    (
        """CREATE TABLE quotas (
            workspace TEXT PRIMARY KEY, sandboxes INTEGER, memory_mib INTEGER, disk_mib INTEGER, rate_per_s REAL, rate_burst INTEGER
        ) STRICT""",
    ),
    (
        """CREATE TABLE ports (
            sandbox_id TEXT NOT NULL, port INTEGER NOT NULL, shared INTEGER NOT NULL, public INTEGER NOT NULL,
            label TEXT NOT NULL, links_since REAL NOT NULL, PRIMARY KEY (sandbox_id, port)
        ) STRICT""",
        "CREATE TRIGGER ports_of_the_gone AFTER DELETE ON sandboxes BEGIN DELETE FROM ports WHERE sandbox_id = OLD.id; END",
    ),
    (
        "ALTER TABLE sandboxes ADD COLUMN egress TEXT NOT NULL DEFAULT '{}'",
        "ALTER TABLE sandboxes ADD COLUMN egress_secrets TEXT NOT NULL DEFAULT '{}'",
        "ALTER TABLE sandboxes ADD COLUMN egress_authority TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE sandboxes ADD COLUMN egress_bytes INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE snapshots ADD COLUMN egress TEXT NOT NULL DEFAULT '{}'",
        "ALTER TABLE snapshots ADD COLUMN egress_secrets TEXT NOT NULL DEFAULT '{}'",
    ),
)
