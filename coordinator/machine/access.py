"""Who may do what: the one module that decides it, deny by default.

admin implies write implies read. The owner of a file and the role `admin` have admin on it. Roles and
groups are the stored ones, not those that a token carries, so that taking one away holds at once.
"""

import sqlite3
from dataclasses import dataclass
from enum import IntEnum

import msgspec

from ca.errors import Forbidden, Unauthorized
from coordinator.records import ADMIN_ROLE, Caller

_names = msgspec.json.Decoder(tuple[str, ...]).decode
_Account = tuple["User", int, bool]  # user, generation, whether it is disabled


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


class Users:
    """The users that a batch or a query has met: each is read once. Who changes a user says `forget`."""

    __slots__ = ("_accounts", "_db")

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._accounts: dict[str, _Account] = {}

    def find(self, user_id: str) -> _Account | None:
        """User, generation, and whether it is disabled; None if there is no such user."""
        account = self._accounts.get(user_id)
        if account is None:
            row = self._db.execute(
                "SELECT roles, groups, generation, disabled FROM users WHERE user_id = ?", (user_id,)
            ).fetchone()
            if row is None:
                return None
            roles, groups, generation, disabled = row
            account = User(user_id, _names(roles), _names(groups)), generation, bool(disabled)
            self._accounts[user_id] = account
        return account

    def forget(self, user_id: str) -> None:
        """What is known of this user is no longer true."""
        self._accounts.pop(user_id, None)


def require_user(users: Users, caller: Caller) -> User:
    """The user behind a verified token.

    Raises Unauthorized if unknown, disabled, or of another generation.
    """
    account = users.find(caller.subject)
    if account is None:
        raise Unauthorized("unknown user")
    user, generation, is_disabled = account
    if is_disabled:
        raise Unauthorized("disabled user")
    if generation != caller.generation:
        raise Unauthorized("revoked token")
    return user


def require_admin(users: Users, caller: Caller) -> User:
    """The user if it has the role `admin`. Raises Unauthorized or Forbidden."""
    user = require_user(users, caller)
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
