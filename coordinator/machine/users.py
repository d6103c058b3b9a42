"""Users: roles, groups, and the generation that makes their tokens live or dead."""

import json

import msgspec

from ca.errors import Unauthorized
from coordinator.commands import AdmitUser
from coordinator.machine.access import require_admin, require_user
from coordinator.machine.change import Change, Question
from coordinator.queries import CheckAdmin, GetUser
from coordinator.records import UserRecord

_names = msgspec.json.Decoder(list[str]).decode
_COLUMNS = "user_id, roles, groups, generation, disabled, created_at_ms, updated_at_ms"


def admit(change: Change, command: AdmitUser) -> UserRecord:
    """Create the user, or update its roles and groups where they are given. Admin only."""
    db, at_ms = change.db, change.at_ms
    require_admin(change.users, command.caller)
    if _find(change, command.user_id) is None:
        db.execute(
            "INSERT INTO users (user_id, roles, groups, generation, disabled, created_at_ms, updated_at_ms)"
            " VALUES (?, '[]', '[]', 1, 0, ?, ?)",
            (command.user_id, at_ms, at_ms),
        )
    if command.roles is not None:
        _store(change, command.user_id, "roles", command.roles)
    if command.groups is not None:
        _store(change, command.user_id, "groups", command.groups)
    change.users.forget(command.user_id)
    user = _find(change, command.user_id)
    assert user is not None
    return user


def get(question: Question, query: GetUser) -> UserRecord:
    """The caller's own record."""
    require_user(question.users, query.caller)
    user = _find(question, query.caller.subject)
    if user is None:
        raise Unauthorized("unknown user")
    return user


def check_admin(question: Question, query: CheckAdmin) -> UserRecord:
    """The caller's own record, if it has the role admin."""
    require_admin(question.users, query.caller)
    return get(question, GetUser(caller=query.caller))


def _store(change: Change, user_id: str, column: str, names: list[str]) -> None:
    assert column in {"roles", "groups"}
    change.db.execute(
        f"UPDATE users SET {column} = ?, updated_at_ms = ? WHERE user_id = ?",
        (json.dumps(sorted(set(names))), change.at_ms, user_id),
    )


def _find(scope: Change | Question, user_id: str) -> UserRecord | None:
    row = scope.db.execute(f"SELECT {_COLUMNS} FROM users WHERE user_id = ?", (user_id,)).fetchone()
    if row is None:
        return None
    return UserRecord(
        user_id=row[0],
        roles=_names(row[1]),
        groups=_names(row[2]),
        generation=row[3],
        disabled=bool(row[4]),
        created_at_ms=row[5],
        updated_at_ms=row[6],
    )
