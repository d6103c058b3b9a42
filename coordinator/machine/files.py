"""The row that every stored file has, of any kind.

This module creates it, finds it if the caller has permission, and removes it.
"""

import sqlite3
from typing import Any

from msgspec import UNSET, Struct

from ca.errors import Conflict, InvalidRequest, NotFound
from coordinator.machine import blobs, folders
from coordinator.machine.execution import protection, quotas, states
from coordinator.machine.execution.access import (
    Level,
    User,
    level_on_file,
    require_bucket_level,
    require_file_level,
    require_user,
)
from coordinator.machine.execution.change import Change, Question, rules_in_force
from coordinator.machine.execution.pages import (
    Condition,
)
from metadata.model import rules
from metadata.model.records import BACKUP, DEFAULT_BUCKET_ID, PARTIAL, Caller
from metadata.protocol.commands import UpdateFile
from metadata.protocol.queries import CheckNewFile

_IS_FILE = Condition("f.kind <> ?", (PARTIAL,))  # for lists of every kind
_WINDOW_ROWS_MIN = 256  # candidates that a list of what is shared reads at once


# Of `files f`, for `fields_of`.
FILE_COLUMNS = (
    "f.file_uuid, f.bucket_id, f.owner_id, f.filename, f.content_type, f.size_bytes, f.blob_sha256, f.status,"
    f" f.created_at_ms, f.updated_at_ms, f.retention_hours, f.due_at_ms, {folders.PATH_COLUMN},"
    f" {protection.UNTIL_COLUMN}"
)


# Of `files f`, for `row_of` and `permitted`.
ROW_COLUMNS = (
    "f.file_uuid, f.sequence, f.kind, f.bucket_id, f.owner_id, f.status, f.size_bytes, f.expected_sha256,"
    " f.blob_sha256"
)
# SQL for how long an available file stays, NULL for ever: a command may name more than a hundred years.
RETENTION_MS = "MIN(retention_hours, 876000) * 3600000"


class FileRow(Struct, frozen=True):
    """The fields of a file for the rules. `size_bytes` is None until known; `sequence` is the fastest key."""

    file_uuid: str
    sequence: int
    kind: str
    bucket_id: str
    owner_id: str
    status: str
    size_bytes: int | None
    expected_sha256: str
    blob_sha256: str


class NewFile(Struct, frozen=True, kw_only=True):
    """The fields of a new file in a creating command."""

    file_uuid: str
    kind: str = ""
    bucket_id: str
    filename: str = ""
    content_type: str = ""
    size_bytes: int | None
    expected_sha256: str = ""
    retention_hours: int | None = None
    path: str = ""


def require(
    scope: Change | Question,
    caller: Caller,
    file_uuid: str,
    level: Level,
    kind: str = "",
    *,
    also_partial: bool = False,
) -> FileRow:
    """The file's row, if the caller has `level` on it. A file of another kind ("" is any) is not found.

    `also_partial`: as `permitted` has it. Raises Unauthorized, NotFound or Forbidden, in this order.
    """
    user = require_user(scope.users, caller)
    row = scope.db.execute(
        f"SELECT {ROW_COLUMNS} FROM files f WHERE f.file_uuid = ?", (file_uuid,)
    ).fetchone()
    return permitted(scope, user, row, level, kind, also_partial=also_partial)


def permitted(
    scope: Change | Question,
    user: User,
    row: tuple[Any, ...] | None,
    level: Level,
    kind: str = "",
    *,
    also_partial: bool = False,
) -> FileRow:
    """Check a row like `require`. A partial upload is visible only as such, and only to its owner.

    `also_partial`: treat it as any file, so that those who have `level` on its bucket find it too.
    """
    if row is None:
        raise NotFound("There is no such file.")
    file = row_of(row)
    is_hidden = file.kind == PARTIAL and not also_partial and (not kind or file.owner_id != user.user_id)
    if kind not in ("", file.kind) or is_hidden:
        raise NotFound("There is no such file.")
    require_file_level(
        scope, user, level, owner_id=file.owner_id, bucket_id=file.bucket_id, sequence=file.sequence
    )
    return file


def level(scope: Change | Question, user: User, file: FileRow) -> Level:
    """Return the user's level on a file."""
    return level_on_file(
        scope, user, owner_id=file.owner_id, bucket_id=file.bucket_id, sequence=file.sequence
    )


def row_of(row: tuple[Any, ...]) -> FileRow:
    """A FileRow from a row that begins with ROW_COLUMNS; further columns are the caller's."""
    return FileRow(row[0], row[1], row[2], row[3], row[4], row[5], row[6], row[7], row[8] or "")


def check_new(scope: Change | Question, user: User, new: NewFile, *, given_back_bytes: int = 0) -> None:
    """Raises unless the user may create this file in its bucket and the bucket has room for it.

    Every user may in the default bucket, in others it takes write. `given_back_bytes`: reserved until then.
    """
    row = scope.db.execute(
        "SELECT owner_id, EXISTS (SELECT 1 FROM files WHERE file_uuid = ?),"
        " EXISTS (SELECT 1 FROM trash WHERE file_uuid = ?) FROM buckets WHERE bucket_id = ?",
        (new.file_uuid, new.file_uuid, new.bucket_id),
    ).fetchone()
    if row is None:
        raise InvalidRequest("bucket_id: there is no such bucket.")
    owner_id, is_taken, is_in_trash = row
    if new.bucket_id != DEFAULT_BUCKET_ID:
        require_bucket_level(scope, user, Level.WRITE, owner_id=owner_id, bucket_id=new.bucket_id)
    quotas.require_room(scope.db, new.bucket_id, (new.size_bytes or 0) - given_back_bytes)
    if is_taken:
        raise InvalidRequest("file_uuid: a file with this id exists.")
    if is_in_trash:
        raise Conflict("A file with this id or Idempotency-Key is in the trash. Restore or delete it there.")


def check(question: Question, query: CheckNewFile) -> None:
    """Whether the caller may create such a file now; raises what that would be refused with."""
    new = NewFile(file_uuid=query.file_uuid, bucket_id=query.bucket_id, size_bytes=query.size_bytes)
    check_new(question, require_user(question.users, query.caller), new)


def insert(change: Change, user: User, new: NewFile) -> FileRow:
    """Write the row of a file that `check_new` let through."""
    row = FileRow(
        file_uuid=new.file_uuid,
        sequence=change.log_index,
        kind=new.kind,
        bucket_id=new.bucket_id,
        owner_id=user.user_id,
        status="pending",
        size_bytes=new.size_bytes,
        expected_sha256=new.expected_sha256,
        blob_sha256="",
    )
    change.db.execute(
        "INSERT INTO files (sequence, file_uuid, kind, bucket_id, owner_id, filename, content_type,"
        " size_bytes, expected_sha256, status, retention_hours, created_at_ms, updated_at_ms)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            row.sequence,
            row.file_uuid,
            row.kind,
            row.bucket_id,
            row.owner_id,
            new.filename,
            new.content_type,
            row.size_bytes,
            row.expected_sha256,
            row.status,
            new.retention_hours,
            change.at_ms,
            change.at_ms,
        ),
    )
    if new.path:
        folders.place(change, row.sequence, new.path)
    if new.kind != PARTIAL:
        change.db.execute(
            f"UPDATE buckets SET file_count = file_count + 1, {states.NEXT} WHERE bucket_id = ?",
            (change.at_ms, new.bucket_id),
        )
    return row


def labels_named(change: Change, command: UpdateFile) -> dict[str, str]:
    """The columns of name and content type that a change names, with their new values."""
    if rules_in_force(change.db) < rules.FILES_ARE_RENAMED:
        return {}
    named = {"filename": command.filename, "content_type": command.content_type}
    return {column: value for column, value in named.items() if isinstance(value, str)}


def require_removable(db: sqlite3.Connection, row: FileRow) -> None:
    """Raises Conflict for a backup that others name as their parent, and for a part of a final upload."""
    if row.kind == PARTIAL and (final := final_of(db, row.file_uuid)):
        raise Conflict(f"This upload is a part of {final} by now: give that up, and its parts go with it.")
    if row.kind != BACKUP:
        return
    named = db.execute(
        "SELECT 1 FROM backups WHERE parent_backup_uuid = ? AND parent_backup_uuid <> '' LIMIT 1",
        (row.file_uuid,),
    ).fetchone()
    if named is not None:
        raise Conflict("Another backup builds on this one.")


def final_of(db: sqlite3.Connection, file_uuid: str) -> str:
    """The final upload that a partial one is a part of, "" for none."""
    row = db.execute("SELECT part_of FROM parts WHERE file_uuid = ?", (file_uuid,)).fetchone()
    return "" if row is None else str(row[0])


def remove_parts(change: Change, file_uuid: str) -> int:
    """Take the parts of a final upload away, which have reserved nothing any more; how many there were."""
    parts = "SELECT file_uuid FROM parts WHERE part_of = ?"
    return change.db.execute(f"DELETE FROM files WHERE file_uuid IN ({parts})", (file_uuid,)).rowcount


def remove(change: Change, row: FileRow, *, for_good: bool = False) -> int:
    """Take a file's rows away and drop its reference to a blob; how many parts its upload had.

    `for_good`: as in `blobs.release`.
    """
    parts = take_out(change, row)
    if row.blob_sha256:
        blobs.release(change, row.blob_sha256, row.bucket_id, row.sequence, for_good=for_good)
    return parts


def take_out(change: Change, row: FileRow, *, has_upload: bool = True) -> int:
    """Take a file's rows away, and not its reference to a blob; how many parts its upload had.

    The row of its kind goes with it, its upload with these parts, its permissions and its public tokens.
    """
    parts = remove_parts(change, row.file_uuid) if has_upload else 0
    used_bytes = (row.size_bytes or 0) if row.blob_sha256 else 0
    reserved_bytes = quotas.of_upload(change.db, row.file_uuid) if has_upload else 0
    change.db.execute("DELETE FROM files WHERE sequence = ?", (row.sequence,))
    if row.kind != PARTIAL:
        change.db.execute(
            "UPDATE buckets SET file_count = file_count - 1, used_bytes = used_bytes - ?,"
            f" {states.NEXT} WHERE bucket_id = ?",
            (used_bytes, change.at_ms, row.bucket_id),
        )
    quotas.add_reserved(change.db, row.bucket_id, -reserved_bytes)
    return parts


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
        "retention_hours": UNSET if row[10] is None else row[10],
        "due_at_ms": UNSET if row[11] is None else row[11],
        "path": UNSET if row[12] is None else folders.path_of(row[12]),
        "protected_until_ms": UNSET if row[13] is None else row[13],
    }
