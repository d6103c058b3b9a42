"""Pages of lists: each reads a bounded number of rows. Shared by all queries that list rows.

An index that ends in the sequence finds the candidates of a list, so the cost of a page does not depend on
the number of rows before and behind it. Filters are applied to the candidates one by one. A page that has
examined LIST_SCAN_MAX of them ends, short or empty, and the next one continues there.

Tested by tests/unit/coordinator/machine/test_lists.py.
"""

import sqlite3
from dataclasses import dataclass
from typing import Any

from metadata.protocol.queries import ListFilesQuery

PAGE_BYTES_MAX = 2 << 20  # of text in a page, which is one message: some 30 ms of each loop on its way
LIST_SCAN_MAX = 5000  # candidates that one page examines: about ten milliseconds

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Condition:
    """A term of WHERE with the values of its placeholders."""

    sql: str
    values: tuple[str | int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The rows of `table` that meet all of `candidates` and `filters`, in the order of `sequence`.

    `candidates` are equalities on `table`, answered together with the order by one of its indexes; `joined`
    adds rows of other tables, at most one of each. The last of `columns` is the sequence.
    """

    columns: str
    table: str
    joined: str = ""
    sequence: str
    candidates: tuple[Condition, ...] = ()
    filters: tuple[Condition, ...] = ()


def read_page(db: sqlite3.Connection, listing: Listing, *, cursor: int, limit: int) -> tuple[list[Row], int]:
    """Return up to `limit` rows after the sequence `cursor`, and the cursor of the next page.

    The cursor is 0 if no candidate remains. A page ends early if its text has PAGE_BYTES_MAX.
    """
    window = (Condition(f"{listing.sequence} > ?", (cursor,)), *listing.candidates)
    scanned_to = _scanned_to(db, listing, window) if listing.filters else 0
    if scanned_to:
        window = (*window, Condition(f"{listing.sequence} <= ?", (scanned_to,)))
    where, values = _where((*window, *listing.filters))
    found = db.execute(
        f"SELECT {listing.columns} FROM {listing.table} {listing.joined} WHERE {where}"
        f" ORDER BY {listing.sequence} LIMIT ?",
        (*values, limit + 1),
    )
    rows: list[Row] = []
    room = PAGE_BYTES_MAX
    for row in found:
        if len(rows) == limit or room <= 0:
            return rows, rows[-1][-1]
        rows.append(row)
        room -= sum(len(value.encode()) for value in row if isinstance(value, str))
    return rows, scanned_to


def file_filters(query: ListFilesQuery) -> tuple[Condition, ...]:
    """Return the filters of every list of files, on the columns of `files f`; "" matches any."""
    filters: list[Condition] = []
    if query.status:
        filters.append(Condition("f.status = ?", (query.status,)))
    for prefix, comparison in ((query.filename_prefix, "="), (query.without_prefix, "<>")):
        if prefix:
            filters.append(Condition(f"substr(f.filename, 1, ?) {comparison} ?", (len(prefix), prefix)))
    return tuple(filters)


def _scanned_to(db: sqlite3.Connection, listing: Listing, window: tuple[Condition, ...]) -> int:
    """Return the sequence of the last candidate that this page may examine, 0 if it may examine all."""
    where, values = _where(window)
    found = db.execute(
        f"SELECT {listing.sequence} FROM {listing.table} WHERE {where}"
        f" ORDER BY {listing.sequence} LIMIT 2 OFFSET ?",
        (*values, LIST_SCAN_MAX - 1),
    ).fetchall()
    return found[0][0] if len(found) == 2 else 0


def _where(conditions: tuple[Condition, ...]) -> tuple[str, tuple[str | int, ...]]:
    values = tuple(value for condition in conditions for value in condition.values)
    return " AND ".join(condition.sql for condition in conditions), values
