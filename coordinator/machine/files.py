"""The row that every stored file has, whatever kind it is: creation, lookup with permission, removal."""

import sqlite3
from typing import Any

from msgspec import Struct

from ca.errors import InvalidRequest, NotFound, PayloadTooLarge
from coordinator.machine import blobs
from coordinator.machine.access import Level, User, require_level, require_user
from coordinator.machine.change import Change, Question
from coordinator.records import DEFAULT_BUCKET_ID, Caller, FileRecord

FILE_COLUMNS = (
    "file_uuid, bucket_id, owner_id, filename, content_type, size_bytes, blob_sha256, status,"
    " created_at_ms, updated_at_ms"
)


# Of `files f`, for `permitted`.
ROW_COLUMNS = (
    "f.sequence, f.kind, f.bucket_id, f.owner_id, f.status, f.size_bytes, f.expected_sha256, f.blob_sha256"
)


class FileRow(Struct, frozen=True):
    """What the rules look at. `size_bytes` is None until it is known; `sequence` is the quickest key."""

    file_uuid: str
    sequence: int
    kind: str
    bucket_id: str
    owner_id: str
    status: str
    size_bytes: int | None
    expected_sha256: str
    blob_sha256: str


class NewFile(Struct, frozen=True):
    """What a creating command says of the file itself."""

    file_uuid: str
    kind: str
    bucket_id: str
    filename: str
    content_type: str
    size_bytes: int | None
    expected_sha256: str
    retention_hours: int | None


def require(
    scope: Change | Question, caller: Caller, file_uuid: str, level: Level, kind: str = ""
) -> FileRow:
    """The file's row, if the caller has `level` on it. A file of another kind ("" is any) is not found.

    Raises Unauthorized, NotFound or Forbidden, in this order.
    """
    user = require_user(scope.users, caller)
    row = scope.db.execute(
        f"SELECT {ROW_COLUMNS} FROM files f WHERE f.file_uuid = ?", (file_uuid,)
    ).fetchone()
    return permitted(user, file_uuid, row, level, kind)


def permitted(
    user: User, file_uuid: str, row: tuple[Any, ...] | None, level: Level, kind: str = ""
) -> FileRow:
    """The same for a row that was read already: it begins with ROW_COLUMNS, the rest is the reader's."""
    if row is None or kind not in ("", row[1]):
        raise NotFound("There is no such file.")
    require_level(user, row[3], level, "file")
    return FileRow(file_uuid, row[0], row[1], row[2], row[3], row[4], row[5], row[6], row[7] or "")


def check_new(db: sqlite3.Connection, user: User, new: NewFile) -> None:
    """Raises unless the user may create this file in its bucket and the bucket has room for it."""
    row = db.execute(
        "SELECT owner_id, quota_bytes, used_bytes, EXISTS (SELECT 1 FROM files WHERE file_uuid = ?)"
        " FROM buckets WHERE bucket_id = ?",
        (new.file_uuid, new.bucket_id),
    ).fetchone()
    if row is None:
        raise InvalidRequest("bucket_id: there is no such bucket.")
    owner_id, quota_bytes, used_bytes, is_taken = row
    if new.bucket_id != DEFAULT_BUCKET_ID:
        require_level(user, owner_id, Level.WRITE, "bucket")
    if quota_bytes and used_bytes + (new.size_bytes or 0) > quota_bytes:
        raise PayloadTooLarge(f"The quota of the bucket is {quota_bytes} bytes, {used_bytes} are used.")
    if is_taken:
        raise InvalidRequest("file_uuid: a file with this id exists.")


def insert(change: Change, user: User, new: NewFile) -> None:
    """Write the row of a file that `check_new` let through."""
    change.db.execute(
        "INSERT INTO files (sequence, file_uuid, kind, bucket_id, owner_id, filename, content_type,"
        " size_bytes, expected_sha256, status, retention_hours, created_at_ms, updated_at_ms)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 'pending', ?, ?, ?)",
        (
            change.log_index,
            new.file_uuid,
            new.kind,
            new.bucket_id,
            user.user_id,
            new.filename,
            new.content_type,
            new.size_bytes,
            new.expected_sha256,
            new.retention_hours,
            change.at_ms,
            change.at_ms,
        ),
    )
    change.db.execute(
        "UPDATE buckets SET file_count = file_count + 1, updated_at_ms = ? WHERE bucket_id = ?",
        (change.at_ms, new.bucket_id),
    )


def remove(change: Change, row: FileRow) -> None:
    """Take a file's rows away (its kind's row and its upload go with it) and drop its reference to a blob."""
    used_bytes = (row.size_bytes or 0) if row.blob_sha256 else 0
    change.db.execute("DELETE FROM files WHERE sequence = ?", (row.sequence,))
    change.db.execute(
        "UPDATE buckets SET file_count = file_count - 1, used_bytes = used_bytes - ?, updated_at_ms = ?"
        " WHERE bucket_id = ?",
        (used_bytes, change.at_ms, row.bucket_id),
    )
    if row.blob_sha256:
        blobs.release(change, row.blob_sha256)


def record(db: sqlite3.Connection, file_uuid: str) -> FileRecord:
    """The record of a file that exists."""
    row = db.execute(f"SELECT {FILE_COLUMNS} FROM files WHERE file_uuid = ?", (file_uuid,)).fetchone()
    assert row is not None
    return FileRecord(**fields_of(row))


def fields_of(row: tuple[Any, ...]) -> dict[str, Any]:
    """The fields of a FileRecord, from a row that begins with FILE_COLUMNS; the rest is the kind's own."""
    return {
        "file_uuid": row[0],
        "bucket_id": row[1],
        "owner_id": row[2],
        "filename": row[3],
        "content_type": row[4],
        "size_bytes": row[5] or 0,
        "blob_sha256": row[6] or "",
        "status": row[7],
        "created_at_ms": row[8],
        "updated_at_ms": row[9],
    }
