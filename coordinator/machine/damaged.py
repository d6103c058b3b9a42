"""Damaged copies: what nodes have in quarantine, and which bytes are known to be wrong there.

A damaged copy is no replica and counts for nothing. But bytes that are wrong in one copy may be sound in
another, so the log remembers which nodes have one. Bytes that are wrong in every copy of a blob that no node
has whole are *gone*. All other bytes can be read, and while none is gone the blob can be made whole again.

Bytes that are not known to be wrong may be wrong nevertheless: a copy is read to its end only after it was
reported. So `gone` never contains too much, and may contain too little.
"""

import json
import sqlite3
from collections.abc import Sequence
from typing import Final

from coordinator.machine.execution.change import Change, Question
from metadata.model.replica_records import DamagedBlob, DamagedCopy, DamagedPage, NamedFile
from metadata.protocol.queries import ListDamagedBlobs, ListDamagedCopies, ListLastSources
from runtime.bounds import Span

FILES_SHOWN_MAX: Final = 10  # of those with the same content
LAST_SOURCES_MAX: Final = 1_000  # copies of one node that are examined for one answer
_encode = json.JSONEncoder(separators=(",", ":")).encode


def note(change: Change, sha256: str, node_id: str, spans: Sequence[Span]) -> None:
    """Record that this node has a damaged copy of a known blob; `recount` of the blob follows."""
    change.db.execute(
        "INSERT OR REPLACE INTO damaged_copies (sha256, node_id, spans) VALUES (?, ?, ?)",
        (sha256, node_id, _encode(join_spans(spans))),
    )


def forget(db: sqlite3.Connection, sha256: str, node_id: str) -> bool:
    """Record that this node no longer has a damaged copy; return whether it had one.

    The copy may be gone, or a replica has replaced it. `recount` of the blob follows.
    """
    removed = db.execute(
        "DELETE FROM damaged_copies WHERE sha256 = ? AND node_id = ?", (sha256, node_id)
    ).rowcount
    return bool(removed)


def refresh(db: sqlite3.Connection, sha256: str, *, is_unheld: bool) -> None:
    """Update the gone bytes of one blob. `is_unheld`: files need it, and no node has it whole."""
    copies = of_blob(db, sha256) if is_unheld else []
    if not copies:
        db.execute("DELETE FROM damaged_blobs WHERE sha256 = ?", (sha256,))
        return
    gone = common_spans([copy.spans for copy in copies])
    db.execute(
        "INSERT OR REPLACE INTO damaged_blobs (sha256, gone, gone_bytes) VALUES (?, ?, ?)",
        (sha256, _encode(gone), size_of(gone)),
    )


def of_blob(db: sqlite3.Connection, sha256: str) -> list[DamagedCopy]:
    """Return the damaged copies of a blob, by node."""
    rows = db.execute(
        "SELECT node_id, spans FROM damaged_copies WHERE sha256 = ? ORDER BY node_id", (sha256,)
    ).fetchall()
    return [DamagedCopy(node_id=node_id, spans=_decode(spans)) for node_id, spans in rows]


def gone_spans(db: sqlite3.Connection, sha256: str) -> list[Span]:
    """Return the bytes of a blob that no copy has."""
    row = db.execute("SELECT gone FROM damaged_blobs WHERE sha256 = ?", (sha256,)).fetchone()
    return [] if row is None else _decode(row[0])


def list_page(question: Question, query: ListDamagedBlobs) -> DamagedPage:
    """Return blobs that no node has whole, by sha256: either those with gone bytes, or those without."""
    rows = question.db.execute(
        "SELECT d.sha256, b.size_bytes, d.gone FROM damaged_blobs d JOIN blobs b ON b.sha256 = d.sha256"
        " WHERE (d.gone_bytes > 0) = ? AND d.sha256 > ? ORDER BY d.sha256 LIMIT ?",
        (int(query.gone), query.after, query.limit + 1),
    ).fetchall()
    return DamagedPage(
        blobs=[_blob(question.db, *row) for row in rows[: query.limit]], more=len(rows) > query.limit
    )


def list_copies(question: Question, query: ListDamagedCopies) -> list[str]:
    """Return the sha256 of a node's damaged copies, ascending."""
    rows = question.db.execute(
        "SELECT sha256 FROM damaged_copies WHERE node_id = ? AND sha256 > ? ORDER BY sha256 LIMIT ?",
        (query.node_id, query.after, query.limit),
    ).fetchall()
    return [sha256 for (sha256,) in rows]


def list_last_sources(question: Question, query: ListLastSources) -> list[DamagedBlob]:
    """Return blobs with bytes that only a node's damaged copy has."""
    return last_sources(question.db, query.node_id, query.limit)


def last_sources(db: sqlite3.Connection, node_id: str, limit: int) -> list[DamagedBlob]:
    """Return as `list_last_sources`: by sha256, at most `limit`; examines LAST_SOURCES_MAX copies."""
    rows = db.execute(
        "SELECT d.sha256, b.size_bytes, d.gone FROM damaged_copies c"
        " JOIN damaged_blobs d ON d.sha256 = c.sha256 JOIN blobs b ON b.sha256 = c.sha256"
        " WHERE c.node_id = ? ORDER BY c.sha256 LIMIT ?",
        (node_id, LAST_SOURCES_MAX),
    ).fetchall()
    found = [row for row in rows if _is_last_source(db, row[0], row[1], node_id)]
    return [_blob(db, *row) for row in found[:limit]]


def clear(db: sqlite3.Connection, node_id: str, rows_max: int) -> list[str]:
    """Forget up to `rows_max` copies of a removed node; return their blobs. `recount` of these follows."""
    rows = db.execute(
        "SELECT sha256 FROM damaged_copies WHERE node_id = ? ORDER BY sha256 LIMIT ?", (node_id, rows_max)
    ).fetchall()
    for (sha256,) in rows:
        forget(db, sha256, node_id)
    return [sha256 for (sha256,) in rows]


def has_copies(db: sqlite3.Connection, node_id: str) -> bool:
    """Return whether this node has a damaged copy."""
    row = db.execute("SELECT 1 FROM damaged_copies WHERE node_id = ? LIMIT 1", (node_id,)).fetchone()
    return row is not None


def join_spans(spans: Sequence[Span]) -> list[Span]:
    """Return the same bytes as ascending spans that do not touch."""
    found: list[Span] = []
    for start, stop in sorted(spans):
        if start >= stop:
            continue
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(stop, found[-1][1]))
        else:
            found.append((start, stop))
    return found


def common_spans(copies: Sequence[Sequence[Span]]) -> list[Span]:
    """Return the bytes that are in the spans of every copy. There must be at least one copy."""
    common = join_spans(copies[0])
    for spans in copies[1:]:
        common = _intersection(common, join_spans(spans))
    return common


def size_of(spans: Sequence[Span]) -> int:
    """Return how many bytes the spans have."""
    return sum(stop - start for start, stop in spans)


def _intersection(left: Sequence[Span], right: Sequence[Span]) -> list[Span]:
    """Return the bytes in both; each is ascending and does not overlap itself."""
    found: list[Span] = []
    at = 0
    for start, stop in left:
        while at < len(right) and right[at][1] <= start:
            at += 1
        for other_start, other_stop in right[at:]:
            if other_start >= stop:
                break
            found.append((max(start, other_start), min(stop, other_stop)))
    return found


def _without(spans: Sequence[Span], removed: Sequence[Span]) -> list[Span]:
    """Return the bytes in the first and not in the second; both as `join_spans` returns them."""
    if not spans:
        return []
    edges = [0, *(edge for span in removed for edge in span), max(stop for _, stop in spans)]
    remaining = [(start, stop) for start, stop in zip(edges[::2], edges[1::2], strict=True) if start < stop]
    return _intersection(spans, remaining)


def _is_last_source(db: sqlite3.Connection, sha256: str, size_bytes: int, node_id: str) -> bool:
    copies = of_blob(db, sha256)
    others = [copy.spans for copy in copies if copy.node_id != node_id]
    own = next(copy.spans for copy in copies if copy.node_id == node_id)
    needed = common_spans(others) if others else [(0, size_bytes)]
    return bool(_without(needed, join_spans(own)))


def _blob(db: sqlite3.Connection, sha256: str, size_bytes: int, spans: str) -> DamagedBlob:
    files = db.execute(
        "SELECT file_uuid, filename FROM"
        " (SELECT file_uuid, filename, sequence FROM files WHERE blob_sha256 = ?"
        " UNION ALL SELECT file_uuid, filename, sequence FROM trash WHERE blob_sha256 = ?)"
        " ORDER BY sequence LIMIT ?",
        (sha256, sha256, FILES_SHOWN_MAX),
    ).fetchall()
    marked = db.execute(
        "SELECT node_id FROM blob_replicas WHERE sha256 = ? AND doomed_at IS NOT NULL ORDER BY node_id",
        (sha256,),
    ).fetchall()
    return DamagedBlob(
        sha256=sha256,
        size_bytes=size_bytes,
        gone=_decode(spans),
        copies=[copy.node_id for copy in of_blob(db, sha256)],
        files=[NamedFile(file_uuid=file_uuid, filename=filename) for file_uuid, filename in files],
        doomed=[node_id for (node_id,) in marked],
    )


def _decode(spans: str) -> list[Span]:
    return [(start, stop) for start, stop in json.loads(spans)]
