"""Duplicate suppression of retried commands (Ongaro 2014, section 6.3): sessions and unseen replies."""

import sqlite3

from ca.errors import Unavailable
from coordinator.commands import SESSION_ENDED, SESSIONS_MAX, Envelope, OpenSession
from coordinator.machine.change import Change


class SessionEnded(Unavailable):
    """Only the client sees this code: it opens a new session, or calls the outcome unknown."""

    code = SESSION_ENDED


def open_session(change: Change, command: OpenSession) -> int:
    """The number of a new session. The longest unused ends when there would be more than SESSIONS_MAX."""
    del command  # the nonce only keeps two openings from looking alike in a dump of the log
    db = change.db
    count = db.execute("SELECT COUNT(*) FROM sessions").fetchone()[0]
    if count >= SESSIONS_MAX:
        oldest = db.execute("SELECT session FROM sessions ORDER BY last_log_index, session LIMIT 1")
        (session,) = oldest.fetchone()
        db.execute("DELETE FROM replies WHERE session = ?", (session,))
        db.execute("DELETE FROM sessions WHERE session = ?", (session,))
    db.execute(
        "INSERT INTO sessions (session, last_log_index, acknowledged_below) VALUES (?, ?, 0)",
        (change.log_index, change.log_index),
    )
    return change.log_index


def earlier_reply(db: sqlite3.Connection, session: int, sequence: int) -> bytes | None:
    """The reply if this command was applied before, None if it is new.

    Raises SessionEnded when the session has ended: whether the command was applied can no longer be known,
    so it must not be applied (again). Raises Unavailable for a late copy of a change that its client is
    done with.
    """
    row = db.execute("SELECT acknowledged_below FROM sessions WHERE session = ?", (session,)).fetchone()
    if row is None:
        raise SessionEnded("The session of this change has ended; whether it was applied is unknown.")
    found = db.execute(
        "SELECT reply FROM replies WHERE session = ? AND sequence = ?", (session, sequence)
    ).fetchone()
    if found is None and sequence < row[0]:
        # The client gave this change up, or saw its reply, which is forgotten since.
        raise Unavailable("The client was done with this change; a late copy of it is not applied.")
    return None if found is None else bytes(found[0])


def keep_reply(change: Change, envelope: Envelope, reply: bytes) -> None:
    """Remember a reply until the client says that it is done with it."""
    db, session = change.db, envelope.session
    db.execute(
        "DELETE FROM replies WHERE session = ? AND sequence < ?", (session, envelope.acknowledged_below)
    )
    db.execute(
        "UPDATE sessions SET last_log_index = ?, acknowledged_below = max(acknowledged_below, ?)"
        " WHERE session = ?",
        (change.log_index, envelope.acknowledged_below, session),
    )
    db.execute(
        "INSERT INTO replies (session, sequence, reply) VALUES (?, ?, ?)", (session, envelope.sequence, reply)
    )
