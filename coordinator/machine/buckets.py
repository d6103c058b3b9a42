"""Buckets: where files lie, with an owner, a quota, and permissions that every file in them inherits."""

import sqlite3
from typing import Any

import msgspec

from ca.errors import Conflict, NotFound
from coordinator.machine.execution import states
from coordinator.machine.execution.access import (
    Level,
    User,
    granted_buckets,
    require_bucket_level,
    require_user,
)
from coordinator.machine.execution.change import Change, Question
from coordinator.model.records import DEFAULT_BUCKET_ID, BucketPage, BucketRecord, Caller
from coordinator.protocol.commands import CreateBucket, DeleteBucket, UpdateBucket
from coordinator.protocol.queries import GetBucket, ListBuckets

_COLUMNS = (
    "bucket_id, name, owner_id, quota_bytes, used_bytes, file_count, created_at_ms, updated_at_ms,"
    " reserved_bytes, sequence"
)
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
    """Change name or quota; None leaves them. Needs admin. A quota below what is used only stops new files.

    The default bucket keeps its name.
    """
    bucket = require(change, command.caller, command.bucket_id, Level.ADMIN)
    name = bucket.name if command.name is None else command.name
    quota_bytes = bucket.quota_bytes if command.quota_bytes is None else command.quota_bytes
    if (name, quota_bytes) == (bucket.name, bucket.quota_bytes):
        states.require(change, bucket.updated_at_ms, command.unchanged_since_ms)
        return bucket
    if name != bucket.name:
        if bucket.bucket_id == DEFAULT_BUCKET_ID:
            raise Conflict("The default bucket keeps its name.")
        _check_name(change.db, bucket.bucket_id, name)
    states.require(change, bucket.updated_at_ms, command.unchanged_since_ms)
    change.db.execute(
        f"UPDATE buckets SET name = ?, quota_bytes = ?, {states.next_state(change.db)} WHERE bucket_id = ?",
        (name, quota_bytes, change.at_ms, bucket.bucket_id),
    )
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
        raise Conflict("There are partial uploads in the bucket, which end within a day of their last byte.")
    states.require(change, bucket.updated_at_ms, command.unchanged_since_ms)
    change.db.execute("DELETE FROM buckets WHERE bucket_id = ?", (bucket.bucket_id,))


def get(question: Question, query: GetBucket) -> BucketRecord:
    """The record. Needs read, but everybody may look at the default bucket's."""
    level = Level.NONE if query.bucket_id == DEFAULT_BUCKET_ID else Level.READ
    return require(question, query.caller, query.bucket_id, level)


def list_page(question: Question, query: ListBuckets) -> BucketPage:
    """One page, oldest first: the default bucket, what the caller owns or was granted; for admins all."""
    user = require_user(question.users, query.caller)
    rows = _rows(question, user, query)
    page = rows[: query.limit]
    return BucketPage([_record(row) for row in page], page[-1][-1] if len(rows) > query.limit else 0)


def require(scope: Change | Question, caller: Caller, bucket_id: str, level: Level) -> BucketRecord:
    """The bucket, if the caller has `level` on it. Raises Unauthorized, NotFound or Forbidden."""
    user = require_user(scope.users, caller)
    row = _row(scope.db, bucket_id)
    if row is None:
        raise NotFound("There is no such bucket.")
    bucket = _record(row)
    require_bucket_level(scope, user, level, owner_id=bucket.owner_id, bucket_id=bucket_id)
    return bucket


def _check_name(db: sqlite3.Connection, bucket_id: str, name: str) -> None:
    """Raises Conflict when another bucket has the name."""
    taken = db.execute(
        "SELECT 1 FROM buckets WHERE name = ? AND bucket_id <> ?", (name, bucket_id)
    ).fetchone()
    if taken:
        raise Conflict("A bucket with this name exists.")


def _rows(question: Question, user: User, query: ListBuckets) -> list[tuple[Any, ...]]:
    """The next rows that the user may see, one more than the page holds if there are as many."""
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
    )
