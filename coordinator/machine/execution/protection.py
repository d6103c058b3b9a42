"""Protected files are not deleted before a date. Shared by creation, deletion, expiry and updates.

A file is protected while it has a row in `protected_files`. Only `Expire` removes the row, by the earliest of
all times, so a clock that is ahead ends no protection. It can be extended, and not shortened. A row with the
time NOT_AT_ALL is that of a file which its creator has exempted from the rule of its bucket.
"""

import sqlite3
from typing import Final

from msgspec import UNSET, UnsetType

from ca.errors import Forbidden, InvalidRequest, Protected
from coordinator.machine.execution.access import User
from coordinator.machine.execution.change import Change
from runtime.timestamps import rfc3339

DAY_MS: Final = 86_400_000
NOT_AT_ALL: Final = 0
PROTECT_DAYS_MAX: Final = 3660  # ten years: a mistake must not last for ever

# SQL for the end of the protection of one of `files f`, NULL if it is not protected.
UNTIL_COLUMN: Final = (
    "(SELECT NULLIF(until_ms, 0) FROM protected_files WHERE protected_files.sequence = f.sequence)"
)


def until_ms(db: sqlite3.Connection, sequence: int) -> int:
    """Return until when a file is protected; 0 if it is not."""
    row = db.execute("SELECT until_ms FROM protected_files WHERE sequence = ?", (sequence,)).fetchone()
    return 0 if row is None else int(row[0])


def require_override(user: User, end_ms: int, override: bool | UnsetType) -> None:
    """Raise Protected for content that is protected until then, unless an admin of the cluster overrides it.

    Raises Forbidden for an override by another user.
    """
    if override is UNSET or not override:
        raise Protected(f"The file is protected until {rfc3339(end_ms)}.")
    if not user.is_admin:
        raise Forbidden("This needs the role admin: the file is protected.")


def checked_end_ms(change: Change, end_ms: int | UnsetType, ttl_seconds: int | UnsetType) -> int:
    """Return when a protection ends that a command names. Raises InvalidRequest."""
    named_ms = None if isinstance(end_ms, UnsetType) else end_ms
    ends_ms = change.end_ms(named_ms, ttl_seconds)
    if ends_ms is None:
        raise InvalidRequest("protected_until: give it, or the days.")
    if ends_ms > change.at_ms + PROTECT_DAYS_MAX * DAY_MS:
        raise InvalidRequest(f"protected_until: at most {PROTECT_DAYS_MAX} days from now.")
    return ends_ms


def wanted_ms(change: Change, seconds: int | UnsetType) -> int | None:
    """Return until when a creation protects its file; None for nothing said. Raises InvalidRequest."""
    if isinstance(seconds, UnsetType):
        return None
    return checked_end_ms(change, UNSET, seconds) if seconds else NOT_AT_ALL


def extend(change: Change, sequence: int, end_ms: int) -> None:
    """Protect a file until then, or for as long as it is already protected, if that is later."""
    change.db.execute(
        "INSERT INTO protected_files (sequence, until_ms) VALUES (?, ?)"
        " ON CONFLICT (sequence) DO UPDATE SET until_ms = MAX(until_ms, excluded.until_ms)",
        (sequence, end_ms),
    )


def begin(change: Change, sequence: int, bucket_id: str) -> None:
    """Protect a file that has just become available as its bucket says, unless its creator exempted it."""
    row = change.db.execute(
        "SELECT protect_days, EXISTS (SELECT 1 FROM protected_files WHERE sequence = ? AND until_ms = ?)"
        " FROM bucket_safety WHERE bucket_id = ?",
        (sequence, NOT_AT_ALL, bucket_id),
    ).fetchone()
    if row is not None and row[0] and not row[1]:
        extend(change, sequence, change.at_ms + row[0] * DAY_MS)


def end_due(change: Change, rows_max: int) -> int:
    """End the protections whose time is over, the earliest first; return how many."""
    return change.db.execute(
        "DELETE FROM protected_files WHERE sequence IN (SELECT sequence FROM protected_files"
        " WHERE until_ms > ? AND until_ms <= ? ORDER BY until_ms, sequence LIMIT ?)",
        (NOT_AT_ALL, change.at_ms, rows_max),
    ).rowcount
