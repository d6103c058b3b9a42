"""Burials: lost or deleted replicas, and the log index of the loss. Shared by `replicas` and `expiry`.

They prevent that a change relies on an earlier observation of a replica that is gone.

Between a look at a node's files and the change that reports the result, the node may have deleted them,
because the log ordered it or because they were damaged. The change carries the log index that was known
before the look; a later burial rejects the change. Burials are forgotten after a day. Then a change is
rejected if its look was before the youngest forgotten burial.

Tested by tests/unit/coordinator/machine/test_replica_life.py.
"""

import sqlite3
from collections.abc import Sequence

from ca.errors import Unavailable
from coordinator.machine.execution.change import Change

RETENTION_MS = 24 * 60 * 60 * 1000


def bury(change: Change, sha256: str, node_id: str) -> None:
    """Record that this node no longer has this replica."""
    change.db.execute(
        "INSERT OR REPLACE INTO burials (sha256, node_id, log_index, at_ms) VALUES (?, ?, ?, ?)",
        (sha256, node_id, change.log_index, change.at_ms),
    )


def require_none(db: sqlite3.Connection, sha256: str, node_ids: Sequence[str], as_of: int) -> None:
    """Raise Unavailable if a replica on one of these nodes was buried after `as_of`, or may have been.

    With 0 the time of the look is unknown, so any burial counts.
    """
    (floor,) = db.execute("SELECT burial_floor FROM cluster").fetchone()
    if 0 < as_of < floor:
        raise Unavailable("What was seen on the nodes is too long ago. Look again.")
    rows = db.execute(
        "SELECT node_id FROM burials WHERE sha256 = ? AND log_index > ? ORDER BY node_id", (sha256, as_of)
    ).fetchall()
    for (node_id,) in rows:
        if node_id in node_ids:
            raise Unavailable(f"The replica on {node_id} is gone since it was seen. Look again.")


def purge(change: Change, rows_max: int) -> int:
    """Forget the oldest burials whose time is over; return how many.

    Observations of blobs before the last of them do not count any more.
    """
    until_ms = change.at_ms - RETENTION_MS
    oldest = "FROM burials WHERE at_ms <= ? ORDER BY at_ms, log_index, sha256, node_id LIMIT ?"
    rows = change.db.execute(f"SELECT sha256, node_id, log_index {oldest}", (until_ms, rows_max)).fetchall()
    if rows:
        change.db.executemany(
            "DELETE FROM burials WHERE sha256 = ? AND node_id = ?", [row[:2] for row in rows]
        )
        change.db.execute(
            "UPDATE cluster SET burial_floor = MAX(burial_floor, ?)", (max(row[2] for row in rows),)
        )
    return len(rows)
