"""The unfinished uploads placed on a node. Shared by `nodes`, which refuses removals, and their list.

The log does not know which nodes of a placement have the acknowledged bytes, only that a write quorum of them
does. So every node in a placement counts as one that has them. There is no index: there are few uploads in
progress, and a node is rarely removed.
"""

import json

from coordinator.machine.execution.change import Change, Question
from metadata.model.records import PlacedUpload, UploadPage
from metadata.protocol.queries import ListNodeUploads

NAMED_MAX = 5  # in a refusal
COUNTED_MAX = 10_000

# A node id has no quotes, nor characters that JSON escapes (ca/identity.py).
_PLACED = "instr(u.placement, ?) > 0 AND u.expires_at_ms > ?"


def list_of_node(question: Question, query: ListNodeUploads) -> UploadPage:
    """Return one page of the uploads that are placed on a node and have not ended."""
    rows = question.db.execute(
        "SELECT u.file_uuid, f.kind, u.placement, u.offset_bytes, u.epoch, u.prefix_sha256"
        " FROM uploads u JOIN files f ON f.file_uuid = u.file_uuid"
        f" WHERE u.file_uuid > ? AND {_PLACED} ORDER BY u.file_uuid LIMIT ?",
        (query.after, _quoted(query.node_id), question.at_ms, query.limit + 1),
    ).fetchall()
    uploads = [
        PlacedUpload(
            file_uuid=file_uuid,
            kind=kind,
            placement=json.loads(placement),
            offset_bytes=offset_bytes,
            epoch=epoch,
            prefix_sha256=prefix_sha256,
        )
        for file_uuid, kind, placement, offset_bytes, epoch, prefix_sha256 in rows[: query.limit]
    ]
    return UploadPage(uploads=uploads, more=len(rows) > query.limit)


def count_of_node(change: Change, node_id: str) -> int:
    """Return how many uploads are placed on a node and have not ended, COUNTED_MAX for as many and more."""
    row = change.db.execute(
        f"SELECT COUNT(*) FROM (SELECT 1 FROM uploads u WHERE {_PLACED} LIMIT {COUNTED_MAX})",
        (_quoted(node_id), change.at_ms),
    ).fetchone()
    return int(row[0])


def named_of_node(change: Change, node_id: str) -> str:
    """Return the names of the first of them for an error message, those with most bytes first."""
    rows = change.db.execute(
        f"SELECT u.file_uuid, u.offset_bytes FROM uploads u WHERE {_PLACED}"
        f" ORDER BY u.offset_bytes DESC, u.file_uuid LIMIT {NAMED_MAX}",
        (_quoted(node_id), change.at_ms),
    ).fetchall()
    return ", ".join(f"{file_uuid} ({offset_bytes} bytes)" for file_uuid, offset_bytes in rows)


def _quoted(node_id: str) -> str:
    return f'"{node_id}"'
