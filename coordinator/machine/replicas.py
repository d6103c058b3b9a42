"""Replicas: which node has which blob, according to the log; marked, deleted, lost and added ones.

A replica *counts* while it is not marked for deletion (`doomed` in the columns) and its node is healthy and
not draining. `blobs.missing` follows every change of a replica at once, and the state of a node in steps
(recounts.py).

Why a replica that is marked for deletion is safe to delete: it counts for nothing, and only a report of its
own node withdraws the mark, which does one thing after the other. A completion that names it is rejected
while it is marked, and after its deletion by its burial.
"""

import sqlite3
from collections.abc import Sequence

from ca.errors import Conflict, InvalidRequest, NotFound, Unavailable
from coordinator.machine import burials, damaged
from coordinator.machine.execution import quotas
from coordinator.machine.execution.change import Change
from metadata.model.records import HEALTHY
from metadata.model.replica_records import Dropped, Lost
from metadata.protocol.commands import (
    AddReplica,
    ReleaseReplica,
    ReportDamaged,
    ReportDropped,
    ReportLost,
    ReportOrphans,
)

# Of `blob_replicas r JOIN nodes n`.
COUNTS = f"r.doomed_at IS NULL AND n.state = '{HEALTHY}' AND n.draining = 0"
# The right value of this column of `blobs`: see the schema.
MISSING = (
    "CASE WHEN blobs.reference_count = 0 THEN 0 ELSE (SELECT CASE WHEN COUNT(*) = 0"
    " THEN (SELECT replicas + 1 FROM cluster)"
    f" ELSE MAX((SELECT replicas FROM cluster) - COUNT(*) FILTER (WHERE {COUNTS}), 0) END"
    " FROM blob_replicas r JOIN nodes n ON n.node_id = r.node_id"
    " WHERE r.sha256 = blobs.sha256 AND r.doomed_at IS NULL) END"
)


def insert(change: Change, sha256: str, node_ids: Sequence[str]) -> None:
    """Record that these nodes have the blob (others may as well); `recount` follows."""
    change.db.executemany(
        "INSERT OR IGNORE INTO blob_replicas (sha256, node_id) VALUES (?, ?)",
        [(sha256, node_id) for node_id in node_ids],
    )
    for copy in damaged.of_blob(change.db, sha256):
        if copy.node_id in node_ids:  # a whole replica has replaced a damaged one
            damaged.forget(change.db, sha256, copy.node_id)


def holders(db: sqlite3.Connection, sha256: str) -> list[str]:
    """Return the nodes with a replica of a blob that is not marked for deletion, by id."""
    rows = db.execute(
        "SELECT r.node_id FROM blob_replicas r JOIN nodes n ON n.node_id = r.node_id"
        " WHERE r.sha256 = ? AND r.doomed_at IS NULL ORDER BY r.node_id",
        (sha256,),
    ).fetchall()
    return [node_id for (node_id,) in rows]


def require_present(db: sqlite3.Connection, sha256: str, node_ids: Sequence[str], as_of: int) -> None:
    """Raise Unavailable unless the replicas that were seen there after `as_of` exist, and stay."""
    require_unmarked(db, sha256, node_ids)
    burials.require_none(db, sha256, node_ids, as_of)


def require_unmarked(db: sqlite3.Connection, sha256: str, node_ids: Sequence[str]) -> None:
    """Raise Unavailable if this blob is marked for deletion on one of these nodes."""
    rows = db.execute(
        "SELECT node_id FROM blob_replicas WHERE sha256 = ? AND doomed_at IS NOT NULL ORDER BY node_id",
        (sha256,),
    ).fetchall()
    for (node_id,) in rows:
        if node_id in node_ids:
            raise Unavailable(f"The replica on {node_id} is about to be dropped. Try again.")


def recount(db: sqlite3.Connection, sha256: str) -> int:
    """Update `blobs.missing` of one blob; return the new value.

    It is called after each change of the blob's replicas or references.
    """
    row = db.execute(
        f"SELECT missing, {MISSING}, (SELECT replicas FROM cluster) FROM blobs WHERE sha256 = ?", (sha256,)
    ).fetchone()
    if row is None:
        return 0
    before, after, wanted = row
    if before != after:
        db.execute("UPDATE blobs SET missing = ? WHERE sha256 = ?", (after, sha256))
    damaged.refresh(db, sha256, is_unheld=after > wanted)
    return int(after)


def add(change: Change, command: AddReplica) -> int:
    """Record that a node was seen to have a blob; return how many replicas the blob still lacks."""
    db = change.db
    blob = db.execute(
        "SELECT 1 FROM blobs WHERE sha256 = ? AND reference_count > 0", (command.sha256,)
    ).fetchone()
    if blob is None:
        raise NotFound("No file refers to this blob.")
    _custody_index(db, command.node_id)
    require_present(db, command.sha256, [command.node_id], command.as_of)
    insert(change, command.sha256, [command.node_id])
    return recount(db, command.sha256)


def release(change: Change, command: ReleaseReplica) -> None:
    """Mark one replica for deletion, if enough others count."""
    db = change.db
    row = db.execute(
        "SELECT r.doomed_at, b.reference_count FROM blob_replicas r JOIN blobs b ON b.sha256 = r.sha256"
        " WHERE r.sha256 = ? AND r.node_id = ?",
        (command.sha256, command.node_id),
    ).fetchone()
    if row is None:
        raise NotFound("The log knows no such replica.")
    doomed_at, reference_count = row
    if doomed_at is not None:
        return
    if reference_count > 0:
        _require_others(db, command)
    db.execute(
        "UPDATE blob_replicas SET doomed_at = ? WHERE sha256 = ? AND node_id = ?",
        (change.log_index, command.sha256, command.node_id),
    )
    recount(db, command.sha256)


def report_dropped(change: Change, command: ReportDropped) -> Dropped:
    """Record what a node did with a list of replicas that were marked for deletion."""
    db, node_id = change.db, command.node_id
    if command.as_of >= change.log_index:
        raise InvalidRequest("as_of: there was no list yet.")
    require_current(db, node_id, command.as_of)
    dropped = dropped_bytes = spared = 0
    for sha256 in command.dropped:
        size_bytes = _drop(change, sha256, node_id, command.as_of)
        if size_bytes is not None:
            dropped, dropped_bytes = dropped + 1, dropped_bytes + size_bytes
    for sha256 in command.spared:
        spared += _spare(change, sha256, node_id, command.as_of)
    db.execute("UPDATE nodes SET custody_index = ? WHERE node_id = ?", (change.log_index, node_id))
    return Dropped(dropped=dropped, bytes=dropped_bytes, spared=spared)


def require_current(db: sqlite3.Connection, node_id: str, as_of: int) -> None:
    """Raise Conflict if a report of this node was applied after its list was read."""
    custody_index = _custody_index(db, node_id)
    if as_of < custody_index:
        raise Conflict(f"A report of {node_id} was applied at {custody_index}. Read the list again.")


def report_lost(change: Change, command: ReportLost) -> Lost:
    """Record that a node does not have replicas that it should have."""
    db = change.db
    _custody_index(db, command.node_id)
    replicas = blobs = 0
    for sha256 in command.sha256s:
        burials.bury(change, sha256, command.node_id)
        had_copy = damaged.forget(db, sha256, command.node_id)
        if _forget(db, sha256, command.node_id):
            replicas += 1
            blobs += is_lost(db, sha256)
        elif had_copy:
            recount(db, sha256)
        if command.reason == "damaged" and _is_wanted_from(db, sha256, command.node_id):
            damaged.note(change, sha256, command.node_id, ())
            recount(db, sha256)
    return Lost(replicas=replicas, blobs=blobs)


def report_damaged(change: Change, command: ReportDamaged) -> None:
    """Record that a node has damaged copies."""
    db, sha256, node_id = change.db, command.sha256, command.node_id
    _custody_index(db, node_id)
    if _is_wanted_from(db, sha256, node_id):
        damaged.note(change, sha256, node_id, command.spans)
        recount(db, sha256)


def _is_wanted_from(db: sqlite3.Connection, sha256: str, node_id: str) -> bool:
    """Return whether files refer to a blob without a replica on this node."""
    row = db.execute(
        "SELECT 1 FROM blobs WHERE sha256 = ? AND reference_count > 0 AND NOT EXISTS"
        " (SELECT 1 FROM blob_replicas r WHERE r.sha256 = blobs.sha256 AND r.node_id = ?)",
        (sha256, node_id),
    ).fetchone()
    return row is not None


def report_orphans(change: Change, command: ReportOrphans) -> list[str]:
    """Return the blobs that no file refers to, and that have no replica on this node in the log.

    They are buried, so that the node may delete them.
    """
    db = change.db
    _custody_index(db, command.node_id)
    orphans = [sha256 for sha256 in command.sha256s if not _is_claimed(db, sha256, command.node_id)]
    for sha256 in orphans:
        burials.bury(change, sha256, command.node_id)
    return orphans


def is_lost(db: sqlite3.Connection, sha256: str) -> bool:
    """Return whether files refer to a blob whose replicas, if there are any, are all marked for deletion."""
    row = db.execute(
        "SELECT 1 FROM blobs b, cluster c WHERE b.sha256 = ? AND b.missing > c.replicas", (sha256,)
    ).fetchone()
    return row is not None


def forget_unheld(db: sqlite3.Connection, sha256: str) -> bool:
    """Remove a blob that no file refers to and no node has; return whether it was removed."""
    removed = db.execute(
        "DELETE FROM blobs WHERE sha256 = ? AND reference_count = 0"
        " AND NOT EXISTS (SELECT 1 FROM blob_replicas r WHERE r.sha256 = blobs.sha256)"
        " RETURNING released_by, size_bytes, collected_at",
        (sha256,),
    ).fetchall()
    for row in removed:
        quotas.uncount_released(db, *row)
    return bool(removed)


def _require_others(db: sqlite3.Connection, command: ReleaseReplica) -> None:
    """Raise Conflict unless enough replicas on other nodes count."""
    (write_quorum,) = db.execute("SELECT write_quorum FROM cluster").fetchone()
    (others,) = db.execute(
        "SELECT COUNT(*) FROM blob_replicas r JOIN nodes n ON n.node_id = r.node_id"
        f" WHERE r.sha256 = ? AND r.node_id <> ? AND {COUNTS}",
        (command.sha256, command.node_id),
    ).fetchone()
    others_min = max(command.others_min, write_quorum)
    if others < others_min:
        raise Conflict(f"{others} other replicas count, {others_min} must.")


def _is_claimed(db: sqlite3.Connection, sha256: str, node_id: str) -> bool:
    """Return whether a file refers to this content, or the log has a replica of it on the node."""
    row = db.execute(
        "SELECT EXISTS (SELECT 1 FROM blobs WHERE sha256 = :sha256 AND reference_count > 0)"
        " OR EXISTS (SELECT 1 FROM blob_replicas WHERE sha256 = :sha256 AND node_id = :node_id)",
        {"sha256": sha256, "node_id": node_id},
    ).fetchone()
    return bool(row[0])


def _custody_index(db: sqlite3.Connection, node_id: str) -> int:
    """Return the log index of the last report of a node, 0 for none. Raises NotFound for an unknown node."""
    row = db.execute("SELECT custody_index FROM nodes WHERE node_id = ?", (node_id,)).fetchone()
    if row is None:
        raise NotFound(f"There is no node {node_id}.")
    return int(row[0])


def _drop(change: Change, sha256: str, node_id: str, as_of: int) -> int | None:
    """Remove a replica that was marked for deletion and is gone now; return its size in bytes.

    None if it was not marked by then.
    """
    row = change.db.execute(
        "SELECT b.size_bytes FROM blob_replicas r JOIN blobs b ON b.sha256 = r.sha256"
        " WHERE r.sha256 = ? AND r.node_id = ? AND r.doomed_at <= ?",
        (sha256, node_id, as_of),
    ).fetchone()
    if row is None:
        return None
    burials.bury(change, sha256, node_id)
    _forget(change.db, sha256, node_id)
    return int(row[0])


def _spare(change: Change, sha256: str, node_id: str, as_of: int) -> int:
    """Withdraw the mark for deletion; return 1 if there was one, 0 otherwise.

    A blob that no file refers to waits for its grace period again.
    """
    spared = change.db.execute(
        "UPDATE blob_replicas SET doomed_at = NULL WHERE sha256 = ? AND node_id = ? AND doomed_at <= ?",
        (sha256, node_id, as_of),
    ).rowcount
    if spared:
        quotas.spare(change.db, sha256)
        change.db.execute(
            "UPDATE blobs SET released_at_ms = ?, collected_at = NULL"
            " WHERE sha256 = ? AND reference_count = 0",
            (change.at_ms, sha256),
        )
        recount(change.db, sha256)
    return spared


def _forget(db: sqlite3.Connection, sha256: str, node_id: str) -> bool:
    """Remove a replica, and its blob if no file or node has it; return whether there was a replica."""
    gone = db.execute(
        "DELETE FROM blob_replicas WHERE sha256 = ? AND node_id = ?", (sha256, node_id)
    ).rowcount
    if gone and not forget_unheld(db, sha256):
        recount(db, sha256)
    return bool(gone)
