"""The row that every stored file has, of any kind.

This module creates it, finds it if the caller has permission, and removes it; and it lists the files of a
bucket.
"""

import json
import sqlite3
from typing import Any

from msgspec import UNSET, Struct

from ca.errors import Conflict, InvalidRequest, NotFound
from coordinator.machine import blobs
from coordinator.machine.execution import quotas, states
from coordinator.machine.execution.access import (
    Level,
    User,
    level_on_bucket,
    level_on_file,
    own_or_granted,
    require_bucket_level,
    require_file_level,
    require_user,
)
from coordinator.machine.execution.change import Change, Question, rules_in_force
from coordinator.machine.execution.pages import (
    LIST_SCAN_MAX,
    Condition,
    Listing,
    Row,
    file_filters,
    read_page,
)
from metadata.model import rules
from metadata.model.records import BACKUP, DEFAULT_BUCKET_ID, PARTIAL, Caller, FilePage, FileRecord
from metadata.protocol.commands import DeleteFile, UpdateFile
from metadata.protocol.queries import CheckNewFile, ListBucketFiles

_IS_FILE = Condition("f.kind <> ?", (PARTIAL,))  # for lists of every kind
_WINDOW_ROWS_MIN = 256  # candidates that a list of what is shared reads at once


FILE_COLUMNS = (
    "file_uuid, bucket_id, owner_id, filename, content_type, size_bytes, blob_sha256, status,"
    " created_at_ms, updated_at_ms, retention_hours, due_at_ms"
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
        "SELECT owner_id, EXISTS (SELECT 1 FROM files WHERE file_uuid = ?) FROM buckets WHERE bucket_id = ?",
        (new.file_uuid, new.bucket_id),
    ).fetchone()
    if row is None:
        raise InvalidRequest("bucket_id: there is no such bucket.")
    owner_id, is_taken = row
    if new.bucket_id != DEFAULT_BUCKET_ID:
        require_bucket_level(scope, user, Level.WRITE, owner_id=owner_id, bucket_id=new.bucket_id)
    quotas.require_room(scope.db, new.bucket_id, (new.size_bytes or 0) - given_back_bytes)
    if is_taken:
        raise InvalidRequest("file_uuid: a file with this id exists.")


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


def delete(change: Change, command: DeleteFile) -> None:
    """Remove the record and its file, and the reference to its blob. Needs admin on the file.

    A partial upload is removed too: its owner and the admins of its bucket may. No rules say since when,
    because none exists before `UPLOADS_ARE_CONCATENATED`.
    """
    row = require(
        change, command.caller, command.file_uuid, Level.ADMIN, command.kind, also_partial=not command.kind
    )
    require_removable(change.db, row)
    states.require_of_file(change, row.sequence, command.unchanged_since_ms)
    remove(change, row)


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


def remove(change: Change, row: FileRow) -> int:
    """Take a file's rows away and drop its reference to a blob; how many parts its upload had.

    The row of its kind goes with it, its upload with these parts, its permissions and its public tokens.
    """
    parts = remove_parts(change, row.file_uuid)
    used_bytes = (row.size_bytes or 0) if row.blob_sha256 else 0
    reserved_bytes = quotas.of_upload(change.db, row.file_uuid)
    change.db.execute("DELETE FROM files WHERE sequence = ?", (row.sequence,))
    if row.kind != PARTIAL:
        change.db.execute(
            "UPDATE buckets SET file_count = file_count - 1, used_bytes = used_bytes - ?,"
            f" {states.NEXT} WHERE bucket_id = ?",
            (used_bytes, change.at_ms, row.bucket_id),
        )
    quotas.add_reserved(change.db, row.bucket_id, -reserved_bytes)
    if row.blob_sha256:
        blobs.release(change, row.blob_sha256, row.bucket_id)
    return parts


def list_bucket(question: Question, query: ListBucketFiles) -> FilePage:
    """One page of the files in a bucket, oldest first. Needs read on the bucket.

    Of the default bucket everybody sees what it owns, and what was granted on the file itself.
    """
    user = require_user(question.users, query.caller)
    bucket = question.db.execute(
        "SELECT owner_id FROM buckets WHERE bucket_id = ?", (query.bucket_id,)
    ).fetchone()
    if bucket is None:
        raise NotFound("There is no such bucket.")
    held = level_on_bucket(question, user, owner_id=bucket[0], bucket_id=query.bucket_id)
    if held < Level.READ and query.bucket_id == DEFAULT_BUCKET_ID:
        rows, next_cursor = _shared_page(question, user, query)
    else:
        require_bucket_level(question, user, Level.READ, owner_id=bucket[0], bucket_id=query.bucket_id)
        rows, next_cursor = _bucket_page(question.db, query)
    return FilePage([FileRecord(**fields_of(row), kind=row[-2]) for row in rows], next_cursor)


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
    }


def _bucket_page(db: sqlite3.Connection, query: ListBucketFiles) -> tuple[list[Row], int]:
    listing = Listing(
        columns=f"{FILE_COLUMNS}, f.kind, f.sequence",
        table="files f",
        sequence="f.sequence",
        candidates=(Condition("f.bucket_id = ?", (query.bucket_id,)),),
        filters=(_IS_FILE, *file_filters(query)),
    )
    return read_page(db, listing, cursor=query.cursor, limit=query.limit)


def _shared_page(question: Question, user: User, query: ListBucketFiles) -> tuple[list[Row], int]:
    """Return files in the bucket that the user owns or has a permission on, and the next cursor."""
    own = own_or_granted(question, user)
    filters = (own, _IS_FILE, *file_filters(query))
    conditions = " AND ".join(condition.sql for condition in filters)
    statement = (
        f"SELECT {FILE_COLUMNS}, f.kind, f.sequence FROM files f"
        f" WHERE f.sequence IN (SELECT value FROM json_each(?)) AND {conditions} ORDER BY f.sequence"
    )
    values = tuple(value for condition in filters for value in condition.values)
    found: list[Row] = []
    looked_at, after = 0, query.cursor
    while looked_at < LIST_SCAN_MAX:
        wanted = min(max(query.limit + 1, _WINDOW_ROWS_MIN), LIST_SCAN_MAX - looked_at)
        window = _shared_sequences(question.db, user, query.bucket_id, after, wanted)
        found += question.db.execute(statement, (json.dumps(window), *values)).fetchall()
        if len(found) > query.limit:
            return found[: query.limit], found[query.limit - 1][-1]
        if len(window) < wanted:
            return found, 0
        looked_at, after = looked_at + wanted, window[-1]
    return found, after


def _shared_sequences(
    db: sqlite3.Connection, user: User, bucket_id: str, after: int, rows_max: int
) -> list[int]:
    """The next files that the user owns there, or that a permission of its principals is or was on.

    Each part is in the order of an index, so SQLite merges them without reading more than it answers.
    """
    granted = (
        " UNION SELECT file_sequence FROM file_permissions"
        " WHERE principal = ? AND bucket_id = ? AND file_sequence > ?"
    )
    values = [value for principal in user.principals for value in (principal, bucket_id, after)]
    rows = db.execute(
        "SELECT sequence FROM files WHERE bucket_id = ? AND owner_id = ? AND sequence > ?"
        f"{granted * len(user.principals)} ORDER BY 1 LIMIT ?",
        (bucket_id, user.user_id, after, *values, rows_max),
    ).fetchall()
    return [sequence for (sequence,) in rows]
