"""Other names of the languages that contexts run. Host and guest must take them for the same ones."""

from __future__ import annotations

from typing import Final

ALIASES: Final = {
    "py": "python",
    "python3": "python",
    "sh": "bash",
    "shell": "bash",
    "js": "javascript",
    "node": "javascript",
    "ts": "typescript",
}
