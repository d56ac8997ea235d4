"""Lists of records by their labels, a page at a time.

A page begins after the last record of the one before it, which is named by its time and id and need not exist any more. So pages
neither repeat nor skip a record, whatever is created or removed in between.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from belljar.store.database import key


@dataclass(frozen=True)
class Place:
    """Of a record in its list."""

    created_at: float
    id: str


@dataclass(frozen=True)
class Page:
    """At most `limit` records after a place; None is without limit, and from the start."""

    limit: int | None = None
    after: Place | None = None
    newest_first: bool = False


@dataclass
class Query:
    """A select over one of our tables, with what it is to find as parameters."""

    table: str
    page: Page | None = None
    _conditions: list[str] = field(default_factory=list)
    _values: list[Any] = field(default_factory=list)

    def where(self, condition: str, *values: Any) -> Query:
        self._conditions.append(condition)
        self._values += values
        return self

    def where_labels(self, labels: Mapping[str, str] | None) -> Query:
        """Those that carry every pair."""
        for name, value in (labels or {}).items():
            found = "EXISTS (SELECT 1 FROM json_each(metadata) AS label WHERE label.key = ? AND label.value = ?)"
            self.where(found, key(name), key(value))
        return self

    def render(self) -> tuple[Any, ...]:
        """The statement and its parameters."""
        page = self.page or Page()
        sign, order = ("<", "DESC") if page.newest_first else (">", "ASC")
        if page.after is not None:
            self.where(f"(created_at, id) {sign} (?, ?)", page.after.created_at, key(page.after.id))
        where = f"WHERE {' AND '.join(self._conditions)}" if self._conditions else ""
        limit = "" if page.limit is None else f"LIMIT {int(page.limit)}"
        return f"SELECT * FROM {self.table} {where} ORDER BY created_at {order}, id {order} {limit}", *self._values
