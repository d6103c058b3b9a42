"""Sessions: client processes that retry their commands. What is kept of them is told in `replies`."""

from coordinator.commands import SESSIONS_MAX, OpenSession
from coordinator.machine.change import Change


def open_session(change: Change, command: OpenSession) -> int:
    """The number of a new session. The longest unused ends when there would be more than SESSIONS_MAX."""
    del command  # the nonce only keeps two openings from looking alike in a dump of the log
    change.sessions.flush()
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
