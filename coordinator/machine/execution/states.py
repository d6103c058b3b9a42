"""The states of a record, identified by its last change. Shared by files, buckets, uploads and expiry.

The time of the last change increases with every change, by at least a millisecond, so no two states of a
record have the same. A change may name the state that it is meant for.
"""

from typing import Final

from msgspec import UnsetType

from ca.errors import PreconditionFailed
from coordinator.machine.execution.change import Change

# SQL that sets `updated_at_ms` of a changed row; its one value is the time of the change.
NEXT: Final = "updated_at_ms = MAX(?, updated_at_ms + 1)"


def time_of_next(change: Change, updated_at_ms: int) -> int:
    """Return the time that NEXT sets in a row that was last changed at `updated_at_ms`."""
    return max(change.at_ms, updated_at_ms + 1)


def require(updated_at_ms: int, named_ms: int | UnsetType) -> None:
    """Raise PreconditionFailed if a change names another state than that of `updated_at_ms`.

    This check is the last one (RFC 9110, section 13.2.1).
    """
    if isinstance(named_ms, int) and named_ms != updated_at_ms:
        raise PreconditionFailed("The record was changed since it was looked at.")


def require_of_file(change: Change, sequence: int, named_ms: int | UnsetType) -> None:
    """Check a file like `require`, if its time was not read yet."""
    if isinstance(named_ms, int):
        row = change.db.execute("SELECT updated_at_ms FROM files WHERE sequence = ?", (sequence,)).fetchone()
        require(row[0], named_ms)
