"""Sessions of client processes that retry commands. Apart from `replies`, which `change` imports.

`replies` describes what is stored of them.

Tested by tests/unit/coordinator/machine/test_batches.py.
"""

from coordinator.machine.execution.change import Change
from metadata.protocol.commands import SESSION_NUMBER_MIN, SESSIONS_MAX, OpenSession


def open_session(change: Change, command: OpenSession) -> int:
    """Return the number of a session: a new one, or the one of an earlier command whose reply was lost.

    The longest unused session ends if there would be more than SESSIONS_MAX.
    """
    change.sessions.flush()
    db = change.db
    opened = _number(change, command)
    if db.execute("SELECT 1 FROM sessions WHERE session = ?", (opened,)).fetchone() is not None:
        return opened
    count = db.execute("SELECT COUNT(*) FROM sessions").fetchone()[0]
    if count >= SESSIONS_MAX:
        oldest = db.execute("SELECT session FROM sessions ORDER BY last_log_index, session LIMIT 1")
        (session,) = oldest.fetchone()
        db.execute("DELETE FROM replies WHERE session = ?", (session,))
        db.execute("DELETE FROM sessions WHERE session = ?", (session,))
    db.execute(
        "INSERT INTO sessions (session, last_log_index, acknowledged_below) VALUES (?, ?, 0)",
        (opened, change.log_index),
    )
    return opened


def _number(change: Change, command: OpenSession) -> int:
    """Return the number that the process has drawn, or the log index.

    The log index is used in place of a small number, which a later log index might equal.
    """
    return command.number if command.number >= SESSION_NUMBER_MIN else change.log_index
