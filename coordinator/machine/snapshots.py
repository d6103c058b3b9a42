"""Snapshots of the metadata: which are kept, whose content stays on the disks, and files that come back.

A snapshot is begun before its copy is made, and kept when the copy is complete: in between the entries of the
copy are unknown, so all content that is released stays. `holds` says what a snapshot holds.
"""

import sqlite3
from dataclasses import replace
from typing import Any, Final

import msgspec
from msgspec import UNSET

from ca.errors import Conflict, InvalidRequest, NotFound
from coordinator.machine import backups, blobs, folders, project_files, replicas, vms
from coordinator.machine.execution.access import User, require_admin
from coordinator.machine.execution.change import Change, Question
from metadata.model.records import BACKUP, PROJECT_FILE, REMOVED, VM
from metadata.model.snapshot_records import (
    EVICTED,
    EXPIRED,
    HELD,
    EndedHolds,
    HeldContent,
    RevivedFile,
    SnapshotFile,
    SnapshotFilePage,
    SnapshotPage,
    SnapshotRecord,
)
from metadata.protocol.commands import (
    CreateBackup,
    CreateProjectFile,
    CreateVm,
    EndHolds,
    KeepSnapshot,
    ReviveFile,
    StartSnapshot,
    StoredContent,
)
from metadata.protocol.queries import GetSnapshot, ListSnapshots

HOLDING_MAX: Final = 500  # beyond, the oldest lose their content: a job that runs each minute is a mistake
LISTED_MAX: Final = 100  # that hold nothing any more

_COLUMNS: Final = (
    "snapshot_id, coordinator_id, log_index, taken_at_ms, hold, held_until_ms, size_bytes, files, sent_to,"
    " held_blobs, held_bytes, EXISTS (SELECT 1 FROM coordinators c"
    f" WHERE c.coordinator_id = kept_snapshots.coordinator_id AND c.role <> '{REMOVED}')"
)
_FILE_COLUMNS: Final = (
    f"f.file_uuid, f.kind, f.bucket_id, b.name, f.owner_id, f.filename, {folders.PATH_COLUMN}, f.size_bytes,"
    " f.blob_sha256, COALESCE(k.parent_backup_uuid, ''), f.created_at_ms, f.sequence"
)
# Content below the oldest snapshot that holds any time: its hold is over.
_OVER: Final = (
    "FROM held_blobs h JOIN kept_snapshots s ON s.sequence = h.snapshot WHERE h.snapshot <"
    f" COALESCE((SELECT MIN(sequence) FROM kept_snapshots WHERE hold = '{HELD}'), {2**62})"
)


def begin(change: Change, command: StartSnapshot) -> int:
    """Begin a snapshot; return its number."""
    db, until_ms = change.db, change.at_ms + command.hold_ms
    close_unfinished(db)
    db.execute(
        "UPDATE kept_snapshots SET held_until_ms = ? WHERE hold = ? AND held_until_ms > ?",
        (until_ms, HELD, until_ms),
    )
    db.execute(
        "INSERT INTO kept_snapshots (sequence, snapshot_id, coordinator_id, log_index, taken_at_ms, hold,"
        " held_until_ms, size_bytes, files, sent_to, held_blobs, held_bytes)"
        " VALUES (?, '', ?, NULL, ?, ?, ?, 0, 0, '', 0, 0)",
        (
            change.log_index,
            command.coordinator_id,
            change.at_ms,
            HELD if command.hold_ms else EXPIRED,
            until_ms,
        ),
    )
    _evict_before(
        db,
        "SELECT sequence FROM kept_snapshots WHERE hold = ? ORDER BY sequence DESC LIMIT 1 OFFSET ?",
        HELD,
        HOLDING_MAX,
    )
    db.execute(
        "DELETE FROM kept_snapshots WHERE hold <> ? AND held_blobs = 0 AND (log_index IS NOT NULL AND"
        " snapshot_id = '' OR sequence <= (SELECT sequence FROM kept_snapshots"
        " WHERE hold <> ? ORDER BY sequence DESC LIMIT 1 OFFSET ?))",
        (HELD, HELD, LISTED_MAX),
    )
    return change.log_index


def keep(change: Change, command: KeepSnapshot) -> None:
    """Record what became of a snapshot. Raises NotFound."""
    log_index = command.log_index if command.snapshot_id else command.sequence
    known = change.db.execute(
        "UPDATE kept_snapshots SET snapshot_id = ?, log_index = ?, size_bytes = ?, files = ?, sent_to = ?"
        " WHERE sequence = ?",
        (
            command.snapshot_id,
            max(log_index, command.sequence),
            command.size_bytes,
            command.files,
            command.sent_to,
            command.sequence,
        ),
    ).rowcount
    if not known:
        raise NotFound("There is no such snapshot.")


def close_unfinished(db: sqlite3.Connection) -> None:
    """Note that a snapshot has failed whose maker is gone: it holds what was there when it began."""
    db.execute("UPDATE kept_snapshots SET log_index = sequence WHERE log_index IS NULL")


def end_holds(change: Change, command: EndHolds) -> EndedHolds:
    """End the holds whose time is over, and release what they held."""
    db = change.db
    db.execute(
        "UPDATE kept_snapshots SET hold = ? WHERE hold = ? AND held_until_ms <= ?",
        (EXPIRED, HELD, change.at_ms),
    )
    evicted = ""
    if command.evict and not _is_any_over(db):
        evicted = _evict_before(
            db,
            "SELECT sequence FROM kept_snapshots WHERE hold = ? AND held_blobs > 0"
            " ORDER BY sequence LIMIT 1 OFFSET ?",
            HELD,
            0,
        )
    rows = db.execute(
        f"SELECT h.sha256, h.size_bytes, s.hold {_OVER} ORDER BY h.snapshot, h.sha256 LIMIT ?",
        (command.rows_max,),
    ).fetchall()
    for sha256, _, hold in rows:
        blobs.end_hold(change, sha256, is_urgent=hold == EVICTED)
    size_bytes = sum(size for _, size, _ in rows)
    return EndedHolds(len(rows), size_bytes, evicted, more=len(rows) == command.rows_max)


def is_due(db: sqlite3.Connection, at_ms: int) -> bool:
    """Return whether an EndHolds at this time would find anything."""
    (is_late,) = db.execute(
        "SELECT EXISTS (SELECT 1 FROM kept_snapshots WHERE hold = ? AND held_until_ms <= ?)", (HELD, at_ms)
    ).fetchone()
    return bool(is_late) or _is_any_over(db)


def may_evict(db: sqlite3.Connection) -> bool:
    """Return whether an EndHolds that evicts would find anything."""
    row = db.execute(
        "SELECT 1 FROM kept_snapshots WHERE held_blobs > 0 AND (hold <> ? OR log_index IS NOT NULL) LIMIT 1",
        (HELD,),
    ).fetchone()
    return row is not None


def held(db: sqlite3.Connection, at_ms: int) -> HeldContent:
    """Return how much content snapshots hold."""
    row = db.execute(
        "SELECT COALESCE(SUM(hold = ? AND snapshot_id <> ''), 0), COALESCE(SUM(held_blobs), 0),"
        " COALESCE(SUM(held_bytes), 0),"
        " COALESCE(SUM(hold = ? AND held_until_ms > ?), 0) FROM kept_snapshots",
        (HELD, EVICTED, at_ms),
    ).fetchone()
    return HeldContent(snapshots=row[0], blobs=row[1], bytes=row[2], evicted=row[3])


def get(question: Question, query: GetSnapshot) -> SnapshotRecord:
    """Return a snapshot. Admin only. Raises NotFound."""
    require_admin(question.users, query.caller)
    row = question.db.execute(
        f"SELECT {_COLUMNS} FROM kept_snapshots WHERE snapshot_id = ? AND snapshot_id <> ''"
        " ORDER BY sequence DESC LIMIT 1",
        (query.snapshot_id,),
    ).fetchone()
    if row is None:
        raise NotFound("There is no such snapshot.")
    return _record(row)


def list_page(question: Question, query: ListSnapshots) -> SnapshotPage:
    """Return one page of snapshots, oldest first. Admin only."""
    require_admin(question.users, query.caller)
    rows = question.db.execute(
        f"SELECT {_COLUMNS}, sequence FROM kept_snapshots WHERE snapshot_id <> '' AND sequence > ?"
        " ORDER BY sequence LIMIT ?",
        (query.cursor, query.limit + 1),
    ).fetchall()
    page = rows[: query.limit]
    return SnapshotPage([_record(row) for row in page], page[-1][-1] if len(rows) > query.limit else 0)


def list_files(
    db: sqlite3.Connection, *, bucket_id: str, filename: str, cursor: int, limit: int
) -> SnapshotFilePage:
    """Return a page of the files with content in the state of a snapshot, oldest first.

    `filename` is the beginning of a name, "" for any.
    """
    rows = db.execute(
        f"SELECT {_FILE_COLUMNS} FROM files f JOIN buckets b ON b.bucket_id = f.bucket_id"
        " LEFT JOIN backups k ON k.sequence = f.sequence WHERE f.status = 'available' AND f.sequence > ?"
        " AND ? IN ('', f.bucket_id) AND substr(f.filename, 1, ?) = ? ORDER BY f.sequence LIMIT ?",
        (cursor, bucket_id, len(filename), filename, limit + 1),
    ).fetchall()
    files = [
        SnapshotFile(
            file_uuid=row[0],
            kind=row[1],
            bucket_id=row[2],
            bucket_name=row[3],
            owner_id=row[4],
            filename=row[5],
            path=folders.path_of(row[6]),
            size_bytes=row[7],
            blob_sha256=row[8],
            parent_backup_uuid=row[9],
            created_at_ms=row[10],
        )
        for row in rows[:limit]
    ]
    return SnapshotFilePage(files, rows[limit - 1][-1] if len(rows) > limit else 0)


def revive(change: Change, command: ReviveFile) -> RevivedFile:
    """Create a file with the record and content of one in a snapshot. Raises Conflict if it is gone."""
    admin = require_admin(change.users, command.caller)
    content = command.create.content
    if content is UNSET:
        raise InvalidRequest("create: has no content.")
    (collected,) = change.db.execute(
        "SELECT EXISTS (SELECT 1 FROM blobs WHERE sha256 = ? AND collected_at IS NOT NULL)", (content.sha256,)
    ).fetchone()
    holders = [] if collected else replicas.holders(change.db, content.sha256)
    if not holders:
        raise Conflict("The content of this file has left the disks: no snapshot holds it any more.")
    create = msgspec.structs.replace(
        command.create, caller=command.caller, content=_found(content, holders, change.log_index)
    )
    owner = _owner(change.db, admin, command)
    match create:
        case CreateProjectFile():
            kind = PROJECT_FILE
            project_files.create(change, create, owner)
        case CreateVm():
            kind = VM
            vms.create(change, create, owner)
        case CreateBackup():
            kind = BACKUP
            backups.create(change, create, owner)
    return RevivedFile(create.file_uuid, kind, create.bucket_id, owner.user_id)


def _found(content: StoredContent, holders: list[str], log_index: int) -> StoredContent:
    return msgspec.structs.replace(content, replicas=holders, as_of=log_index)


def _owner(db: sqlite3.Connection, admin: User, command: ReviveFile) -> User:
    """Return the user whose the file is, with the permissions of the admin who revives it."""
    is_same = db.execute(
        "SELECT 1 FROM users WHERE user_id = ? AND sequence = ? AND deleted = 0",
        (command.owner_id, command.owner_sequence),
    ).fetchone()
    return admin if is_same is None else replace(admin, user_id=command.owner_id)


def _is_any_over(db: sqlite3.Connection) -> bool:
    return db.execute(f"SELECT 1 {_OVER} LIMIT 1").fetchone() is not None


def _evict_before(db: sqlite3.Connection, which: str, *values: str | int) -> str:
    """End the holds up to the snapshot that `which` finds; return its id, "" if none has ended."""
    row = db.execute(which, values).fetchone()
    if row is None:
        return ""
    names = db.execute(
        "UPDATE kept_snapshots SET hold = ? WHERE hold = ? AND log_index IS NOT NULL AND sequence <= ?"
        " RETURNING sequence, snapshot_id",
        (EVICTED, HELD, row[0]),
    ).fetchall()
    return max(names)[1] if names else ""


def _record(row: tuple[Any, ...]) -> SnapshotRecord:
    return SnapshotRecord(
        snapshot_id=row[0],
        coordinator_id=row[1],
        log_index=row[2],
        taken_at_ms=row[3],
        hold=row[4],
        held_until_ms=row[5],
        size_bytes=row[6],
        files=row[7],
        sent_to=row[8],
        held_blobs=row[9],
        held_bytes=row[10],
        is_readable=bool(row[11]),
    )
