"""Who may do what: the one module that decides it, deny by default.

admin implies write implies read. The owner of a file and the role `admin` have admin on it. Roles and
groups are the stored ones, not those that a token carries, so that taking one away holds at once.
"""

import json
import sqlite3
from dataclasses import dataclass
from enum import IntEnum

from ca.errors import Forbidden, Unauthorized
from coordinator.records import ADMIN_ROLE, Caller


class Level(IntEnum):
    """Each level implies the ones below it."""

    NONE = 0
    READ = 1
    WRITE = 2
    ADMIN = 3


@dataclass(frozen=True, slots=True)
class User:
    """A caller whose token generation is current and whose account is enabled."""

    user_id: str
    roles: tuple[str, ...]
    groups: tuple[str, ...]

    @property
    def is_admin(self) -> bool:
        """Whether the user has the role `admin`."""
        return ADMIN_ROLE in self.roles


def require_user(db: sqlite3.Connection, caller: Caller) -> User:
    """The user behind a verified token.

    Raises Unauthorized if unknown, disabled, or of another generation.
    """
    row = db.execute(
        "SELECT roles, groups, generation, disabled FROM users WHERE user_id = ?", (caller.subject,)
    ).fetchone()
    if row is None:
        raise Unauthorized("unknown user")
    roles, groups, generation, disabled = row
    if disabled:
        raise Unauthorized("disabled user")
    if generation != caller.generation:
        raise Unauthorized("revoked token")
    return User(caller.subject, tuple(json.loads(roles)), tuple(json.loads(groups)))


def require_admin(db: sqlite3.Connection, caller: Caller) -> User:
    """The user if it has the role `admin`. Raises Unauthorized or Forbidden."""
    user = require_user(db, caller)
    if not user.is_admin:
        raise Forbidden("This needs the role admin.")
    return user


def level_on(user: User, owner_id: str) -> Level:
    """The level that a user has on something that `owner_id` owns."""
    if user.is_admin or user.user_id == owner_id:
        return Level.ADMIN
    return Level.NONE


def require_level(user: User, owner_id: str, level: Level, what: str) -> None:
    """Raises Forbidden unless the user has at least `level` there."""
    if level_on(user, owner_id) < level:
        raise Forbidden(f"This needs {level.name.lower()} permission on the {what}.")
