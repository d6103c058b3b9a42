"""Access control: the one module that decides who may do what, deny by default.

admin implies write implies read. A level on a file is the highest of these: the role `admin`, the owner of
the file and the owner of its bucket have admin; a permission on the file, or on its bucket, gives its level
until it expires. The level on a bucket is decided in the same way, without the file. The default bucket has
no owner, even if its record names one.

Permissions are granted to principals: `user:ID`, `group:NAME`, `role:NAME`. Roles and groups are the stored
ones, not those in a token, so that removing one has its effect at once.
"""

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

import msgspec

from ca.errors import Forbidden, Unauthorized
from coordinator.machine.execution.pages import Condition
from metadata.model.records import ADMIN_ROLE, DEFAULT_BUCKET_ID, Caller

_names = msgspec.json.Decoder(tuple[str, ...]).decode
# The groups that providers of sign-in give to a row of `users`.
GIVEN_GROUPS = (
    "(SELECT json_group_array(group_name) FROM group_members given WHERE given.user_id = users.user_id)"
)
_HAS_ENDED = (
    "EXISTS (SELECT 1 FROM user_sessions ended WHERE ended.user_id = users.user_id AND ended.ended = 1)"
)
_encode = msgspec.json.Encoder().encode
_Account = tuple["User", int, bool]  # user, generation, whether it is disabled

_GRANTED = "principal IN (SELECT value FROM json_each(?)) AND (expires_at_ms IS NULL OR expires_at_ms > ?)"
_ON_BUCKET = f"SELECT level FROM bucket_permissions WHERE bucket_id = ? AND {_GRANTED}"
_LASTS = "principal IN (SELECT value FROM json_each(:held)) AND expires_at_ms IS NULL"
_LASTING_ON_FILE = (
    f"SELECT EXISTS (SELECT 1 FROM bucket_permissions WHERE bucket_id = :bucket AND {_LASTS})"
    f" OR EXISTS (SELECT 1 FROM file_permissions WHERE file_sequence = :file AND {_LASTS})"
    " OR EXISTS (SELECT 1 FROM buckets"
    " WHERE bucket_id = :bucket AND bucket_id <> :default AND owner_id = :user)"
)
_LEVEL_ON_BUCKET = f"SELECT MAX(level) FROM ({_ON_BUCKET})"
_LEVEL_ON_FILE = (
    f"SELECT MAX(level) FROM ({_ON_BUCKET} UNION ALL"
    f" SELECT level FROM file_permissions WHERE file_sequence = ? AND {_GRANTED} UNION ALL"
    " SELECT ? FROM buckets WHERE bucket_id = ? AND bucket_id <> ? AND owner_id = ?)"
)


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
    principals: tuple[str, ...]  # the principals of this user in permissions
    has_ended_sessions: bool  # so that a session has to be looked up

    @property
    def is_admin(self) -> bool:
        """Return whether the user has the role `admin`."""
        return ADMIN_ROLE in self.roles


class Scope(Protocol):
    """The context in which access is decided: a Change or a Question."""

    @property
    def db(self) -> sqlite3.Connection:
        """Return the state."""

    @property
    def at_ms(self) -> int:
        """Return the time at which permissions must not have expired."""

    @property
    def users(self) -> "Users":
        """Return the users that were read already."""


class Users:
    """The users of a batch or a query: each is read once. A command that changes a user calls `forget`."""

    __slots__ = ("_accounts", "_db")

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._accounts: dict[str, _Account] = {}

    def find(self, user_id: str) -> _Account | None:
        """Return user, generation, and whether it is disabled; None if the user does not exist (any more)."""
        account = self._accounts.get(user_id)
        if account is None:
            row = self._db.execute(
                f"SELECT roles, groups, generation, disabled, {GIVEN_GROUPS}, {_HAS_ENDED} FROM users"
                " WHERE user_id = ? AND deleted = 0",
                (user_id,),
            ).fetchone()
            if row is None:
                return None
            roles, groups, generation, disabled, given, has_ended = row
            held = tuple(groups_of(_names(groups), _names(given)))
            user = _user(user_id, _names(roles), held, has_ended_sessions=bool(has_ended))
            account = user, generation, bool(disabled)
            self._accounts[user_id] = account
        return account

    def forget(self, user_id: str) -> None:
        """Read this user again, as it was changed."""
        self._accounts.pop(user_id, None)

    def has_ended(self, session: str) -> bool:
        """Return whether the user has ended this session; a session that is not recorded has not ended."""
        row = self._db.execute("SELECT ended FROM user_sessions WHERE session_id = ?", (session,))
        return bool(row.fetchone() == (1,))


def groups_of(local: Iterable[str], given: Iterable[str]) -> list[str]:
    """Return the groups of a user, sorted: those that administrators give, and those of providers."""
    return sorted({*local, *given})


def principal(principal_type: str, principal_id: str) -> str:
    """Return a principal as in the tables of permissions: the type ends at the first colon."""
    return f"{principal_type}:{principal_id}"


def require_user(users: Users, caller: Caller) -> User:
    """Return the user of a verified token.

    Raises Unauthorized if unknown, disabled, of another generation, or of a session that was ended.
    """
    account = users.find(caller.subject)
    if account is None:
        raise Unauthorized("unknown user")
    user, generation, is_disabled = account
    if is_disabled:
        raise Unauthorized("disabled user")
    if generation != caller.generation:
        raise Unauthorized("revoked token")
    if user.has_ended_sessions and users.has_ended(caller.session):
        raise Unauthorized("token of an ended session")
    return user


def require_admin(users: Users, caller: Caller) -> User:
    """Return the user if it has the role `admin`. Raises Unauthorized or Forbidden."""
    user = require_user(users, caller)
    if not user.is_admin:
        raise Forbidden("This needs the role admin.")
    return user


def is_enabled_admin(db: sqlite3.Connection, user_id: str) -> bool:
    """Return whether this user has the role admin now, and is not disabled."""
    account = Users(db).find(user_id)
    return account is not None and account[0].is_admin and not account[2]


def level_on_file(scope: Scope, user: User, *, owner_id: str, bucket_id: str, sequence: int) -> Level:
    """Return the level of a user on the file with this owner, bucket and sequence.

    Owners and admins cost no query, others one.
    """
    if user.is_admin or user.user_id == owner_id:
        return Level.ADMIN
    granted_to = _grant_parameters(scope, user)
    owned = (Level.ADMIN.value, bucket_id, DEFAULT_BUCKET_ID, user.user_id)
    (level,) = scope.db.execute(
        _LEVEL_ON_FILE, (bucket_id, *granted_to, sequence, *granted_to, *owned)
    ).fetchone()
    return Level(level or 0)


def reads_lastingly(scope: Scope, caller: Caller, *, owner_id: str, bucket_id: str, sequence: int) -> bool:
    """Return whether a caller that may read the file now may do so until a command changes that.

    False if it needs a permission that expires. Costs as `level_on_file`.
    """
    user = require_user(scope.users, caller)
    if user.is_admin or user.user_id == owner_id:
        return True
    values = {
        "bucket": bucket_id,
        "file": sequence,
        "held": _encode(user.principals).decode(),
        "default": DEFAULT_BUCKET_ID,
        "user": user.user_id,
    }
    return bool(scope.db.execute(_LASTING_ON_FILE, values).fetchone()[0])


def level_on_bucket(scope: Scope, user: User, *, owner_id: str, bucket_id: str) -> Level:
    """Return the level of a user on a bucket, which its files inherit. Costs as `level_on_file`."""
    if user.is_admin or (user.user_id == owner_id and bucket_id != DEFAULT_BUCKET_ID):
        return Level.ADMIN
    granted_to = _grant_parameters(scope, user)
    (level,) = scope.db.execute(_LEVEL_ON_BUCKET, (bucket_id, *granted_to)).fetchone()
    return Level(level or 0)


def require_file_level(
    scope: Scope, user: User, level: Level, *, owner_id: str, bucket_id: str, sequence: int
) -> None:
    """Raise Forbidden unless the user has at least `level` on the file."""
    if level_on_file(scope, user, owner_id=owner_id, bucket_id=bucket_id, sequence=sequence) < level:
        raise Forbidden(f"This needs {level.name.lower()} permission on the file.")


def require_bucket_level(scope: Scope, user: User, level: Level, *, owner_id: str, bucket_id: str) -> None:
    """Raise Forbidden unless the user has at least `level` on the bucket."""
    if level_on_bucket(scope, user, owner_id=owner_id, bucket_id=bucket_id) < level:
        raise Forbidden(f"This needs {level.name.lower()} permission on the bucket.")


def own_or_granted(scope: Scope, user: User) -> Condition:
    """Return the condition that the user owns a row of `files f`, or has a permission on the file itself."""
    # The plus: a file has few permissions, and lists ask for many files, so these rows are scanned.
    granted = f"SELECT 1 FROM file_permissions WHERE file_sequence = f.sequence AND +{_GRANTED}"
    return Condition(
        f"(f.owner_id = ? OR EXISTS ({granted}))", (user.user_id, *_grant_parameters(scope, user))
    )


def received_condition(scope: Scope, user: User) -> Condition:
    """Return the condition that a row of a table of permissions is for the user, and has not expired."""
    return Condition(f"({_GRANTED})", _grant_parameters(scope, user))


def granted_buckets(scope: Scope, user: User) -> Condition:
    """Return a SELECT of the ids of the buckets on which the user has a permission."""
    return Condition(
        f"SELECT bucket_id FROM bucket_permissions WHERE {_GRANTED}", _grant_parameters(scope, user)
    )


def _grant_parameters(scope: Scope, user: User) -> tuple[str, int]:
    """Return the values of `_GRANTED`."""
    return _encode(user.principals).decode(), scope.at_ms


def _user(user_id: str, roles: tuple[str, ...], groups: tuple[str, ...], *, has_ended_sessions: bool) -> User:
    by_group = (principal("group", group) for group in groups)
    by_role = (principal("role", role) for role in roles)
    principals = (principal("user", user_id), *by_group, *by_role)
    return User(user_id, roles, groups, principals, has_ended_sessions)
