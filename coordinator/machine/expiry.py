"""Expire records whose time has passed: uploads, files, permissions, tokens, burials, replaced token keys.

The full list is: uploads, protections, the retention of files, tombstones, the trash, permissions, public and
join tokens, burials, replaced keys of user tokens, sessions of users, and invitations. An index on the due
time finds them, and a command looks at a bounded number of rows. `files.due_at_ms` is the time of a file's
next step: an available file becomes tombstoned at the end of its retention, and is deleted a tombstone period
later. A protected file is postponed until its protection ends.

A backup is not tombstoned while another one builds on it that is not tombstoned, and it is deleted after all
of those. Until then it is postponed for an hour, so that it does not block others. A postponed upload may be
resumed meanwhile. Of steps that are due at once the newest file's is first: a backup is newer than its
parent, so a chain that is due, or was postponed, ends in one go.
"""

import sqlite3
from typing import Any

from msgspec import Struct

from coordinator.machine import burials, cluster, files, trash
from coordinator.machine.execution import protection, states
from coordinator.machine.execution.change import Change
from coordinator.machine.people import invitations, user_sessions
from metadata.model.jobs import Expired
from metadata.model.records import BACKUP, PARTIAL
from metadata.protocol.commands import EXPIRE_ROWS_MAX, Expire

HOUR_MS = 3_600_000
PUT_OFF_MS = HOUR_MS
PUBLIC_TOKEN_RETENTION_MS = 30 * 24 * HOUR_MS  # after its end: for this time it answers gone, then not found
JOIN_TOKEN_RETENTION_MS = 24 * HOUR_MS  # after its end: an admin can see its use for this time
CHILDREN_LOOKED_AT = 100  # of one backup; more count as one that is still wanted

_DUE = (
    "SELECT EXISTS (SELECT 1 FROM uploads WHERE expires_at_ms <= :now)"
    " OR EXISTS (SELECT 1 FROM files WHERE due_at_ms <= :now)"
    " OR EXISTS (SELECT 1 FROM trash WHERE due_at_ms <= :now)"
    " OR EXISTS (SELECT 1 FROM protected_files WHERE until_ms > 0 AND until_ms <= :now)"
    " OR EXISTS (SELECT 1 FROM bucket_permissions WHERE expires_at_ms <= :now)"
    " OR EXISTS (SELECT 1 FROM file_permissions WHERE expires_at_ms <= :now)"
    " OR EXISTS (SELECT 1 FROM public_tokens WHERE expires_at_ms <= :public_tokens)"
    " OR EXISTS (SELECT 1 FROM join_tokens WHERE expires_at_ms <= :join_tokens)"
    " OR EXISTS (SELECT 1 FROM burials WHERE at_ms <= :burials)"
    " OR EXISTS (SELECT 1 FROM keys WHERE retires_at_ms <= :now)"
    " OR EXISTS (SELECT 1 FROM user_sessions WHERE expires_at_ms <= :user_sessions)"
    " OR EXISTS (SELECT 1 FROM invitations WHERE expires_at_ms <= :invitations)"
)


class _Room(Struct):
    """How many more rows this command may look at."""

    rows: int


def is_due(db: sqlite3.Connection, at_ms: int) -> bool:
    """Return whether an Expire at this time would find anything; reads only indexes."""
    times = {
        "now": at_ms,
        "public_tokens": at_ms - PUBLIC_TOKEN_RETENTION_MS,
        "join_tokens": at_ms - JOIN_TOKEN_RETENTION_MS,
        "burials": at_ms - burials.RETENTION_MS,
        "user_sessions": at_ms - user_sessions.KEPT_MS,
        "invitations": at_ms - invitations.RETENTION_MS,
    }
    return bool(db.execute(_DUE, times).fetchone()[0])


def expire(change: Change, command: Expire) -> Expired:
    """End what is due, including the rows that depend on it; the last file may exceed the bound.

    `more` is false if nothing more is due.
    """
    room = _Room(min(command.rows_max, EXPIRE_ROWS_MAX))
    at_ms = change.at_ms
    uploads = _end_uploads(change, room)
    protections = protection.end_due(change, room.rows) if room.rows > 0 else 0
    room.rows -= protections
    trashed = _end_trash(change, room)
    retained, tombstones = _end_files(change, room, command.tombstone_ms)
    permissions = _delete(change.db, room, "file_permissions", at_ms)
    permissions += _delete(change.db, room, "bucket_permissions", at_ms)
    public_tokens = _delete(change.db, room, "public_tokens", at_ms - PUBLIC_TOKEN_RETENTION_MS)
    join_tokens = _delete_join_tokens(change.db, room, at_ms - JOIN_TOKEN_RETENTION_MS)
    buried = _end_burials(change, room)
    # The reply does not count these: it is stored, and must be that of members that do not know them.
    _delete(change.db, room, "user_sessions", at_ms - user_sessions.KEPT_MS, "session_id")
    _delete(change.db, room, "invitations", at_ms - invitations.RETENTION_MS, "user_id")
    cluster.end_keys(change)
    return Expired(
        uploads=uploads,
        retained=retained,
        tombstones=tombstones,
        permissions=permissions,
        public_tokens=public_tokens,
        join_tokens=join_tokens,
        burials=buried,
        trashed=trashed,
        protections=protections,
        more=room.rows <= 0,
    )


def _end_uploads(change: Change, room: _Room) -> int:
    ended = 0
    while rows := _next(
        change.db,
        room,
        f"SELECT {files.ROW_COLUMNS} FROM uploads u JOIN files f ON f.file_uuid = u.file_uuid"
        " WHERE u.expires_at_ms <= ? ORDER BY u.expires_at_ms, u.file_uuid LIMIT ?",
        change.at_ms,
    ):
        for row in rows:
            if room.rows <= 0:
                break
            file = files.row_of(row)
            if _is_parent(change.db, file) or _is_part(change.db, file):
                change.db.execute(
                    "UPDATE uploads SET expires_at_ms = ? WHERE file_uuid = ?",
                    (change.at_ms + PUT_OFF_MS, file.file_uuid),
                )
                room.rows -= 1
            else:
                _remove(change, room, file)
                ended += 1
    return ended


def _end_files(change: Change, room: _Room, tombstone_ms: int) -> tuple[int, int]:
    """End files whose step is due; return how many were tombstoned, and how many were deleted."""
    retained = tombstones = 0
    while rows := _next(
        change.db,
        room,
        f"SELECT {files.ROW_COLUMNS} FROM files f"
        " WHERE f.due_at_ms <= ? ORDER BY f.due_at_ms, f.sequence DESC LIMIT ?",
        change.at_ms,
    ):
        for row in rows:
            if room.rows <= 0:
                break
            file = files.row_of(row)
            if end_ms := protection.until_ms(change.db, file.sequence):
                _put_off(change, room, file, end_ms)
            elif file.status == "available":
                retained += _tombstone(change, room, file, tombstone_ms)
            elif _is_parent(change.db, file):
                _put_off(change, room, file)
            else:
                _remove(change, room, file)
                tombstones += 1
    return retained, tombstones


def _end_trash(change: Change, room: _Room) -> int:
    gone = 0
    while room.rows > 0:
        looked_at, ended = trash.end_due(change, room.rows, PUT_OFF_MS)
        if not looked_at:
            break
        gone += ended
        room.rows -= looked_at
    return gone


def _tombstone(change: Change, room: _Room, file: files.FileRow, tombstone_ms: int) -> int:
    """Return 1 if it is tombstoned now, 0 if it was postponed."""
    if _is_wanted(change.db, file):
        _put_off(change, room, file)
        return 0
    change.db.execute(
        f"UPDATE files SET status = 'tombstoned', {states.NEXT}, due_at_ms = ? WHERE sequence = ?",
        (change.at_ms, change.at_ms + tombstone_ms, file.sequence),
    )
    room.rows -= 1
    return 1


def _put_off(change: Change, room: _Room, file: files.FileRow, until_ms: int = 0) -> None:
    due_at_ms = max(change.at_ms + PUT_OFF_MS, until_ms)
    change.db.execute("UPDATE files SET due_at_ms = ? WHERE sequence = ?", (due_at_ms, file.sequence))
    room.rows -= 1


def _remove(change: Change, room: _Room, file: files.FileRow) -> None:
    own = change.db.execute(
        "SELECT (SELECT COUNT(*) FROM file_permissions WHERE file_sequence = :sequence)"
        " + (SELECT COUNT(*) FROM public_tokens WHERE file_sequence = :sequence)",
        {"sequence": file.sequence},
    ).fetchone()[0]
    room.rows -= 1 + own + files.remove(change, file)


def _is_parent(db: sqlite3.Connection, file: files.FileRow) -> bool:
    """Return whether another backup builds on this one."""
    return bool(_children(db, file, 1))


def _is_part(db: sqlite3.Connection, file: files.FileRow) -> bool:
    """Return whether it is a part of a final upload, which ends it."""
    return file.kind == PARTIAL and files.final_of(db, file.file_uuid) != ""


def _is_wanted(db: sqlite3.Connection, file: files.FileRow) -> bool:
    """Return whether a backup that is not tombstoned itself builds on this one. It may be in the trash."""
    states = _children(db, file, CHILDREN_LOOKED_AT)
    return len(states) >= CHILDREN_LOOKED_AT or any(status != "tombstoned" for status in states)


def _children(db: sqlite3.Connection, file: files.FileRow, count_max: int) -> list[str]:
    """Return the states of backups that build on this one, the oldest first; those in the trash are last."""
    if file.kind != BACKUP:
        return []
    rows = db.execute(
        "SELECT f.status FROM backups b CROSS JOIN files f ON f.sequence = b.sequence"
        " WHERE b.parent_backup_uuid = ? AND b.parent_backup_uuid <> '' ORDER BY b.sequence LIMIT ?",
        (file.file_uuid, count_max),
    ).fetchall()
    return [status for (status,) in rows] + ["trash"] * trash.has_children(db, file.file_uuid)


def _delete(db: sqlite3.Connection, room: _Room, table: str, until_ms: int, key: str = "sequence") -> int:
    """Delete the rows of a table that ended by then, oldest end first; return how many."""
    if room.rows <= 0:
        return 0
    deleted = db.execute(
        f"DELETE FROM {table} WHERE {key} IN (SELECT {key} FROM {table} WHERE expires_at_ms <= ?"
        f" ORDER BY expires_at_ms, {key} LIMIT ?)",
        (until_ms, room.rows),
    ).rowcount
    room.rows -= deleted
    return deleted


def _delete_join_tokens(db: sqlite3.Connection, room: _Room, until_ms: int) -> int:
    """Delete the tokens that ended by then, with the records of their joins; return how many."""
    deleted = 0
    rows = _next(
        db,
        room,
        "SELECT sequence, token_id FROM join_tokens WHERE expires_at_ms <= ?"
        " ORDER BY expires_at_ms, sequence LIMIT ?",
        until_ms,
    )
    for sequence, token_id in rows:
        if room.rows <= 0:
            break
        joins = db.execute("DELETE FROM joins WHERE token_id = ?", (token_id,)).rowcount
        db.execute("DELETE FROM join_tokens WHERE sequence = ?", (sequence,))
        room.rows -= 1 + joins
        deleted += 1
    return deleted


def _end_burials(change: Change, room: _Room) -> int:
    purged = burials.purge(change, room.rows) if room.rows > 0 else 0
    room.rows -= purged
    return purged


def _next(db: sqlite3.Connection, room: _Room, statement: str, until_ms: int) -> list[tuple[Any, ...]]:
    """Return the rows that are due, as far as there is room."""
    return db.execute(statement, (until_ms, room.rows)).fetchall() if room.rows > 0 else []
