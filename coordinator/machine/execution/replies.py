"""Duplicate suppression of retried commands (Ongaro 2014, section 6.3), as kept for a batch.

Only the commands of a batch see the rows of its sessions before the commit, so they are read once and written
once for a batch. Members cut their batches at different places. So replies and remaining rows must be the
same as if each command were a batch of its own.

Tested by tests/unit/coordinator/machine/test_released_refusals.py.
"""

import sqlite3

from msgspec import Struct

from ca.errors import Unavailable
from metadata.protocol.commands import SESSION_ENDED, Envelope


class SessionEnded(Unavailable):
    """Only the client sees this code: it opens a new session, or reports the outcome as unknown."""

    code = SESSION_ENDED


class _Session(Struct):
    """A session in the database, with the changes of this batch."""

    acknowledged_below: int
    sequence_max: int  # of the replies in the database; -1 for none. A higher one is certainly new.
    stored_below: int  # `acknowledged_below` in the database
    last_log_index: int = 0  # of a command of this batch; 0 for none
    replies: dict[int, bytes] = {}


class Sessions:
    """The sessions that a batch uses. Code that accesses their rows in other ways calls `flush` first."""

    __slots__ = ("_db", "_sessions")

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._sessions: dict[int, _Session] = {}

    def earlier_reply(self, session: int, sequence: int) -> bytes | None:
        """Return the reply if this command was applied before, None if it is new.

        Raises SessionEnded if the session has ended: it is then unknown whether the command was applied, so
        it must not be applied (again). Raises Unavailable for a late copy of a change that its client has
        finished with: it gave the change up, or saw its reply, which is forgotten since.
        """
        known = self._find(session)
        if known is None:
            raise SessionEnded("The session of this change has ended; whether it was applied is unknown.")
        if sequence < known.acknowledged_below:
            raise Unavailable("The client was done with this change; a late copy of it is not applied.")
        reply = known.replies.get(sequence)
        if reply is not None or sequence > known.sequence_max:
            return reply
        row = self._db.execute(
            "SELECT reply FROM replies WHERE session = ? AND sequence = ?", (session, sequence)
        ).fetchone()
        return None if row is None else bytes(row[0])

    def keep_reply(self, log_index: int, envelope: Envelope, reply: bytes) -> None:
        """Store a reply until the client has acknowledged it; called after `earlier_reply` returned None."""
        known = self._find(envelope.session)
        if known is None:
            return  # the command itself opened a session and so ended this one
        known.last_log_index = log_index
        known.acknowledged_below = max(known.acknowledged_below, envelope.acknowledged_below)
        known.replies[envelope.sequence] = reply

    def flush(self) -> None:
        """Write all changes, and read all rows again from then on."""
        for session, known in self._sessions.items():
            if known.last_log_index:
                self._write(session, known)
        self._sessions.clear()

    def _find(self, session: int) -> _Session | None:
        known = self._sessions.get(session)
        if known is not None:
            return known
        row = self._db.execute(
            "SELECT acknowledged_below, (SELECT MAX(sequence) FROM replies WHERE session = ?)"
            " FROM sessions WHERE session = ?",
            (session, session),
        ).fetchone()
        if row is None:
            return None
        acknowledged_below, sequence_max = row
        known = _Session(
            acknowledged_below, -1 if sequence_max is None else sequence_max, stored_below=acknowledged_below
        )
        self._sessions[session] = known
        return known

    def _write(self, session: int, known: _Session) -> None:
        below = known.acknowledged_below
        self._db.execute(
            "UPDATE sessions SET last_log_index = ?, acknowledged_below = ? WHERE session = ?",
            (known.last_log_index, below, session),
        )
        if below > known.stored_below:
            self._db.execute("DELETE FROM replies WHERE session = ? AND sequence < ?", (session, below))
        self._db.executemany(
            "INSERT INTO replies (session, sequence, reply) VALUES (?, ?, ?)",
            [(session, sequence, reply) for sequence, reply in known.replies.items() if sequence >= below],
        )
