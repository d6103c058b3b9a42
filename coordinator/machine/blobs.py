"""Blobs: content by its sha256, how many files refer to it, which nodes hold it."""

import sqlite3

from ca.errors import InvalidRequest
from coordinator.machine.change import Change, Question
from coordinator.queries import FindBlob
from coordinator.records import BlobRecord


def find(question: Question, query: FindBlob) -> BlobRecord | None:
    """The blob with this content, or None when no file refers to it."""
    row = question.db.execute(
        "SELECT size_bytes, reference_count FROM blobs WHERE sha256 = ? AND reference_count > 0",
        (query.sha256,),
    ).fetchone()
    if row is None:
        return None
    return BlobRecord(
        sha256=query.sha256,
        size_bytes=row[0],
        reference_count=row[1],
        replicas=replicas(question.db, query.sha256),
    )


def check_size(db: sqlite3.Connection, sha256: str, size_bytes: int) -> None:
    """Raises InvalidRequest when the log knows this content with another size: one of the two reports is
    wrong.
    """
    known = db.execute("SELECT size_bytes FROM blobs WHERE sha256 = ?", (sha256,)).fetchone()
    if known is not None and known[0] != size_bytes:
        raise InvalidRequest(f"size_bytes: content with this sha256 has {known[0]} bytes.")


def refer(change: Change, sha256: str, size_bytes: int, node_ids: list[str]) -> None:
    """One more file refers to this content, which these nodes hold (others may hold it as well)."""
    change.db.execute(
        "INSERT INTO blobs (sha256, size_bytes, reference_count, released_at_ms) VALUES (?, ?, 1, NULL)"
        " ON CONFLICT (sha256) DO UPDATE SET reference_count = reference_count + 1, released_at_ms = NULL",
        (sha256, size_bytes),
    )
    change.db.executemany(
        "INSERT OR IGNORE INTO blob_replicas (sha256, node_id) VALUES (?, ?)",
        [(sha256, node_id) for node_id in node_ids],
    )


def release(change: Change, sha256: str) -> None:
    """One file less refers to this content. The blob stays until it is collected."""
    change.db.execute(
        "UPDATE blobs SET reference_count = reference_count - 1,"
        " released_at_ms = CASE WHEN reference_count = 1 THEN ? ELSE released_at_ms END WHERE sha256 = ?",
        (change.at_ms, sha256),
    )


def replicas(db: sqlite3.Connection, sha256: str) -> list[str]:
    """The nodes that hold a blob, by id."""
    rows = db.execute(
        "SELECT node_id FROM blob_replicas WHERE sha256 = ? ORDER BY node_id", (sha256,)
    ).fetchall()
    return [node_id for (node_id,) in rows]
