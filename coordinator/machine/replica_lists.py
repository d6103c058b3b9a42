"""Questions about replicas: what a node should have and should delete, which blobs lack replicas.

Every page is read from an index, so its cost does not depend on the number of blobs.

Tested by tests/unit/coordinator/machine/test_replicas.py.
"""

import json
import sqlite3
from collections.abc import Mapping

from coordinator.machine import damaged
from coordinator.machine.execution.change import Question
from coordinator.machine.replicas import COUNTS, holders
from metadata.model.records import DOWN, RETURNING, BlobRecord
from metadata.model.replica_records import (
    HELD_MAX,
    DeletionPage,
    HeldReplica,
    KnownReplica,
    NodeReplicas,
    ReplicaCounts,
    ReplicaPage,
    ReplicaToDelete,
    ShortBlob,
    ShortPage,
    SolePage,
    SurplusPage,
)
from metadata.protocol.queries import (
    CountCollectable,
    CountSoleReplicas,
    GetNodeReplicas,
    GetReplicaCounts,
    KnownReplicas,
    ListReplicas,
    ListReplicasToDelete,
    ListShortBlobs,
    ListSurplus,
)

COUNTED_MAX = 10_000  # of anything; an answer need not count a million


def list_to_delete(question: Question, query: ListReplicasToDelete) -> DeletionPage:
    """Return the replicas that a node must delete, by sha256.

    A replica is wanted when fewer than the write quorum count without it: those that counted when it was
    marked for deletion may be down since.
    """
    rows, more = _page_of_node(
        question,
        query,
        "b.reference_count > 0 AND (SELECT write_quorum FROM cluster) >"
        " (SELECT COUNT(*) FROM blob_replicas r JOIN nodes n ON n.node_id = r.node_id"
        f"  WHERE r.sha256 = own.sha256 AND {COUNTS})",
        which="AND own.doomed_at IS NOT NULL",
    )
    replicas = [ReplicaToDelete(sha256=name, size_bytes=size, wanted=wanted) for name, size, wanted in rows]
    return DeletionPage(log_index=question.as_of(), replicas=replicas, more=more)


def list_held(question: Question, query: ListReplicas) -> ReplicaPage:
    """Return the replicas of a node in the log, including those marked for deletion, by sha256."""
    rows, more = _page_of_node(question, query, "own.doomed_at IS NOT NULL")
    replicas = [HeldReplica(sha256=name, size_bytes=size, doomed=marked) for name, size, marked in rows]
    return ReplicaPage(log_index=question.as_of(), replicas=replicas, more=more)


def list_known(question: Question, query: KnownReplicas) -> list[KnownReplica]:
    """Return the log's entries of these blobs on one node, by sha256, without unknown ones."""
    marks = ", ".join("?" * len(query.sha256s))
    rows = question.db.execute(
        "SELECT b.sha256, CASE WHEN r.doomed_at IS NOT NULL THEN 'doomed' WHEN r.node_id IS NOT NULL THEN"
        " 'held' WHEN b.reference_count > 0 THEN 'wanted' ELSE 'unreferenced' END,"
        " d.node_id IS NOT NULL"
        " FROM blobs b LEFT JOIN blob_replicas r ON r.sha256 = b.sha256 AND r.node_id = ?"
        " LEFT JOIN damaged_copies d ON d.sha256 = b.sha256 AND d.node_id = ?"
        f" WHERE b.sha256 IN ({marks}) ORDER BY b.sha256",
        (query.node_id, query.node_id, *query.sha256s),
    ).fetchall()
    return [
        KnownReplica(sha256=sha256, state=state, damaged=bool(is_damaged))
        for sha256, state, is_damaged in rows
    ]


def list_short(question: Question, query: ListShortBlobs) -> ShortPage:
    """Return blobs that lack at least `missing_min` replicas, the most endangered first."""
    db = question.db
    (replicas_wanted,) = db.execute("SELECT replicas FROM cluster").fetchone()
    missing = query.after_missing or replicas_wanted + 1
    after = query.after_sha256
    rows: list[tuple[str, int, int]] = []
    while missing >= max(query.missing_min, 1) and len(rows) <= query.limit:
        rows += db.execute(
            "SELECT sha256, size_bytes, missing FROM blobs WHERE missing = ? AND missing > 0 AND sha256 > ?"
            " ORDER BY sha256 LIMIT ?",
            (missing, after, query.limit + 1 - len(rows)),
        ).fetchall()
        missing, after = missing - 1, ""
    return ShortPage(
        log_index=question.as_of(),
        blobs=[_short(db, *row) for row in rows[: query.limit]],
        more=len(rows) > query.limit,
    )


def list_surplus(question: Question, query: ListSurplus) -> SurplusPage:
    """Return blobs that have more replicas than they should, by sha256.

    It takes some 3 us for each blob.
    """
    db = question.db
    (wanted,) = db.execute("SELECT replicas FROM cluster").fetchone()
    rows = db.execute(
        "SELECT sha256, size_bytes, reference_count, (SELECT COUNT(*) FROM blob_replicas r"
        "  WHERE r.sha256 = blobs.sha256 AND r.doomed_at IS NULL)"
        " FROM blobs WHERE reference_count > 0 AND sha256 > ? ORDER BY sha256 LIMIT ?",
        (query.after, query.limit),
    ).fetchall()
    return SurplusPage(
        blobs=[
            BlobRecord(
                sha256=sha256, size_bytes=size_bytes, reference_count=count, replicas=holders(db, sha256)
            )
            for sha256, size_bytes, count, held in rows
            if held > wanted
        ],
        after=rows[-1][0] if rows else query.after,
        more=len(rows) == query.limit,
    )


def counts(question: Question, query: GetReplicaCounts) -> ReplicaCounts:
    """Return how many blobs lack replicas, wait for deletion or are damaged, for metrics and status."""
    del query
    db = question.db
    (wanted,) = db.execute("SELECT replicas FROM cluster").fetchone()
    lacking = "blobs WHERE missing = ? AND missing > 0"
    short = {missing: _count(db, lacking, missing) for missing in range(1, wanted + 1)}
    node_ids = [row[0] for row in db.execute("SELECT node_id FROM nodes ORDER BY node_id").fetchall()]
    marked = {
        node_id: _count(db, "blob_replicas WHERE node_id = ? AND doomed_at IS NOT NULL", node_id)
        for node_id in node_ids
    }
    queued = db.execute("SELECT node_id FROM recounts ORDER BY node_id").fetchall()
    return ReplicaCounts(
        short={missing: count for missing, count in short.items() if count},
        lost=_count(
            db,
            "blobs WHERE missing = ? AND missing > 0 AND NOT EXISTS"
            " (SELECT 1 FROM damaged_blobs d WHERE d.sha256 = blobs.sha256)",
            wanted + 1,
        ),
        damaged=_count(db, "damaged_blobs WHERE (gone_bytes > 0) = 0"),
        gone=_count(db, "damaged_blobs WHERE (gone_bytes > 0) = 1"),
        gone_bytes=_gone_bytes(db),
        unreferenced=_count(db, "blobs WHERE released_at_ms IS NOT NULL AND collected_at IS NULL"),
        doomed={node_id: count for node_id, count in marked.items() if count},
        recounting=[node_id for (node_id,) in queued],
        absent=_held_by(db, 0, 0, missing=wanted),
        last=sum(_held_by(db, 1, 1, missing=lack) for lack in (wanted - 1, wanted)) if wanted > 1 else 0,
        few=_held_by_few(db, short, wanted),
    )


def count_collectable(question: Question, query: CountCollectable) -> int:
    """Return how many blobs a Collect would find now, or how many replicas are marked; at most `limit`."""
    until_ms = question.at_ms - query.grace_ms
    if query.is_doomed:
        row = question.db.execute(
            "SELECT COUNT(*) FROM (SELECT 1 FROM blob_replicas r JOIN blobs b ON b.sha256 = r.sha256"
            " WHERE r.doomed_at IS NOT NULL AND b.released_at_ms <= ? LIMIT ?)",
            (until_ms, query.limit),
        ).fetchone()
        return int(row[0])
    row = question.db.execute(
        "SELECT COUNT(*) FROM (SELECT 1 FROM blobs WHERE released_at_ms <= ? AND released_at_ms IS NOT NULL"
        " AND collected_at IS NULL LIMIT ?)",
        (until_ms, query.limit),
    ).fetchone()
    return int(row[0])


def of_node(question: Question, query: GetNodeReplicas) -> NodeReplicas:
    """Return how many replicas a node has, exactly. Quick also for a million, as totals are stored."""
    row = question.db.execute(
        "SELECT replicas, doomed FROM replica_totals WHERE node_id = ?", (query.node_id,)
    ).fetchone()
    replicas, marked = (0, 0) if row is None else row
    return NodeReplicas(replicas=replicas - marked, doomed=marked)


def count_sole(question: Question, query: CountSoleReplicas) -> SolePage:
    """Return how many blobs only this node has, a page at a time.

    It reads the replicas themselves: `blobs.missing` follows step by step after a node went down.
    """
    rows = question.db.execute(
        "SELECT own.sha256, b.reference_count > 0 AND NOT EXISTS (SELECT 1 FROM blob_replicas r"
        "  WHERE r.sha256 = own.sha256 AND r.doomed_at IS NULL AND r.node_id <> :node_id"
        "   AND r.node_id IN (SELECT value FROM json_each(:others)))"
        " FROM blob_replicas own JOIN blobs b ON b.sha256 = own.sha256"
        " WHERE own.node_id = :node_id AND own.doomed_at IS NULL AND own.sha256 > :after"
        " ORDER BY own.sha256 LIMIT :limit",
        {
            "node_id": query.node_id,
            "others": json.dumps(query.others),
            "after": query.after,
            "limit": query.limit + 1,
        },
    ).fetchall()
    page = rows[: query.limit]
    sole = sum(is_sole for _, is_sole in page)
    return SolePage(sole=sole, after=page[-1][0] if page else query.after, more=len(rows) > query.limit)


def _page_of_node(
    question: Question, query: ListReplicasToDelete | ListReplicas, flag: str, *, which: str = ""
) -> tuple[list[tuple[str, int, bool]], bool]:
    """Return name, size and `flag` (SQL, a truth value) of `own` replicas, and whether more follow."""
    rows = question.db.execute(
        f"SELECT own.sha256, b.size_bytes, {flag}"
        " FROM blob_replicas own JOIN blobs b ON b.sha256 = own.sha256"
        f" WHERE own.node_id = ? {which} AND own.sha256 > ? ORDER BY own.sha256 LIMIT ?",
        (query.node_id, query.after, query.limit + 1),
    ).fetchall()
    return [(name, size, bool(is_so)) for name, size, is_so in rows[: query.limit]], len(rows) > query.limit


def _short(db: sqlite3.Connection, sha256: str, size_bytes: int, missing: int) -> ShortBlob:
    marked = db.execute(
        "SELECT node_id FROM blob_replicas WHERE sha256 = ? AND doomed_at IS NOT NULL ORDER BY node_id",
        (sha256,),
    ).fetchall()
    return ShortBlob(
        sha256=sha256,
        size_bytes=size_bytes,
        missing=missing,
        holders=holders(db, sha256),
        doomed=[node_id for (node_id,) in marked],
        damaged=[copy.node_id for copy in damaged.of_blob(db, sha256)],
    )


def _gone_bytes(db: sqlite3.Connection) -> int:
    """Return how many bytes are gone, of up to COUNTED_MAX blobs."""
    row = db.execute(
        "SELECT COALESCE(SUM(gone_bytes), 0) FROM"
        f" (SELECT gone_bytes FROM damaged_blobs WHERE (gone_bytes > 0) = 1 LIMIT {COUNTED_MAX})"
    ).fetchone()
    return int(row[0])


def _held_by_few(db: sqlite3.Connection, short: Mapping[int, int], wanted: int) -> int:
    """Return how many of the blobs that lack replicas are on too few nodes; all if no node drains."""
    if db.execute("SELECT 1 FROM nodes WHERE draining = 1 LIMIT 1").fetchone() is None:
        return sum(short.values())
    return sum(_held_by(db, 0, wanted - 1, missing=missing) for missing in short)


def _held_by(db: sqlite3.Connection, least: int, most: int, *, missing: int) -> int:
    """Return how many blobs that lack `missing` replicas are on `least` to `most` present nodes.

    Blobs without replicas do not count. A node is present unless it is down, or is back and was not compared
    yet. It reads up to HELD_MAX blobs.
    """
    row = db.execute(
        "SELECT COUNT(*) FROM (SELECT sha256 FROM blobs WHERE missing = :missing AND missing > 0"
        f" LIMIT {HELD_MAX}) AS short WHERE (SELECT COUNT(*) FROM blob_replicas r"
        "  JOIN nodes n ON n.node_id = r.node_id"
        "  WHERE r.sha256 = short.sha256 AND r.doomed_at IS NULL AND n.state NOT IN (:down, :returning))"
        " BETWEEN :least AND :most",
        {"missing": missing, "least": least, "most": most, "down": DOWN, "returning": RETURNING},
    ).fetchone()
    return int(row[0])


def _count(db: sqlite3.Connection, of: str, *values: str | int) -> int:
    """Return how many rows there are; COUNTED_MAX for as many and more."""
    row = db.execute(f"SELECT COUNT(*) FROM (SELECT 1 FROM {of} LIMIT {COUNTED_MAX})", values).fetchone()
    return int(row[0])
