"""Sessions of users: a first token, and those that were renewed from it, which end together.

A row is written when a token is made, and never when one is used. Tokens without a row are valid: those of
releases before 0.2.0, and of `filestore token admin`.
"""

from typing import Final

from ca.errors import Conflict, Forbidden, NotFound
from coordinator.machine.execution.access import User, require_user
from coordinator.machine.execution.change import Change, Question
from metadata.model.listed_records import SessionPage, SessionRecord
from metadata.model.records import Caller
from metadata.protocol.commands import EndSession, RecordSession
from metadata.protocol.people_queries import ListSessions

LIFE_MS_MAX: Final = 400 * 86_400_000  # of the tokens of programs, which live longest
SESSIONS_MAX: Final = 1000  # of one user that have not expired
KEPT_MS: Final = 3_600_000  # after its expiry: longer than the leeway for clocks


def record(change: Change, command: RecordSession) -> None:
    """Record the session of a token that is about to be signed: a new one, or one that gets another token.

    Raises Unauthorized if the token would be rejected: the user was revoked meanwhile, or the session was
    ended. Raises Conflict if the user has too many sessions.
    """
    caller = Caller(command.user_id, command.generation, session=command.session_id)
    require_user(change.users, caller)
    expires_at_ms = change.at_ms + command.ttl_seconds * 1000
    renewed = change.db.execute(
        "UPDATE user_sessions SET renewed_at_ms = ?, expires_at_ms = MAX(expires_at_ms, ?)"
        " WHERE session_id = ? AND user_id = ?",
        (change.at_ms, expires_at_ms, command.session_id, command.user_id),
    ).rowcount
    if renewed:
        return
    (count,) = change.db.execute(
        "SELECT COUNT(*) FROM user_sessions WHERE user_id = ? AND expires_at_ms > ?",
        (command.user_id, change.at_ms),
    ).fetchone()
    if count >= SESSIONS_MAX:
        raise Conflict(f"This user has {count} sessions. End some, or give tokens a shorter life.")
    _insert(change, command.session_id, command.user_id, command.label, command.created_by, expires_at_ms)


def end(change: Change, command: EndSession) -> None:
    """End one session: its tokens are rejected from now on. Needs to be its user, or admin.

    The caller's own session need not be recorded, and is from now on. Raises NotFound for any other.
    """
    user = require_own(change, command.caller, command.user_id)
    place = (command.session_id, command.user_id)
    known = "UPDATE user_sessions SET ended = 1 WHERE session_id = ? AND user_id = ?"
    if not change.db.execute(known, place).rowcount:
        if place != (command.caller.session, user.user_id):
            raise NotFound("This user has no such session.")
        _insert(change, *place, "", user.user_id, change.at_ms + LIFE_MS_MAX)
        change.db.execute(known, place)
    change.users.forget(command.user_id)


def end_all(change: Change, user_id: str) -> None:
    """Forget the sessions of a user whose generation has ended: no token of theirs is valid."""
    change.db.execute("DELETE FROM user_sessions WHERE user_id = ?", (user_id,))


def list_page(question: Question, query: ListSessions) -> SessionPage:
    """Return one page of the sessions of a user that are live, oldest first. Needs to be that user, or admin.

    The cursor counts the sessions of earlier pages.
    """
    require_own(question, query.caller, query.user_id)
    rows = question.db.execute(
        "SELECT session_id, label, created_by, created_at_ms, renewed_at_ms, expires_at_ms"
        " FROM user_sessions WHERE user_id = ? AND ended = 0 AND expires_at_ms > ?"
        " ORDER BY created_at_ms, session_id LIMIT ? OFFSET ?",
        (query.user_id, question.at_ms, query.limit + 1, query.cursor),
    ).fetchall()
    page = [SessionRecord(*row) for row in rows[: query.limit]]
    return SessionPage(page, query.cursor + query.limit if len(rows) > query.limit else 0)


def require_own(scope: Change | Question, caller: Caller, user_id: str) -> User:
    """Return the caller if it is this user, or has the role `admin`. Raises Unauthorized or Forbidden."""
    user = require_user(scope.users, caller)
    if user.user_id != user_id and not user.is_admin:
        raise Forbidden("Only the user, and those with the role admin, see and end these sessions.")
    return user


def _insert(
    change: Change, session_id: str, user_id: str, label: str, created_by: str, expires_at_ms: int
) -> None:
    change.db.execute(
        "INSERT OR IGNORE INTO user_sessions (session_id, user_id, label, created_by, created_at_ms,"
        " renewed_at_ms, expires_at_ms, ended) VALUES (?, ?, ?, ?, ?, ?, ?, 0)",
        (session_id, user_id, label, created_by, change.at_ms, change.at_ms, expires_at_ms),
    )
