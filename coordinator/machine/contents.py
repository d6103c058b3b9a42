"""The content of a file: its record with the nodes that have its bytes, and the manifest of a project.

Tested by tests/unit/coordinator/machine/test_stored_content.py.
"""

import sqlite3

import msgspec
from msgspec import UNSET

from ca.errors import Gone, NotAvailable, PayloadTooLarge, Unavailable
from coordinator.machine import blobs, files, replicas
from coordinator.machine.execution import states
from coordinator.machine.execution.access import Level, reads_lastingly
from coordinator.machine.execution.change import Change, Question
from metadata.model.records import PROJECT_FILE, VM, ContentRecord, FileRecord, Manifest
from metadata.protocol.commands import CompleteUpload
from metadata.protocol.queries import GetContent, GetManifest, GetTicketContent
from runtime.bounds import COUNT_MAX

_encode_manifest = msgspec.json.Encoder().encode
_decode_manifest = msgspec.json.Decoder(Manifest).decode


def get(question: Question, query: GetContent | GetTicketContent) -> ContentRecord:
    """Return the record and the nodes that have the bytes. Needs read."""
    row = files.require(question, query.caller, query.file_uuid, Level.READ)
    check_available(row)
    (due_at_ms,) = question.db.execute(
        "SELECT due_at_ms FROM files WHERE sequence = ?", (row.sequence,)
    ).fetchone()
    is_lasting = due_at_ms is None and reads_lastingly(
        question, query.caller, owner_id=row.owner_id, bucket_id=row.bucket_id, sequence=row.sequence
    )
    return msgspec.structs.replace(record(question.db, query.file_uuid), is_lasting=is_lasting)


def check_available(row: files.FileRow) -> None:
    """Raise Gone or NotAvailable unless the content can be read now."""
    if row.status == "tombstoned":
        raise Gone("The retention period of this file has passed.")
    if row.status != "available":
        raise NotAvailable(f"This file is {row.status}: its content is not complete.")


def record(db: sqlite3.Connection, file_uuid: str) -> ContentRecord:
    """Return the record of an available file with its replicas, by node id."""
    row = db.execute(
        f"SELECT {files.FILE_COLUMNS}, f.available_at_ms FROM files f WHERE f.file_uuid = ?", (file_uuid,)
    ).fetchone()
    file = FileRecord(**files.fields_of(row))
    holders = replicas.holders(db, file.blob_sha256)
    return ContentRecord(file=file, replicas=holders, available_at_ms=row[-1])


def describe(change: Change, row: files.FileRow, command: CompleteUpload) -> None:
    """Store the properties of finished content: the md5 of a VM image, the manifest of a project file."""
    if row.kind == VM:
        change.db.execute("UPDATE vms SET md5 = ? WHERE sequence = ?", (command.md5, row.sequence))
    elif row.kind == PROJECT_FILE and command.manifest is not None:
        store_manifest(change, row.sequence, command.manifest)


def make_available(change: Change, row: files.FileRow, command: CompleteUpload) -> None:
    """Make the file available with this content."""
    blobs.refer(change, command.blob_sha256, command.size_bytes, command.replicas)
    patch_offset = None if command.patch_offset is UNSET else command.patch_offset
    change.db.execute(
        "UPDATE files SET status = 'available', blob_sha256 = ?, size_bytes = ?, available_at_ms = ?,"
        f" {states.NEXT}, due_at_ms = ? + {files.RETENTION_MS}, patch_offset = COALESCE(?, patch_offset)"
        " WHERE sequence = ?",
        (command.blob_sha256, command.size_bytes, *(change.at_ms,) * 3, patch_offset, row.sequence),
    )
    describe(change, row, command)
    change.db.execute(
        f"UPDATE buckets SET used_bytes = used_bytes + ?, {states.NEXT} WHERE bucket_id = ?",
        (command.size_bytes, change.at_ms, row.bucket_id),
    )


def require_quorum(change: Change, node_ids: list[str]) -> None:
    """Raise Unavailable unless these are nodes, each once, and enough."""
    write_quorum = change.db.execute("SELECT write_quorum FROM cluster").fetchone()[0]
    known = known_nodes(change, node_ids)
    if known != len(node_ids) or known < write_quorum:
        raise Unavailable(f"{known} known nodes hold the content, {write_quorum} must.")


def require_quota(change: Change, bucket_id: str, size_bytes: int) -> None:
    """Raise PayloadTooLarge if the content of the bucket may not grow by this many bytes."""
    quota_bytes, used_bytes = change.db.execute(
        "SELECT quota_bytes, used_bytes FROM buckets WHERE bucket_id = ?", (bucket_id,)
    ).fetchone()
    if used_bytes + size_bytes > (quota_bytes or COUNT_MAX):
        raise PayloadTooLarge(f"The bucket may hold {quota_bytes or COUNT_MAX} bytes, it holds {used_bytes}.")


def known_nodes(change: Change, node_ids: list[str]) -> int:
    """Return how many of these are nodes of the cluster."""
    marks = ", ".join("?" * len(node_ids))
    statement = f"SELECT COUNT(*) FROM nodes WHERE node_id IN ({marks})"
    return int(change.db.execute(statement, node_ids).fetchone()[0])


def get_manifest(question: Question, query: GetManifest) -> Manifest:
    """Return the manifest of a project file whose upload has ended, also after its retention. Needs read.

    A file without a readable archive has the archive `other`.
    """
    row = files.require(question, query.caller, query.file_uuid, Level.READ, PROJECT_FILE)
    if row.status in ("pending", "uploading"):
        raise NotAvailable(f"This file is {row.status}: its content is not complete.")
    stored = question.db.execute(
        "SELECT document FROM manifests WHERE sequence = ?", (row.sequence,)
    ).fetchone()
    return Manifest(archive="other") if stored is None else _decode_manifest(stored[0])


def store_manifest(change: Change, sequence: int, manifest: Manifest) -> None:
    """Store the manifest of the file with this sequence, once."""
    change.db.execute(
        "INSERT INTO manifests (sequence, document) VALUES (?, ?)",
        (sequence, _encode_manifest(manifest).decode()),
    )
