"""The content of a file: its record together with the nodes that have its bytes."""

import sqlite3

import msgspec

from ca.errors import Gone, NotAvailable
from coordinator.machine import files, manifests, replicas
from coordinator.machine.execution.access import Level, reads_lastingly
from coordinator.machine.execution.change import Change, Question
from coordinator.model.records import PROJECT_FILE, VM, ContentRecord, FileRecord
from coordinator.protocol.commands import CompleteUpload
from coordinator.protocol.queries import GetContent, GetTicketContent


def get(question: Question, query: GetContent | GetTicketContent) -> ContentRecord:
    """The record and the nodes that have the bytes. Needs read."""
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
    """Raises Gone or NotAvailable unless the content can be read now."""
    if row.status == "tombstoned":
        raise Gone("The retention period of this file has passed.")
    if row.status != "available":
        raise NotAvailable(f"This file is {row.status}: its content is not complete.")


def record(db: sqlite3.Connection, file_uuid: str, *, is_reply: bool = False) -> ContentRecord:
    """The record of an available file with its replicas, by node id; `is_reply` as in `files.fields_of`."""
    row = db.execute(
        f"SELECT {files.FILE_COLUMNS}, available_at_ms FROM files WHERE file_uuid = ?", (file_uuid,)
    ).fetchone()
    file = FileRecord(**files.fields_of(row, is_reply=is_reply))
    holders = replicas.holders(db, file.blob_sha256)
    return ContentRecord(file=file, replicas=holders, available_at_ms=row[-1])


def describe(change: Change, row: files.FileRow, command: CompleteUpload) -> None:
    """Store what finished content says of itself: the md5 of a VM image, the manifest of a project file."""
    if row.kind == VM:
        change.db.execute("UPDATE vms SET md5 = ? WHERE sequence = ?", (command.md5, row.sequence))
    elif row.kind == PROJECT_FILE and command.manifest is not None:
        manifests.store(change, row.sequence, command.manifest)
