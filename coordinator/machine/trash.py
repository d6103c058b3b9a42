"""Deletion, and the trash: a deleted file can be restored until its time there is over.

A file in the trash has no row in `files`: every reader, list, name and link finds nothing, and its bucket
counts neither the file nor its bytes. The trash has the rows as one document, and the file's reference to its
blob, so that its content stays on the disks.

A backup is in the trash before its parent, since no backup that another one names is deleted. The parent goes
for good only after it: so a backup in the trash can be restored until its last day.
"""

import sqlite3
from typing import Any, Final

from msgspec import UNSET, Struct

from ca.errors import Conflict, InvalidRequest, NotFound
from coordinator.machine import blobs, files, folders
from coordinator.machine.execution import holds, kept_rows, protection, quotas, states
from coordinator.machine.execution.access import (
    Level,
    User,
    level_on_bucket,
    require_bucket_level,
    require_file_level,
    require_user,
)
from coordinator.machine.execution.change import Change, Question
from coordinator.machine.execution.pages import Condition, Listing, read_page
from metadata.model.listed_records import RestoredFile, Squeezed, TrashedFile, TrashPage
from metadata.model.records import BACKUP, DEFAULT_BUCKET_ID
from metadata.protocol.commands import DeleteFile, ProtectFile, PurgeFile, RestoreFile, SqueezeTrash
from metadata.protocol.queries import ListTrash

OVER_QUOTA_ROWS_MAX: Final = 100  # that one deletion makes room for; the next one continues

_COLUMNS: Final = (
    "t.file_uuid, t.kind, t.bucket_id, t.owner_id, t.filename, t.path, t.size_bytes, t.blob_sha256,"
    " t.parent_backup_uuid, t.deleted_by, t.deleted_at_ms, t.due_at_ms, t.sequence"
)

# For _Facts.
_FACTS: Final = (
    f"f.filename, {folders.PATH_COLUMN}, IFNULL(b.parent_backup_uuid, ''), f.due_at_ms, p.until_ms,"
    " s.trash_days, k.quota_bytes"
)
_BUCKET: Final = "JOIN buckets k USING (bucket_id) LEFT JOIN bucket_safety s USING (bucket_id)"
_OWN: Final = (
    "LEFT JOIN protected_files p ON p.sequence = f.sequence LEFT JOIN backups b ON b.sequence = f.sequence"
)


class _Kept(Struct, frozen=True):
    """A row of the trash, without the document. `owner_id`: "" if that user is gone."""

    file: TrashedFile
    sequence: int
    owner_id: str


class _Facts(Struct, frozen=True):
    """The facts about a file and its bucket for a deletion. `trash_days` None: as the cluster has it."""

    filename: str
    path: str | None
    parent: str
    retained_until_ms: int | None
    protected_until_ms: int | None
    trash_days: int | None
    quota_bytes: int


def delete(change: Change, command: DeleteFile) -> None:
    """Move a file to the trash, or delete it for good. Needs admin on the file.

    These are deleted for good: uploads, files whose retention is over, files of a bucket without a trash, and
    those for which the command says so. The owner of a partial upload and the admins of its bucket may
    delete it too.
    """
    row = files.require(
        change, command.caller, command.file_uuid, Level.ADMIN, command.kind, also_partial=not command.kind
    )
    files.require_removable(change.db, row)
    user = require_user(change.users, command.caller)
    facts = _facts(change.db, row)
    if facts.protected_until_ms and row.blob_sha256:
        protection.require_override(user, facts.protected_until_ms, command.override_protection)
    due_ms = _due_ms(change, command, row, facts)
    needed_ms = _children_due_ms(change.db, row.file_uuid) if row.kind == BACKUP and row.blob_sha256 else 0
    if needed_ms and command.for_good is True:
        raise Conflict("A backup in the trash builds on this one. Delete that one for good first.")
    states.require_of_file(change, row.sequence, command.unchanged_since_ms)
    if due_ms or needed_ms:
        _put(change, row, facts, user, max(due_ms, needed_ms))
        return
    files.remove(change, row, for_good=command.for_good is True)
    if command.for_good is True and row.blob_sha256:
        blobs.note_purged(change, row.blob_sha256)


def restore(change: Change, command: RestoreFile) -> RestoredFile:
    """Bring a file back from the trash, and the backups there that it builds on."""
    user = require_user(change.users, command.caller)
    chain = [_require(change, user, command.file_uuid)]
    while (parent := chain[-1].file.parent_backup_uuid) and not _is_live(change.db, parent):
        if _find(change.db, parent) is None:
            raise Conflict(f"The backup {parent}, which this one builds on, is gone for good.")
        chain.append(_require(change, user, parent))
    bucket_ids = {kept.sequence: command.bucket_id or kept.file.bucket_id for kept in chain}
    for bucket_id in sorted(set(bucket_ids.values())):
        size_bytes = sum(k.file.size_bytes for k in chain if bucket_ids[k.sequence] == bucket_id)
        _require_place(change, user, bucket_id, size_bytes)
    for kept in reversed(chain):
        _write(change, user, kept, bucket_ids[kept.sequence])
    return RestoredFile(
        file_uuid=command.file_uuid,
        kind=chain[0].file.kind,
        bucket_id=bucket_ids[chain[0].sequence],
        parents=[kept.file.file_uuid for kept in chain[1:]],
    )


def purge(change: Change, command: PurgeFile) -> None:
    """Delete a file in the trash for good. Needs admin on it."""
    kept = _require(change, require_user(change.users, command.caller), command.file_uuid)
    if _children_due_ms(change.db, command.file_uuid):
        raise Conflict("A backup in the trash builds on this one. Delete that one for good first.")
    _end(change, kept.sequence, kept.file.blob_sha256, kept.file.bucket_id, is_urgent=True)


def protect(change: Change, command: ProtectFile) -> int:
    """Protect a file, or extend that; return until when. Needs admin on the file.

    Raises InvalidRequest for an end before the present one, Conflict for a file that is about to expire.
    """
    row = files.require(change, command.caller, command.file_uuid, Level.ADMIN)
    if row.status == "tombstoned":
        raise Conflict("The retention period of this file has passed.")
    end_ms = protection.checked_end_ms(change, command.until_ms, command.ttl_seconds)
    if end_ms < protection.until_ms(change.db, row.sequence):
        raise InvalidRequest("protected_until: the file is protected for longer, which cannot be shortened.")
    protection.extend(change, row.sequence, end_ms)
    return end_ms


def squeeze(change: Change, command: SqueezeTrash) -> Squeezed:
    """Delete the oldest files for good until `wanted_bytes` are released: the disks are almost full."""
    released = gone = 0
    rows = _oldest(change.db, "", command.rows_max)
    for sequence, sha256, bucket_id, size_bytes in rows:
        if released >= command.wanted_bytes:
            break
        released += size_bytes * _end(change, sequence, sha256, bucket_id, is_urgent=True)
        gone += 1
    return Squeezed(files=gone, bytes=released, more=len(rows) == command.rows_max)


def has_children(db: sqlite3.Connection, file_uuid: str) -> bool:
    """Return whether a backup in the trash builds on this one."""
    return _children_due_ms(db, file_uuid) > 0


def end_due(change: Change, rows_max: int, put_off_ms: int) -> tuple[int, int]:
    """Delete what was in the trash long enough; return the rows that were looked at, and those that went.

    A backup that another one in the trash needs is postponed.
    """
    rows = change.db.execute(
        "SELECT sequence, file_uuid, blob_sha256, bucket_id FROM trash WHERE due_at_ms <= ?"
        " ORDER BY due_at_ms, sequence LIMIT ?",
        (change.at_ms, rows_max),
    ).fetchall()
    gone = 0
    for sequence, file_uuid, sha256, bucket_id in rows:
        if has_children(change.db, file_uuid):
            change.db.execute(
                "UPDATE trash SET due_at_ms = ? WHERE sequence = ?", (change.at_ms + put_off_ms, sequence)
            )
        else:
            _end(change, sequence, sha256, bucket_id, is_urgent=False)
            gone += 1
    return len(rows), gone


def list_page(question: Question, query: ListTrash) -> TrashPage:
    """Return one page, what was deleted first first: the caller's files, for admins all.

    With `bucket_id`, all files of that bucket for its admins.
    """
    user = require_user(question.users, query.caller)
    candidates, filters = list[Condition](), list[Condition]()
    if query.bucket_id:
        candidates.append(Condition("t.bucket_id = ?", (query.bucket_id,)))
    if not user.is_admin and not _is_bucket_admin(question, user, query.bucket_id):
        candidates = [Condition("t.owner_id = ?", (user.user_id,))]
        filters = [Condition("t.sequence > ?", (_born(question.db, user.user_id),))]
        if query.bucket_id:
            filters.append(Condition("t.bucket_id = ?", (query.bucket_id,)))
    listing = Listing(
        columns=_COLUMNS,
        table="trash t",
        sequence="t.sequence",
        candidates=tuple(candidates),
        filters=tuple(filters),
    )
    rows, next_cursor = read_page(question.db, listing, cursor=query.cursor, limit=query.limit)
    return TrashPage([TrashedFile(*row[:-1]) for row in rows], next_cursor)


def _facts(db: sqlite3.Connection, row: files.FileRow) -> _Facts:
    found = db.execute(
        f"SELECT {_FACTS} FROM files f {_BUCKET} {_OWN} WHERE f.sequence = ?", (row.sequence,)
    ).fetchone()
    return _Facts(*found)


def _due_ms(change: Change, command: DeleteFile, row: files.FileRow, facts: _Facts) -> int:
    """Return when a file leaves the trash, at most at the end of its retention; 0 if it does not go there."""
    if command.trash_ms is UNSET or command.for_good is True or row.status != "available":
        return 0
    stays_ms = command.trash_ms if facts.trash_days is None else facts.trash_days * protection.DAY_MS
    due_ms = change.at_ms + stays_ms
    if facts.retained_until_ms is not None:
        due_ms = min(due_ms, facts.retained_until_ms)
    return due_ms if due_ms > change.at_ms else 0


def _put(change: Change, row: files.FileRow, facts: _Facts, user: User, due_at_ms: int) -> None:
    """Move the rows of a file with content to the trash."""
    document = kept_rows.read(change.db, row.sequence, row.kind)
    holds.begin(change, row.blob_sha256, row.sequence)
    files.take_out(change, row, has_upload=False)
    change.db.execute(
        "INSERT INTO trash (sequence, file_uuid, kind, bucket_id, owner_id, filename, path, size_bytes,"
        " blob_sha256, parent_backup_uuid, deleted_by, deleted_at_ms, due_at_ms, document)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            change.log_index,
            row.file_uuid,
            row.kind,
            row.bucket_id,
            row.owner_id,
            facts.filename,
            folders.path_of(facts.path),
            row.size_bytes,
            row.blob_sha256,
            facts.parent,
            user.user_id,
            change.at_ms,
            due_at_ms,
            document,
        ),
    )
    if facts.quota_bytes:
        _keep_quota(change, row.bucket_id, facts.quota_bytes)


def _write(change: Change, user: User, kept: _Kept, bucket_id: str) -> None:
    """Move the rows back, into this bucket. A file whose owner is gone belongs to who restores it."""
    file, owner_id = kept.file, kept.owner_id or user.user_id
    (document,) = change.db.execute(
        "SELECT document FROM trash WHERE sequence = ?", (kept.sequence,)
    ).fetchone()
    change.db.execute("DELETE FROM trash WHERE sequence = ?", (kept.sequence,))
    kept_rows.write(change.db, document, bucket_id=bucket_id, owner_id=owner_id, at_ms=change.at_ms)
    change.db.execute(
        "UPDATE buckets SET file_count = file_count + 1, used_bytes = used_bytes + ?,"
        f" {states.NEXT} WHERE bucket_id = ?",
        (file.size_bytes, change.at_ms, bucket_id),
    )


def _end(change: Change, sequence: int, sha256: str, bucket_id: str, *, is_urgent: bool) -> int:
    """Delete a file in the trash for good; return 1 if no other file has its content.

    `is_urgent`: that leaves the disks soon, not after the grace of gc.
    """
    change.db.execute("DELETE FROM trash WHERE sequence = ?", (sequence,))
    is_last = blobs.release(change, sha256, bucket_id, sequence, for_good=is_urgent)
    if is_last and is_urgent:
        blobs.note_purged(change, sha256)
    return int(is_last)


def _keep_quota(change: Change, bucket_id: str, quota_bytes: int) -> None:
    """Let the oldest files of a bucket's trash go while it has more bytes than the quota, not the newest."""
    (excess_bytes,) = change.db.execute(
        "SELECT bytes - ? FROM trash_totals WHERE bucket_id = ?", (quota_bytes, bucket_id)
    ).fetchone()
    if excess_bytes <= 0:
        return
    for sequence, sha256, _, size_bytes in _oldest(change.db, bucket_id, OVER_QUOTA_ROWS_MAX):
        if excess_bytes <= 0 or sequence == change.log_index:
            break
        _end(change, sequence, sha256, bucket_id, is_urgent=False)
        excess_bytes -= size_bytes


def _oldest(db: sqlite3.Connection, bucket_id: str, count: int) -> list[tuple[int, str, str, int]]:
    """Return what was deleted first and may go: sequence, content, bucket, size. `bucket_id` "": of any.

    A backup comes before its parent, so removing them in this order leaves no backup without its parent.
    Left out are parents of backups in the trash of another bucket.
    """
    where, values = ("t.bucket_id = ? AND", [bucket_id]) if bucket_id else ("", [])
    elsewhere = (
        "NOT EXISTS (SELECT 1 FROM trash c WHERE c.parent_backup_uuid = t.file_uuid"
        " AND c.parent_backup_uuid <> '' AND c.bucket_id <> t.bucket_id)"
        if bucket_id
        else "1"
    )
    rows: list[tuple[int, str, str, int]] = db.execute(
        "SELECT t.sequence, t.blob_sha256, t.bucket_id, t.size_bytes FROM trash t"
        f" WHERE {where} {elsewhere} ORDER BY t.sequence LIMIT ?",
        (*values, count),
    ).fetchall()
    return rows


def _children_due_ms(db: sqlite3.Connection, file_uuid: str) -> int:
    (due_at_ms,) = db.execute(
        "SELECT IFNULL(MAX(due_at_ms), 0) FROM trash"
        " WHERE parent_backup_uuid = ? AND parent_backup_uuid <> ''",
        (file_uuid,),
    ).fetchone()
    return int(due_at_ms)


def _require_place(change: Change, user: User, bucket_id: str, size_bytes: int) -> None:
    """Raise unless the user may put files of this size into the bucket.

    Raises Conflict if it is gone, Forbidden, and what `quotas.require_room` does.
    """
    row = change.db.execute("SELECT owner_id FROM buckets WHERE bucket_id = ?", (bucket_id,)).fetchone()
    if row is None:
        raise Conflict("The bucket of this file is gone. Name one to restore it to.")
    if bucket_id != DEFAULT_BUCKET_ID:
        require_bucket_level(change, user, Level.WRITE, owner_id=row[0], bucket_id=bucket_id)
    quotas.require_room(change.db, bucket_id, size_bytes)


def _require(scope: Change | Question, user: User, file_uuid: str) -> _Kept:
    """Return a file in the trash, if the user has admin on it. Raises NotFound, Forbidden."""
    kept = _find(scope.db, file_uuid)
    if kept is None:
        raise NotFound("There is no such file in the trash.")
    require_file_level(
        scope,
        user,
        Level.ADMIN,
        owner_id=kept.owner_id,
        bucket_id=kept.file.bucket_id,
        sequence=0,  # its own permissions are in the trash as well
    )
    return kept


def _find(db: sqlite3.Connection, file_uuid: str) -> _Kept | None:
    row: tuple[Any, ...] | None = db.execute(
        f"SELECT {_COLUMNS} FROM trash t WHERE t.file_uuid = ?", (file_uuid,)
    ).fetchone()
    if row is None:
        return None
    file, sequence = TrashedFile(*row[:-1]), int(row[-1])
    born = _born(db, file.owner_id)
    return _Kept(file, sequence, file.owner_id if 0 <= born < sequence else "")


def _born(db: sqlite3.Connection, user_id: str) -> int:
    """Return the log index of the creation of a user, -1 if there is none.

    An id may be used again after its deletion. Files that were deleted before are not that user's.
    """
    row = db.execute("SELECT sequence FROM users WHERE user_id = ? AND deleted = 0", (user_id,)).fetchone()
    return -1 if row is None else int(row[0])


def _is_live(db: sqlite3.Connection, file_uuid: str) -> bool:
    return db.execute("SELECT 1 FROM files WHERE file_uuid = ?", (file_uuid,)).fetchone() is not None


def _is_bucket_admin(question: Question, user: User, bucket_id: str) -> bool:
    if not bucket_id:
        return False
    row = question.db.execute("SELECT owner_id FROM buckets WHERE bucket_id = ?", (bucket_id,)).fetchone()
    owner_id = "" if row is None else row[0]
    return level_on_bucket(question, user, owner_id=owner_id, bucket_id=bucket_id) >= Level.ADMIN
