"""The rows that the log has changed since they were hashed: a member's own memory, next to its state.

Digests of the same rows at two places of the log prove something only if no entry between the two has changed
them: a page that lost a write looks as it did before. So triggers note the key of every changed row, in
temporary tables of the writing connection, which end with the process and are not part of the state. Rows for
which this is unknown count as touched.
"""

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

# They change with every command or file: noting that would cost much and never prove anything.
UNTRACKED: Final = frozenset(
    {
        "applied",
        "digest_position",
        "sessions",
        "replies",
        "rules",
        "buckets",
        "blob_totals",
        "replica_totals",
        "trash_totals",
        "kept_snapshots",
        "uploads",
    }
)
TOUCHED_MAX: Final = 100_000  # keys of one table: some 10 MB. Beyond, nothing is known for the next pass.


def track(db: sqlite3.Connection) -> None:
    """Begin to note changes on this connection, which makes all of them. Earlier ones are unknown."""
    db.execute("CREATE TEMP TABLE IF NOT EXISTS unknown_passes (name TEXT PRIMARY KEY, passes INTEGER)")
    for table, key in _tracked(db):
        columns = ", ".join(f"{name} {kind}" for name, kind in key.items())
        db.execute(f"DROP TABLE IF EXISTS temp.touched_{table}")
        db.execute(
            f"CREATE TEMP TABLE touched_{table} ({columns}, PRIMARY KEY ({', '.join(key)})) WITHOUT ROWID"
        )
        moved = f"UPDATE OF {', '.join(key)}"  # never fires, and costs nothing, if the key is not set
        for number, (event, row) in enumerate(
            (("INSERT", "NEW"), ("UPDATE", "OLD"), (moved, "NEW"), ("DELETE", "OLD"))
        ):
            db.execute(f"DROP TRIGGER IF EXISTS temp.touched_{table}_{number}")
            db.execute(
                f"CREATE TEMP TRIGGER touched_{table}_{number} AFTER {event} ON main.{table}"
                f" BEGIN {_note(table, key, row)}; END"
            )
        _forget_all(db, table)


@dataclass(frozen=True, slots=True)
class SliceChanges:
    """The changes to the rows of a slice since they were last hashed.

    `are_known`: for all rows it is known whether they changed. `any`: at least one certainly did.
    """

    are_known: bool
    any: bool


def forget(
    db: sqlite3.Connection,
    table: str,
    key: Sequence[str],
    bound: Sequence[str],
    after: Sequence[object],
    end: Sequence[object] | None,
) -> SliceChanges:
    """Forget the changes of these rows, which are hashed now; return the changes since the last time.

    The rows are those beyond `after` (empty: from the first) up to `end` (None: to the last); they count as
    untouched then. `bound`: how the columns of a key are compared with values.
    """
    if not _is_tracked(db, table):
        return SliceChanges(are_known=False, any=False)
    columns, values = ", ".join(key), ", ".join(bound)
    bounds = [f"({columns}) > ({values})"] if after else []
    bounds += [f"({columns}) <= ({values})"] if end is not None else []
    where = f"WHERE {' AND '.join(bounds)}" if bounds else ""
    chosen = (*after, *(end or ()))
    gone = db.execute(f"DELETE FROM touched_{table} {where}", chosen).rowcount
    row = db.execute("SELECT passes FROM unknown_passes WHERE name = ?", (table,)).fetchone()
    if row is not None and end is None:
        db.execute("UPDATE unknown_passes SET passes = passes - 1 WHERE name = ?", (table,))
        db.execute("DELETE FROM unknown_passes WHERE name = ? AND passes <= 0", (table,))
    return SliceChanges(are_known=row is None, any=gone > 0)


def bound(db: sqlite3.Connection) -> None:
    """Bound the number of keys that are noted."""
    for table, _ in _tracked(db):
        if _is_tracked(db, table) and _count(db, table) > TOUCHED_MAX:
            _forget_all(db, table)


def _forget_all(db: sqlite3.Connection, table: str) -> None:
    db.execute(f"DELETE FROM touched_{table}")
    position = db.execute("SELECT table_name FROM digest_position WHERE after != x''").fetchone()
    # Until every row was hashed once since then: one pass, or the rest of this one and the next.
    passes = 2 if position == (table,) else 1
    db.execute("INSERT OR REPLACE INTO unknown_passes VALUES (?, ?)", (table, passes))


def _note(table: str, key: Iterable[str], row: str) -> str:
    """Return SQL that notes the key of a row.

    It is not OR IGNORE: a conflict clause of the statement that fires the trigger would replace it.
    """
    values = ", ".join(f"{row}.{name}" for name in key)
    return f"INSERT INTO touched_{table} VALUES ({values}) ON CONFLICT DO NOTHING"


def _count(db: sqlite3.Connection, table: str) -> int:
    return int(db.execute(f"SELECT COUNT(*) FROM touched_{table}").fetchone()[0])


def _tracked(db: sqlite3.Connection) -> list[tuple[str, dict[str, str]]]:
    """Return the tracked tables, by name, each with the columns of its primary key and their types."""
    found = []
    for (table,) in db.execute("SELECT name FROM main.sqlite_master WHERE type = 'table' ORDER BY name"):
        described = db.execute("SELECT name, type FROM pragma_table_info(?) WHERE pk ORDER BY pk", (table,))
        key = dict(described.fetchall())
        if key and table not in UNTRACKED:
            found.append((table, key))
    return found


def _is_tracked(db: sqlite3.Connection, table: str) -> bool:
    row = db.execute("SELECT 1 FROM temp.sqlite_master WHERE name = ?", (f"touched_{table}",)).fetchone()
    return row is not None
