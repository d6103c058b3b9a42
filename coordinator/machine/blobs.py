"""Blobs: content by its sha256, how many files refer to it, and its end when none does any more.

A blob that no file refers to keeps its replicas for a grace period. Then they are marked for deletion, in one
change. When the last of its nodes has reported that its replica is gone, the blob's row is deleted.
"""

import sqlite3

from ca.errors import InvalidRequest, PayloadTooLarge
from coordinator.machine import damaged, replicas
from coordinator.machine.execution import holds, quotas
from coordinator.machine.execution.change import Change, Question
from metadata.model.records import DOWN, BlobRecord
from metadata.model.replica_records import Collected
from metadata.protocol.commands import Collect, CollectOverQuota, CollectPurged
from metadata.protocol.queries import FindBlob
from runtime.bounds import TOTAL_BYTES_MAX

# Noted content that has a reference again, or whose grace is over.
_PURGED = (
    "FROM purged_blobs p CROSS JOIN blobs b ON b.sha256 = p.sha256"
    " WHERE b.reference_count > 0 OR (b.collected_at IS NULL AND b.released_at_ms <= ?)"
)

# A replica of `blobs b` on a node that has another state.
_REPLICA_UP = (
    "SELECT 1 FROM blob_replicas r JOIN nodes n USING (node_id) WHERE r.sha256 = b.sha256 AND n.state <> ?"
)


def find(question: Question, query: FindBlob) -> BlobRecord | None:
    """Return the blob with this content, or None if no file refers to it."""
    row = question.db.execute(
        "SELECT size_bytes, reference_count FROM blobs WHERE sha256 = ? AND reference_count > 0",
        (query.sha256,),
    ).fetchone()
    if row is None:
        return None
    (write_quorum,) = question.db.execute("SELECT write_quorum FROM cluster").fetchone()
    holders = replicas.holders(question.db, query.sha256)
    return BlobRecord(
        sha256=query.sha256,
        size_bytes=row[0],
        reference_count=row[1],
        replicas=holders,
        has_quorum=len(holders) >= write_quorum,
        damaged=[copy.node_id for copy in damaged.of_blob(question.db, query.sha256)],
        gone=damaged.gone_spans(question.db, query.sha256),
    )


def check_size(db: sqlite3.Connection, sha256: str, size_bytes: int) -> None:
    """Check that the log can store content of this size.

    Raises InvalidRequest if the log has another size for this content: one of the two reports is wrong.
    Raises PayloadTooLarge if the sum over all blobs would exceed what a column can store.
    """
    known = db.execute("SELECT size_bytes FROM blobs WHERE sha256 = ?", (sha256,)).fetchone()
    if known is not None and known[0] != size_bytes:
        raise InvalidRequest(f"size_bytes: content with this sha256 has {known[0]} bytes.")
    (total_bytes,) = db.execute("SELECT bytes FROM blob_totals WHERE one = 1").fetchone()
    if total_bytes + size_bytes > TOTAL_BYTES_MAX:
        raise PayloadTooLarge(f"The cluster may hold {TOTAL_BYTES_MAX} bytes, it holds {total_bytes}.")


def refer(change: Change, sha256: str, size_bytes: int, node_ids: list[str]) -> None:
    """Count one more file with this content, which these nodes have (others may have it too)."""
    quotas.take_back(change.db, sha256)
    (references,) = change.db.execute(
        "INSERT INTO blobs (sha256, size_bytes, reference_count, released_at_ms) VALUES (?, ?, 1, NULL)"
        " ON CONFLICT (sha256) DO UPDATE"
        " SET reference_count = reference_count + 1, released_at_ms = NULL, collected_at = NULL"
        " RETURNING reference_count",
        (sha256, size_bytes),
    ).fetchall()[0]
    if references == 1:
        _count(change.db, blobs=1, size_bytes=size_bytes)
    replicas.insert(change, sha256, node_ids)
    replicas.recount(change.db, sha256)


def release(change: Change, sha256: str, bucket_id: str, since: int, *, for_good: bool = False) -> bool:
    """Count one file less with this content, a file of this bucket; return whether it was the last one.

    The blob stays until it is collected, and while a snapshot holds it (`since`: see `holds.begin`). With
    `for_good` no snapshot holds it any more once the last file is gone.
    """
    if not for_good:
        holds.begin(change, sha256, since)
    elif _is_last_file(change.db, sha256) and holds.forget(change.db, sha256):
        _drop_reference(change, sha256, bucket_id)
    return _drop_reference(change, sha256, bucket_id)


def end_hold(change: Change, sha256: str, *, is_urgent: bool) -> None:
    """Let go of content that a snapshot held. `is_urgent`: it leaves the disks soon, not after the grace."""
    if holds.forget(change.db, sha256) and _drop_reference(change, sha256, "") and is_urgent:
        note_purged(change, sha256)


def _is_last_file(db: sqlite3.Connection, sha256: str) -> bool:
    """Return whether one file alone refers to the blob, in its bucket or in the trash."""
    (files,) = db.execute(
        "SELECT reference_count - EXISTS (SELECT 1 FROM held_blobs h WHERE h.sha256 = b.sha256)"
        " FROM blobs b WHERE sha256 = ?",
        (sha256,),
    ).fetchone()
    return bool(files == 1)


def _drop_reference(change: Change, sha256: str, bucket_id: str) -> bool:
    """Count one reference less; return whether it was the last one."""
    references, size_bytes = change.db.execute(
        "UPDATE blobs SET reference_count = reference_count - 1,"
        " released_at_ms = CASE WHEN reference_count = 1 THEN ? ELSE released_at_ms END,"
        " missing = CASE WHEN reference_count = 1 THEN 0 ELSE missing END WHERE sha256 = ?"
        " RETURNING reference_count, size_bytes",
        (change.at_ms, sha256),
    ).fetchall()[0]
    if references == 0:
        _count(change.db, blobs=-1, size_bytes=-size_bytes)
        damaged.refresh(change.db, sha256, is_unheld=False)
        quotas.release(change.db, sha256, bucket_id, size_bytes)
    return bool(references == 0)


def note_purged(change: Change, sha256: str) -> None:
    """Note content that was deleted for good on purpose, if no file refers to it any more."""
    change.db.execute(
        "INSERT INTO purged_blobs (sha256, at_ms) SELECT sha256, ? FROM blobs"
        " WHERE sha256 = ? AND reference_count = 0 ON CONFLICT (sha256) DO UPDATE SET at_ms = excluded.at_ms",
        (change.at_ms, sha256),
    )


def collect(change: Change, command: Collect) -> Collected:
    """Mark the replicas of blobs whose grace is over for deletion, those released first."""
    rows = change.db.execute(
        "SELECT sha256, size_bytes FROM blobs WHERE released_at_ms <= ? AND released_at_ms IS NOT NULL"
        " AND collected_at IS NULL ORDER BY released_at_ms, sha256 LIMIT ?",
        (change.at_ms - command.grace_ms, command.rows_max),
    ).fetchall()
    blobs = blob_bytes = marked = 0
    for sha256, size_bytes in rows:
        if blobs + marked >= command.rows_max:
            break
        marked += _mark_for_deletion(change, sha256)
        blobs, blob_bytes = blobs + 1, blob_bytes + size_bytes
    return Collected(blobs=blobs, bytes=blob_bytes, replicas=marked, more=blobs + marked >= command.rows_max)


def collect_over_quota(change: Change, command: CollectOverQuota) -> Collected:
    """Collect blobs of buckets that use more on the disks than their quota, up to that excess."""
    blobs = blob_bytes = marked = 0
    for bucket_id, excess_bytes in quotas.over(change.db):
        rows = change.db.execute(
            "SELECT sha256, size_bytes FROM blobs WHERE released_by = ? AND released_by <> ''"
            " AND collected_at IS NULL AND released_at_ms <= ? ORDER BY released_at_ms, sha256 LIMIT ?",
            (bucket_id, change.at_ms - command.grace_ms, command.rows_max),
        ).fetchall()
        for sha256, size_bytes in rows:
            if excess_bytes <= 0 or blobs + marked >= command.rows_max:
                break
            marked += _mark_for_deletion(change, sha256)
            blobs, blob_bytes = blobs + 1, blob_bytes + size_bytes
            excess_bytes -= size_bytes
    return Collected(blobs=blobs, bytes=blob_bytes, replicas=marked, more=blobs + marked >= command.rows_max)


def collect_purged(change: Change, command: CollectPurged) -> Collected:
    """Collect noted content that no file refers to, and forget the notes of what files refer to again."""
    rows = change.db.execute(
        f"SELECT b.sha256, b.size_bytes, b.reference_count {_PURGED} ORDER BY p.at_ms, p.sha256 LIMIT ?",
        (change.at_ms - command.grace_ms, command.rows_max),
    ).fetchall()
    blobs = blob_bytes = marked = 0
    for sha256, size_bytes, references in rows:
        if blobs + marked >= command.rows_max:
            break
        if references:
            change.db.execute("DELETE FROM purged_blobs WHERE sha256 = ?", (sha256,))
            continue
        marked += _mark_for_deletion(change, sha256)
        blobs, blob_bytes = blobs + 1, blob_bytes + size_bytes
    return Collected(blobs=blobs, bytes=blob_bytes, replicas=marked, more=len(rows) == command.rows_max)


def is_purged(db: sqlite3.Connection, at_ms: int, grace_ms: int) -> bool:
    """Return whether a CollectPurged at this time would find anything."""
    (is_found,) = db.execute(f"SELECT EXISTS (SELECT 1 {_PURGED})", (at_ms - grace_ms,)).fetchone()
    return bool(is_found)


def purged_bytes(db: sqlite3.Connection) -> int:
    """Return the bytes of noted content that is about to leave nodes that are not down, once each."""
    row = db.execute(
        "SELECT IFNULL(SUM(b.size_bytes), 0) FROM purged_blobs p JOIN blobs b USING (sha256)"
        f" WHERE b.reference_count = 0 AND EXISTS ({_REPLICA_UP})",
        (DOWN,),
    ).fetchone()
    return int(row[0])


def is_over_quota(db: sqlite3.Connection, at_ms: int, grace_ms: int) -> bool:
    """Return whether a CollectOverQuota at this time would find anything; reads only indexes."""
    statement = (
        "SELECT EXISTS (SELECT 1 FROM blobs WHERE released_by = ? AND released_by <> ''"
        " AND collected_at IS NULL AND released_at_ms <= ?)"
    )
    until_ms = at_ms - grace_ms
    return any(db.execute(statement, (bucket_id, until_ms)).fetchone()[0] for bucket_id, _ in quotas.over(db))


def _count(db: sqlite3.Connection, *, blobs: int, size_bytes: int) -> None:
    db.execute(
        "UPDATE blob_totals SET blobs = blobs + ?, bytes = bytes + ? WHERE one = 1", (blobs, size_bytes)
    )


def _mark_for_deletion(change: Change, sha256: str) -> int:
    """Mark the replicas of a blob for deletion; return how many.

    A blob without replicas is deleted at once.
    """
    if replicas.forget_unheld(change.db, sha256):
        return 0
    quotas.collect(change.db, sha256)
    change.db.execute("UPDATE blobs SET collected_at = ? WHERE sha256 = ?", (change.log_index, sha256))
    return change.db.execute(
        "UPDATE blob_replicas SET doomed_at = ? WHERE sha256 = ? AND doomed_at IS NULL",
        (change.log_index, sha256),
    ).rowcount
