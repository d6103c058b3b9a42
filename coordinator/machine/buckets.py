"""Buckets: they contain files, and have an owner, a quota, and permissions that their files inherit."""

import sqlite3
from typing import Any

import msgspec

from ca.errors import Conflict, InvalidRequest, NotFound
from coordinator.machine.execution import states
from coordinator.machine.execution.access import (
    Level,
    User,
    granted_buckets,
    level_on_bucket,
    require_bucket_level,
    require_user,
)
from coordinator.machine.execution.change import Change, Question
from coordinator.machine.execution.pages import Condition, Listing, read_page
from coordinator.machine.execution.protection import PROTECT_DAYS_MAX
from metadata.model.listed_records import BucketUpload, BucketUploadPage
from metadata.model.records import DEFAULT_BUCKET_ID, BucketPage, BucketRecord, Caller
from metadata.protocol.commands import CreateBucket, DeleteBucket, UpdateBucket
from metadata.protocol.queries import GetBucket, ListBuckets, ListBucketUploads

_OF_SAFETY = "(SELECT {} FROM bucket_safety s WHERE s.bucket_id = buckets.bucket_id)"
_OF_TRASH = "(SELECT {} FROM trash_totals t WHERE t.bucket_id = buckets.bucket_id)"
_COLUMNS = ", ".join(
    (
        "bucket_id, name, owner_id, quota_bytes, used_bytes, file_count, created_at_ms, updated_at_ms",
        "reserved_bytes",
        *map(_OF_SAFETY.format, ("trash_days", "protect_days")),
        *map(_OF_TRASH.format, ("files", "bytes")),
        "(SELECT storage FROM bucket_storage b WHERE b.bucket_id = buckets.bucket_id)",
        "sequence",
    )
)
TRASH_DAYS_MAX = 90
AUTO = "auto"
_OWNED = (
    "SELECT bucket_id FROM"
    " (SELECT bucket_id FROM buckets WHERE owner_id = ? AND sequence > ? ORDER BY sequence LIMIT ?)"
)


def create(change: Change, command: CreateBucket) -> BucketRecord:
    """Create a bucket that the caller owns; any user may."""
    user = require_user(change.users, command.caller)
    is_taken = change.db.execute("SELECT 1 FROM buckets WHERE bucket_id = ?", (command.bucket_id,)).fetchone()
    if is_taken:
        raise Conflict("A bucket with this id exists.")
    _check_name(change.db, command.bucket_id, command.name)
    change.db.execute(
        "INSERT INTO buckets (bucket_id, name, owner_id, quota_bytes, used_bytes, file_count, created_at_ms,"
        " updated_at_ms, sequence) VALUES (?, ?, ?, ?, 0, 0, ?, ?, ?)",
        (
            command.bucket_id,
            command.name,
            user.user_id,
            command.quota_bytes,
            change.at_ms,
            change.at_ms,
            change.log_index,
        ),
    )
    return _record(_row(change.db, command.bucket_id))


def update(change: Change, command: UpdateBucket) -> BucketRecord:
    """Change name, quota, trash, protection or storage. Needs admin.

    A quota below the used bytes only stops new files. The default bucket keeps its name.
    """
    bucket = require(change, command.caller, command.bucket_id, Level.ADMIN)
    name = bucket.name if command.name is None else command.name
    quota_bytes = bucket.quota_bytes if command.quota_bytes is None else command.quota_bytes
    safety = _safety_after(bucket, command)
    storage = _storage(bucket) if command.storage is msgspec.UNSET else command.storage
    known = (bucket.name, bucket.quota_bytes, _safety_of(bucket), _storage(bucket))
    if (name, quota_bytes, safety, storage) == known:
        states.require(bucket.updated_at_ms, command.unchanged_since_ms)
        return bucket
    if name != bucket.name:
        if bucket.bucket_id == DEFAULT_BUCKET_ID:
            raise Conflict("The default bucket keeps its name.")
        _check_name(change.db, bucket.bucket_id, name)
    states.require(bucket.updated_at_ms, command.unchanged_since_ms)
    change.db.execute(
        f"UPDATE buckets SET name = ?, quota_bytes = ?, {states.NEXT} WHERE bucket_id = ?",
        (name, quota_bytes, change.at_ms, bucket.bucket_id),
    )
    if safety != _safety_of(bucket):
        change.db.execute(
            "INSERT INTO bucket_safety (bucket_id, trash_days, protect_days) VALUES (?, ?, ?)"
            " ON CONFLICT (bucket_id) DO UPDATE"
            " SET trash_days = excluded.trash_days, protect_days = excluded.protect_days",
            (bucket.bucket_id, *safety),
        )
    if storage != _storage(bucket):
        change.db.execute("DELETE FROM bucket_storage WHERE bucket_id = ?", (bucket.bucket_id,))
        if storage != AUTO:
            change.db.execute("INSERT INTO bucket_storage VALUES (?, ?)", (bucket.bucket_id, storage))
    return _record(_row(change.db, bucket.bucket_id))


def delete(change: Change, command: DeleteBucket) -> None:
    """Remove an empty bucket with its permissions. Needs admin."""
    bucket = require(change, command.caller, command.bucket_id, Level.ADMIN)
    if bucket.bucket_id == DEFAULT_BUCKET_ID:
        raise Conflict("The default bucket stays.")
    if bucket.file_count:
        raise Conflict(f"The bucket holds {bucket.file_count} files.")
    partial = "SELECT 1 FROM files WHERE bucket_id = ? LIMIT 1"  # which is no file
    if change.db.execute(partial, (bucket.bucket_id,)).fetchone():
        raise Conflict(
            "The bucket has partial uploads, which end within a day of their last byte; the list of its"
            " uploads shows them, and they can be deleted like files."
        )
    states.require(bucket.updated_at_ms, command.unchanged_since_ms)
    change.db.execute("DELETE FROM buckets WHERE bucket_id = ?", (bucket.bucket_id,))


def get(question: Question, query: GetBucket) -> BucketRecord:
    """Return the record. Needs read; every user may read the default bucket's."""
    return _require_shown(question, query.caller, query.bucket_id)


def list_uploads(question: Question, query: ListBucketUploads) -> BucketUploadPage:
    """Return one page of the uploads that have not ended, including partial ones, oldest first. Needs read.

    Callers with admin on the bucket see all of them, others their own, also in the default bucket.
    """
    bucket = _require_shown(question, query.caller, query.bucket_id)
    user = require_user(question.users, query.caller)
    held = level_on_bucket(question, user, owner_id=bucket.owner_id, bucket_id=bucket.bucket_id)
    own = (Condition("f.owner_id = ?", (user.user_id,)),) if held < Level.ADMIN else ()
    listing = Listing(
        columns="f.file_uuid, f.kind, f.owner_id, f.filename, f.size_bytes, u.offset_bytes,"
        " u.reserved_bytes, IFNULL(p.part_of, ''), f.created_at_ms, u.expires_at_ms, f.sequence",
        table="files f",
        joined="JOIN uploads u ON u.file_uuid = f.file_uuid LEFT JOIN parts p ON p.file_uuid = f.file_uuid",
        sequence="f.sequence",
        candidates=(Condition("f.bucket_id = ?", (bucket.bucket_id,)), *own),
        filters=(Condition("f.status IN ('pending', 'uploading')"),),
    )
    rows, next_cursor = read_page(question.db, listing, cursor=query.cursor, limit=query.limit)
    return BucketUploadPage([BucketUpload(*row[:-1]) for row in rows], next_cursor)


def list_page(question: Question, query: ListBuckets) -> BucketPage:
    """Return one page, oldest first: the default bucket, and those that the caller owns or was granted.

    Admins see all.
    """
    user = require_user(question.users, query.caller)
    rows = _rows(question, user, query)
    page = rows[: query.limit]
    return BucketPage([_record(row) for row in page], page[-1][-1] if len(rows) > query.limit else 0)


def require(scope: Change | Question, caller: Caller, bucket_id: str, level: Level) -> BucketRecord:
    """Return the bucket if the caller has `level` on it. Raises Unauthorized, NotFound or Forbidden."""
    user = require_user(scope.users, caller)
    row = _row(scope.db, bucket_id)
    if row is None:
        raise NotFound("There is no such bucket.")
    bucket = _record(row)
    require_bucket_level(scope, user, level, owner_id=bucket.owner_id, bucket_id=bucket_id)
    return bucket


def _require_shown(question: Question, caller: Caller, bucket_id: str) -> BucketRecord:
    """Return the bucket if the caller may see it; every user may see the default one."""
    level = Level.NONE if bucket_id == DEFAULT_BUCKET_ID else Level.READ
    return require(question, caller, bucket_id, level)


def _safety_of(bucket: BucketRecord) -> tuple[int | None, int]:
    """Return the days in the trash, None for those of the cluster, and the days of protection."""
    return None if bucket.trash_days is msgspec.UNSET else bucket.trash_days, bucket.protect_days or 0


def _safety_after(bucket: BucketRecord, command: UpdateBucket) -> tuple[int | None, int]:
    """Return `_safety_of` the bucket once the command is applied. Raises InvalidRequest."""
    trash_days, protect_days = _safety_of(bucket)
    if command.trash_days is not msgspec.UNSET:
        trash_days = command.trash_days
    if command.protect_days is not msgspec.UNSET:
        protect_days = command.protect_days
    if (trash_days or 0) > TRASH_DAYS_MAX:
        raise InvalidRequest(f"trash_days: at most {TRASH_DAYS_MAX}.")
    if protect_days > PROTECT_DAYS_MAX:
        raise InvalidRequest(f"protect_days: at most {PROTECT_DAYS_MAX}.")
    return trash_days, protect_days


def _storage(bucket: BucketRecord) -> str:
    return AUTO if bucket.storage is msgspec.UNSET else bucket.storage


def _check_name(db: sqlite3.Connection, bucket_id: str, name: str) -> None:
    """Raise Conflict if another bucket has the name."""
    taken = db.execute(
        "SELECT 1 FROM buckets WHERE name = ? AND bucket_id <> ?", (name, bucket_id)
    ).fetchone()
    if taken:
        raise Conflict("A bucket with this name exists.")


def _rows(question: Question, user: User, query: ListBuckets) -> list[tuple[Any, ...]]:
    """Return the next rows that the user may see, one more than fits the page if there are as many."""
    after = (query.cursor, query.limit + 1)
    if user.is_admin:
        return question.db.execute(
            f"SELECT {_COLUMNS} FROM buckets WHERE sequence > ? ORDER BY sequence LIMIT ?", after
        ).fetchall()
    granted = granted_buckets(question, user)
    # The plus keeps SQLite from walking all buckets in their order.
    return question.db.execute(
        f"SELECT {_COLUMNS} FROM buckets WHERE bucket_id IN ({_OWNED} UNION {granted.sql} UNION SELECT ?)"
        " AND +sequence > ? ORDER BY +sequence LIMIT ?",
        (user.user_id, *after, *granted.values, DEFAULT_BUCKET_ID, *after),
    ).fetchall()


def _row(db: sqlite3.Connection, bucket_id: str) -> Any:
    return db.execute(f"SELECT {_COLUMNS} FROM buckets WHERE bucket_id = ?", (bucket_id,)).fetchone()


def _record(row: tuple[Any, ...]) -> BucketRecord:
    return BucketRecord(
        bucket_id=row[0],
        name=row[1],
        owner_id=row[2],
        quota_bytes=row[3],
        used_bytes=row[4],
        file_count=row[5],
        created_at_ms=row[6],
        updated_at_ms=row[7],
        reserved_bytes=row[8] or msgspec.UNSET,
        trash_days=msgspec.UNSET if row[9] is None else row[9],
        protect_days=row[10] or msgspec.UNSET,
        trash_files=row[11] or msgspec.UNSET,
        trash_bytes=row[12] or msgspec.UNSET,
        storage=row[13] or msgspec.UNSET,
    )
