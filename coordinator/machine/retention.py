"""How long a file stays: so many hours from when it became available, or until it is deleted.

`files.due_at_ms` follows from it, by which expiry finds the file; see there.
"""

from typing import Any

from msgspec import UNSET, Struct, UnsetType

from ca.errors import Gone, InvalidRequest
from coordinator.machine.execution import states
from coordinator.machine.execution.change import Change
from metadata.protocol.commands import UpdateFile

HOURS_MAX = 876_000  # a hundred years: a command may name more
_HOUR_MS = 3_600_000


class Retention(Struct, frozen=True):
    """Two columns of a file; both are None if it stays for ever, `due_at_ms` also until it is available."""

    hours: int | None
    due_at_ms: int | None


def plan(change: Change, sequence: int, command: UpdateFile) -> Retention | None:
    """What a command makes of the retention of a file, None for no change.

    Raises Gone for a file whose content is gone by it, InvalidRequest for an end that has passed already.
    """
    hours = command.retention_hours
    if isinstance(hours, UnsetType) or not states.are_distinct(change.db):
        return None
    status, earlier, available_at_ms = change.db.execute(
        "SELECT status, retention_hours, available_at_ms FROM files WHERE sequence = ?", (sequence,)
    ).fetchone()
    if hours == earlier:
        return None
    if status == "tombstoned":
        raise Gone("The retention period of this file has passed.")
    due_at_ms = None
    if hours is not None and status == "available":
        due_at_ms = available_at_ms + min(hours, HOURS_MAX) * _HOUR_MS
        if due_at_ms <= change.at_ms:
            past_hours = (change.at_ms - available_at_ms) // _HOUR_MS
            raise InvalidRequest(
                f"retention_period: it counts from when the file became available, {past_hours} hours ago,"
                " and would be over. Delete the file instead."
            )
    return Retention(hours, due_at_ms)


def store(change: Change, sequence: int, retention: Retention) -> None:
    """Write the retention of the file with this sequence."""
    change.db.execute(
        "UPDATE files SET retention_hours = ?, due_at_ms = ? WHERE sequence = ?",
        (retention.hours, retention.due_at_ms, sequence),
    )


def shown(retention: Retention) -> dict[str, Any]:
    """The retention as fields of a FileRecord."""
    return {
        "retention_hours": UNSET if retention.hours is None else retention.hours,
        "due_at_ms": UNSET if retention.due_at_ms is None else retention.due_at_ms,
    }
