"""Applies a node's new state to its blobs, step by step. Shared by `nodes` and `cluster`.

A node may have a million replicas, and a change of its state is one entry of the log. So it only queues the
node here; each step processes the next replicas in the order of their sha256. Blobs whose replicas change
meanwhile are right at once, and stay so. A node that is queued again begins from the start.
"""

import sqlite3

from coordinator.machine import damaged, replicas
from coordinator.machine.execution.change import Change
from metadata.model.replica_records import Recounted
from metadata.protocol.commands import RecountReplicas


def begin(db: sqlite3.Connection, node_id: str, *, removed: bool = False) -> None:
    """Queue a node whose replicas begin or cease to count; `removed`: they are to be deleted."""
    db.execute(
        "INSERT OR REPLACE INTO recounts (node_id, after, removed) VALUES (?, '', ?)", (node_id, int(removed))
    )


def is_removed(db: sqlite3.Connection, node_id: str) -> bool:
    """Return whether replicas of a removed node with this id remain to be deleted."""
    return (
        db.execute("SELECT 1 FROM recounts WHERE node_id = ? AND removed = 1", (node_id,)).fetchone()
        is not None
    )


def step(change: Change, command: RecountReplicas) -> Recounted:
    """Process the next replicas of the first queued node."""
    db = change.db
    row = db.execute("SELECT node_id, after, removed FROM recounts ORDER BY node_id LIMIT 1").fetchone()
    if row is None:
        return Recounted(replicas=0, more=False)
    node_id, after, removed = row
    page = db.execute(
        "SELECT sha256 FROM blob_replicas WHERE node_id = ? AND sha256 > ? ORDER BY sha256 LIMIT ?",
        (node_id, after, command.rows_max),
    ).fetchall()
    for (sha256,) in page:
        if removed:
            db.execute("DELETE FROM blob_replicas WHERE sha256 = ? AND node_id = ?", (sha256, node_id))
        if not (removed and replicas.forget_unheld(db, sha256)):
            replicas.recount(db, sha256)
    cleared = damaged.clear(db, node_id, command.rows_max - len(page)) if removed else []
    for sha256 in cleared:
        replicas.recount(db, sha256)
    if len(page) + len(cleared) < command.rows_max:
        db.execute("DELETE FROM recounts WHERE node_id = ?", (node_id,))
    else:
        last = page[-1][0] if page else after
        db.execute("UPDATE recounts SET after = ? WHERE node_id = ?", (last, node_id))
    more = db.execute("SELECT 1 FROM recounts LIMIT 1").fetchone() is not None
    return Recounted(replicas=len(page), more=more)
