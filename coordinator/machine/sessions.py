"""Duplicate suppression of retried commands (Ongaro 2014, section 6.3): a session, and the replies not yet
seen.
"""

import sqlite3

from ca.errors import Unavailable
from coordinator.commands import SESSION_ENDED, SESSIONS_MAX, OpenSession
from coordinator.machine.change import Change


class SessionEnded(Unavailable):
    """Only the client sees this code; it opens a new session, or tells its caller that the outcome is
    unknown.
    """

    code = SESSION_ENDED


USE_RECORDED_EVERY = (
    1000  # log entries: a session's last use is kept this coarsely, to spare a write per command
)


def open_session(change: Change, command: OpenSession) -> int:
    """The number of a new session. The longest unused ends when there would be more than SESSIONS_MAX."""
    del command  # the nonce only keeps two openings from looking alike in a dump of the log
    db = change.db
    count = db.execute("SELECT COUNT(*) FROM sessions").fetchone()[0]
    if count >= SESSIONS_MAX:
        oldest = db.execute(
            "SELECT session FROM sessions ORDER BY last_log_index, session LIMIT 1"
        ).fetchone()[0]
        db.execute("DELETE FROM replies WHERE session = ?", (oldest,))
        db.execute("DELETE FROM sessions WHERE session = ?", (oldest,))
    db.execute(
        "INSERT INTO sessions (session, last_log_index) VALUES (?, ?)", (change.log_index, change.log_index)
    )
    return change.log_index


def earlier_reply(db: sqlite3.Connection, session: int, sequence: int, log_index: int) -> bytes | None:
    """The reply if this command was applied before, None if it is new.

    Raises SessionEnded when the session has ended: whether the command was applied can no longer be known,
    so it must not be applied (again).
    """
    row = db.execute("SELECT last_log_index FROM sessions WHERE session = ?", (session,)).fetchone()
    if row is None:
        raise SessionEnded("The session of this change has ended; whether it was applied is unknown.")
    if log_index - row[0] >= USE_RECORDED_EVERY:
        db.execute("UPDATE sessions SET last_log_index = ? WHERE session = ?", (log_index, session))
    found = db.execute(
        "SELECT reply FROM replies WHERE session = ? AND sequence = ?", (session, sequence)
    ).fetchone()
    return None if found is None else bytes(found[0])


def keep_reply(
    db: sqlite3.Connection, session: int, sequence: int, acknowledged_below: int, reply: bytes
) -> None:
    """Remember a reply until the client says that it has seen it."""
    db.execute("DELETE FROM replies WHERE session = ? AND sequence < ?", (session, acknowledged_below))
    db.execute("INSERT INTO replies (session, sequence, reply) VALUES (?, ?, ?)", (session, sequence, reply))
