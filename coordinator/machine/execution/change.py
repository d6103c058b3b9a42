"""The contexts in which commands are applied and queries answered, with their rules. No I/O but SQLite.

Tested by tests/unit/coordinator/machine/test_later_fields.py.
"""

import sqlite3

from msgspec import UNSET, Struct, UnsetType

from ca.errors import InvalidRequest
from coordinator.machine.execution.access import Users
from coordinator.machine.execution.replies import Sessions
from metadata.model.rules import FIRST


class Change(Struct, frozen=True):
    """A command's place in the log: its index orders lists, `at_ms` is the leader's time.

    `users` and `sessions` are those that its batch has read already.
    """

    db: sqlite3.Connection
    log_index: int
    at_ms: int
    users: Users
    sessions: Sessions

    def end_ms(self, expires_at_ms: int | None, ttl_seconds: int | UnsetType) -> int | None:
        """Return when something ends: at the given time, or after `ttl_seconds` of the leader's time.

        None if neither is given. Raises InvalidRequest for a time that has passed.
        """
        if ttl_seconds is not UNSET:
            return self.at_ms + ttl_seconds * 1000
        if expires_at_ms is not None and expires_at_ms <= self.at_ms:
            raise InvalidRequest("expires_at: this time has passed.")
        return expires_at_ms

    def touch_view(self) -> None:
        """Notify nodes that watch the view that the reply to GetView has changed."""
        self.db.execute("UPDATE applied SET view_version = ?", (self.log_index,))


class Question(Struct, frozen=True):
    """The context in which a query is answered: `at_ms` is the answering coordinator's time."""

    db: sqlite3.Connection
    at_ms: int
    users: Users

    def as_of(self) -> int:
        """Return the last log index that the answer contains."""
        return int(self.db.execute("SELECT log_index FROM applied").fetchone()[0])


def rules_in_force(db: sqlite3.Connection) -> int:
    """Return the rules for the next command; below FIRST for a state that no release has written."""
    row = db.execute("SELECT version FROM rules WHERE one = 1").fetchone()
    if row is not None:
        return int(row[0])
    (has_begun,) = db.execute("SELECT EXISTS (SELECT 1 FROM cluster)").fetchone()
    return FIRST - 1 if has_begun else FIRST
