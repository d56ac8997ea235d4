"""What became of each call of each client, and the page that tells it: docs/compatibility.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

PAGE = Path(__file__).parent.parent.parent / "docs" / "compatibility.md"
# The tests that make the calls.
SOURCES = ("pandastack_core", "pandastack_state", "pandastack_rest", "node_client", "sandbase", "sandbase_files", "documents")
PASSES, NOT_SERVED = "passes", "not served"
# What the server says where it has no such route, or the route but not the method.
NO_ROUTE = ("there is no route", "is not possible on", "failed to get code: 404")
HEAD = """# Compatibility

The tests write this page: it tells what every public call of the published clients, unmodified, did against a real server with real
sandboxes, and fail when it is no longer so. `scripts/compatibility` writes it anew.

- **passes**: a test uses the call, checks what came of it, and is content.
- **refused**: the server knows the call and never does it; the client raises this error.
- **not served**: the server has no such route; the client raises its error for a 404 or 405.
"""


@dataclass(frozen=True)
class Ending:
    """How one call ended: with a result, or with an error of the client's."""

    error: str | None = None
    message: str = ""

    @property
    def verdict(self) -> str:
        if self.error is None:
            return PASSES
        return NOT_SERVED if any(words in self.message for words in NO_ROUTE) else f"refused: `{self.error}`"


@dataclass
class Book:
    """The endings of all calls in tests that passed. Calls of the running test wait until it is known how it ends."""

    endings: dict[str, dict[str, list[Ending]]] = field(default_factory=dict)
    pending: list[tuple[str, str, Ending]] = field(default_factory=list)

    def note(self, client: str, call: str, ending: Ending) -> None:
        self.pending.append((client, call, ending))

    def settle(self, passed: bool) -> None:
        waiting, self.pending = self.pending, []
        for client, call, ending in waiting if passed else ():
            self.endings.setdefault(client, {}).setdefault(call, []).append(ending)

    def verdict(self, client: str, call: str) -> str | None:
        """None if no test that passed has made this call."""
        verdicts = [ending.verdict for ending in self.endings.get(client, {}).get(call, [])]
        return PASSES if PASSES in verdicts else verdicts[-1] if verdicts else None


@dataclass(frozen=True)
class Chapter:
    """One client: all calls it has, whether a test made them or not."""

    title: str
    client: str
    calls: Sequence[str]
    column: str = "call"


BOOK = Book()


def render(book: Book, chapters: Iterable[Chapter], tail: str) -> str:
    tables, totals = [], ["| | passes | refused | not served |", "|---|---|---|---|"]
    for chapter in chapters:
        rows = [(call, book.verdict(chapter.client, call) or "NOT DRIVEN") for call in chapter.calls]
        count = Counter(verdict.partition(":")[0] for _, verdict in rows)
        totals.append(f"| {chapter.title} | {count[PASSES]} | {count['refused']} | {count[NOT_SERVED]} |")
        lines = [f"| {_code(call)} | {verdict} |" for call, verdict in _folded(rows)]
        tables.append("\n".join([f"## {chapter.title}", "", f"| {chapter.column} | result |", "|---|---|", *lines]))
    return "\n\n".join([HEAD.rstrip(), "\n".join(totals), *tables, tail.strip()]) + "\n"


def _code(call: str) -> str:
    return call if "`" in call or ":" in call else f"`{call}`"


def _folded(rows: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """A part of which nothing is served is one row."""
    parts: dict[str, list[str]] = {}
    for call, verdict in rows:
        parts.setdefault(call.rpartition(".")[0], []).append(verdict)
    folded: dict[str, str] = {}
    for call, verdict in rows:
        part = call.rpartition(".")[0]
        whole = part.count(".") == 1 and set(parts[part]) == {NOT_SERVED} and len(parts[part]) > 1
        folded[f"`{part}.*` ({len(parts[part])} calls)" if whole else call] = verdict
    return list(folded.items())
