"""Users: roles, groups, and the generation that makes their tokens valid or invalid.

The row and generation of a deleted user stay: if the id is created again, old tokens stay invalid.
"""

import json
import sqlite3
from typing import Any

import msgspec

from ca.errors import Conflict, Forbidden, Gone, NotFound, Unauthorized
from coordinator.machine import join_tokens, parts, public_tokens
from coordinator.machine.execution.access import (
    GIVEN_GROUPS,
    groups_of,
    principal,
    require_admin,
    require_user,
)
from coordinator.machine.execution.change import Change, Question, rules_in_force
from coordinator.machine.execution.pages import LIST_SCAN_MAX
from coordinator.machine.people import groups as groups_held
from coordinator.machine.people import invitations, providers, user_sessions
from metadata.model import rules
from metadata.model.listed_records import InvitationRecord
from metadata.model.providers import candidate_names
from metadata.model.records import (
    ADMIN_ROLE,
    BACKUP,
    DEFAULT_BUCKET_ID,
    PROJECT_FILE,
    SERVICE_ROLE,
    VM,
    Caller,
    UserPage,
    UserRecord,
)
from metadata.protocol.commands import (
    AdmitIdentity,
    AdmitUser,
    CreateInvitation,
    DeleteUser,
    EndSessions,
    PutUser,
    RedeemInvitation,
    RevokeUser,
)
from metadata.protocol.people_queries import CheckInvitation, KnownIdentity, MatchIdentity
from metadata.protocol.queries import CheckAdmin, CheckPrincipal, FindUser, GetUser, ListUsers

# Deleted users have no roles.
_IS_HELD = "SELECT EXISTS (SELECT 1 FROM users, json_each(users.roles) held WHERE held.value = ?)"
_names = msgspec.json.Decoder(list[str]).decode
_COLUMNS = "user_id, roles, groups, generation, disabled, created_at_ms, updated_at_ms"
_SELECTED = f"{_COLUMNS}, {GIVEN_GROUPS}"
_GENERATIONS_SINCE_MS = 1_577_836_800_000  # 2020-01-01: nine digits in a token instead of ten


def admit(change: Change, command: AdmitUser) -> UserRecord:
    """Create the user, or update its given roles and groups. Admin only.

    Raises Conflict for a disabled user, which gets no token, and for a caller that drops its own role admin.
    """
    require_admin(change.users, command.caller)
    user = _find(change, command.user_id)
    if user is not None and user.disabled:
        raise Conflict("This user is disabled.")
    _check_own(command.caller, command.user_id, command.roles)
    return _put(change, command.user_id, command.roles, command.groups)


def put(change: Change, command: PutUser) -> UserRecord:
    """Create the user or change it; None leaves a field as it is. Admin only.

    A user that is disabled loses its partial uploads. Raises Conflict for a caller that disables itself or
    drops its own role admin.
    """
    require_admin(change.users, command.caller)
    _check_own(command.caller, command.user_id, command.roles, disabled=bool(command.disabled))
    return _put(change, command.user_id, command.roles, command.groups, command.disabled)


def invite(change: Change, command: CreateInvitation) -> InvitationRecord:
    """Make a link for the user, who is created or updated as by `admit`. Admin only. Raises as `admit`."""
    require_admin(change.users, command.caller)
    invitations.check_new(change, command.secret_sha256)
    admission = AdmitUser(
        caller=command.caller, user_id=command.user_id, roles=command.roles, groups=command.groups
    )
    admit(change, admission)
    return invitations.store(change, command)


def redeem(change: Change, command: RedeemInvitation) -> UserRecord:
    """Use up the link, and return its user, who gets a token. Raises NotFound, Gone."""
    user = _user_of_link(change, command.secret_sha256)
    invitations.use(change, user.user_id)
    return user


def delete(change: Change, command: DeleteUser) -> None:
    """Delete a user: tokens become invalid; permissions, public tokens, roles and groups end. Admin only.

    Its partial uploads end: no user could resume them, and they have reserved quota.

    Raises NotFound, or Conflict while it owns buckets or files, and for the caller itself.
    """
    require_admin(change.users, command.caller)
    _require(change, command.user_id)
    if command.user_id == command.caller.subject:
        raise Conflict("Another admin must delete this user.")
    _check_owns_nothing(change, command.user_id)
    _end_parts(change, command.user_id)
    _end_what_it_was_given(change, command.user_id)
    groups_held.end_given(change, command.user_id)
    # A later user of this name is another person.
    change.db.execute("DELETE FROM identities WHERE user_id = ?", (command.user_id,))
    change.db.execute(
        "UPDATE users SET deleted = 1, roles = '[]', groups = '[]', disabled = 0, updated_at_ms = ?"
        " WHERE user_id = ?",
        (change.at_ms, command.user_id),
    )


def revoke(change: Change, command: RevokeUser) -> None:
    """End every permission, token and public token of a user in one change; the user stays. Admin only."""
    require_admin(change.users, command.caller)
    _require(change, command.user_id)
    _end_what_it_was_given(change, command.user_id)


def end_sessions(change: Change, command: EndSessions) -> None:
    """End every token of a user; its permissions and public tokens stay. Needs to be that user, or admin."""
    user_sessions.require_own(change, command.caller, command.user_id)
    _require(change, command.user_id)
    _end_tokens(change, command.user_id)


def admit_identity(change: Change, command: AdmitIdentity) -> UserRecord:
    """Return the user of a person, with what the provider gives now; a new user at the first sign-in.

    Raises Conflict if the provider or the person is known otherwise than the leader believed, Forbidden for a
    disabled user, and for a new person who may not sign in.
    """
    identity = command.identity
    providers.require_configured(change.db, identity)
    known = providers.find_identity(change.db, identity)
    before = None if known is None else _find(change, known.user_id)
    if (before.user_id if before else "") != command.user_id:
        raise Conflict("This person has signed in at the same moment.")
    if before is None and not identity.is_allowed:
        raise Forbidden("This person is in no group that may sign in.")
    if before is not None and before.disabled:
        raise Forbidden("This user is disabled.")
    local = before.roles if before else []
    if known is not None and known.gave_admin:
        local = [role for role in local if role != ADMIN_ROLE]
    given_groups = identity.groups if identity.is_allowed else []
    given_roles = [ADMIN_ROLE] if identity.is_admin and identity.is_allowed else []
    user_id = before.user_id if before else _free_name(change.db, identity.name)
    administrators, others = providers.groups_of_others(change.db, user_id, identity, known)
    groups_held.check_room([*local, *given_roles], administrators, sorted({*others, *given_groups}))
    _put(change, user_id, sorted({*local, *given_roles}), None)
    if known is not None and known.provider != identity.provider:
        groups_held.replace_given(change, user_id, known.provider, [])
    groups_held.replace_given(change, user_id, identity.provider, given_groups)
    if known is not None and known.allowed and not identity.is_allowed:
        _end_tokens(change, user_id)
    providers.record(change, identity, user_id, gave_admin=bool(given_roles) and ADMIN_ROLE not in local)
    return _require(change, user_id)


def match_identity(question: Question, query: MatchIdentity) -> KnownIdentity:
    """Return whom an identity is known to be, and whether everything that it gives is recorded already."""
    identity = query.identity
    providers.require_configured(question.db, identity)
    known = providers.find_identity(question.db, identity)
    user = None if known is None else _find(question, known.user_id)
    if known is None or user is None:
        return KnownIdentity(None, is_recorded=False)
    given = question.db.execute(
        "SELECT group_name FROM group_members WHERE user_id = ? AND source = ? ORDER BY group_name",
        (user.user_id, identity.provider),
    ).fetchall()
    gives_admin = identity.is_admin and identity.is_allowed
    has_role = ADMIN_ROLE in user.roles if gives_admin else not known.gave_admin
    is_same = (known.allowed, known.provider) == (identity.is_allowed, identity.provider)
    gives = sorted(identity.groups) if identity.is_allowed else []
    is_recorded = is_same and has_role and [name for (name,) in given] == gives
    return KnownIdentity(user, is_recorded=is_recorded and not user.disabled)


def get(question: Question, query: GetUser) -> UserRecord:
    """Return the caller's own record."""
    require_user(question.users, query.caller)
    user = _find(question, query.caller.subject)
    if user is None:
        raise Unauthorized("unknown user")
    return user


def find(question: Question, query: FindUser) -> UserRecord:
    """Return the record of any user. Admin only."""
    require_admin(question.users, query.caller)
    return _require(question, query.user_id)


def check_invitation(question: Question, query: CheckInvitation) -> UserRecord:
    """Return the user whom the link admits now. Raises NotFound, Gone."""
    return _user_of_link(question, query.secret_sha256)


def check_principal(question: Question, query: CheckPrincipal) -> None:
    """Raise NotFound unless the user exists, or a user has the group or role. Built-in roles always exist."""
    require_user(question.users, query.caller)
    kind, name = query.principal_type, query.principal_id
    if kind == "role" and name in (ADMIN_ROLE, SERVICE_ROLE):
        return
    if kind == "user":
        is_known = _find(question, name) is not None
    elif kind == "group":
        is_known = groups_held.exists(question.db, name)
    else:
        (is_known,) = question.db.execute(_IS_HELD, (name,)).fetchone()
    if not is_known:
        raise NotFound(
            f"There is no user named {name}." if kind == "user" else f"No user has the {kind} {name}."
        )


def check_admin(question: Question, query: CheckAdmin) -> UserRecord:
    """Return the caller's own record, if it has the role admin."""
    require_admin(question.users, query.caller)
    return get(question, GetUser(caller=query.caller))


def list_page(question: Question, query: ListUsers) -> UserPage:
    """Return one page of users, oldest first. Admin only.

    The first admin has the sequence 0, so the cursor is the sequence that the page begins with.
    """
    require_admin(question.users, query.caller)
    rows = question.db.execute(
        f"SELECT {_SELECTED}, sequence, deleted FROM users WHERE sequence >= ?"
        " ORDER BY sequence, user_id LIMIT ?",
        (query.cursor, LIST_SCAN_MAX),
    )
    found: list[UserRecord] = []
    looked_at, after = 0, 0
    for row in rows:
        if len(found) == query.limit and not row[-1]:
            return UserPage(found, row[-2])
        if not row[-1]:
            found.append(_record(row))
        looked_at, after = looked_at + 1, row[-2]
    return UserPage(found, after + 1 if looked_at == LIST_SCAN_MAX else 0)


def _free_name(db: sqlite3.Connection, wanted: str) -> str:
    """Return the first name that no user has. Raises Conflict if all are in use."""
    for name in candidate_names(wanted):
        if db.execute("SELECT 1 FROM users WHERE user_id = ? AND deleted = 0", (name,)).fetchone() is None:
            return name
    raise Conflict("All user ids for this name are in use.")


def _check_own(caller: Caller, user_id: str, roles: list[str] | None, *, disabled: bool = False) -> None:
    """Raise Conflict if the caller would lock itself out: some admin always remains."""
    if caller.subject != user_id:
        return
    if disabled:
        raise Conflict("Another admin must disable this user.")
    if roles is not None and ADMIN_ROLE not in roles:
        raise Conflict("Another admin must take the role admin from this user.")


def _check_owns_nothing(change: Change, user_id: str) -> None:
    owned = change.db.execute(
        "SELECT EXISTS (SELECT 1 FROM files WHERE kind IN (?, ?, ?) AND owner_id = ?),"
        " EXISTS (SELECT 1 FROM buckets WHERE owner_id = ? AND bucket_id <> ?)",
        (PROJECT_FILE, VM, BACKUP, user_id, user_id, DEFAULT_BUCKET_ID),
    ).fetchone()
    if owned[0]:
        raise Conflict("This user owns files.")
    if owned[1]:
        raise Conflict("This user owns buckets.")


def _end_what_it_was_given(change: Change, user_id: str) -> None:
    groups_held.withdraw_all(change, principal("user", user_id))
    public_tokens.revoke_all(change, user_id)
    join_tokens.delete_all(change, user_id)
    invitations.end(change, user_id)
    _end_tokens(change, user_id)


def _end_tokens(change: Change, user_id: str) -> None:
    user_sessions.end_all(change, user_id)
    change.db.execute(
        "UPDATE users SET generation = MAX(generation + 1, ?), updated_at_ms = ? WHERE user_id = ?",
        (_least_generation(change), change.at_ms, user_id),
    )
    change.users.forget(user_id)


def _end_parts(change: Change, user_id: str) -> None:
    if rules_in_force(change.db) >= rules.PARTS_END_WITH_THEIR_USER:
        parts.end_all(change, user_id)


def _least_generation(change: Change) -> int:
    """Return the lowest generation that a user gets now: by the clock, the user never had it before.

    A restored cluster knows nothing of the generations after its snapshot. If it counted on from there, it
    would reuse them, and revoked tokens of that time would become valid.
    """
    return max(1, (change.at_ms - _GENERATIONS_SINCE_MS) // 1000)


def _put(
    change: Change,
    user_id: str,
    roles: list[str] | None,
    groups: list[str] | None,
    disabled: bool | None = None,
) -> UserRecord:
    """Write the given fields; the others stay, or are empty for a new user.

    Raises InvalidRequest for more names than a token has room for.
    """
    known = _find(change, user_id)
    local, given = groups_held.local_and_given(change.db, user_id)
    if groups is not None:
        # What a provider gives is not made an administrator's choice because a record is written back whole.
        groups = local = [name for name in groups if name in local or name not in given]
    known_roles = known.roles if known else []
    groups_held.check_room(known_roles if roles is None else roles, local, given)
    if known is None:
        change.db.execute(
            f"INSERT INTO users ({_COLUMNS}, sequence) VALUES (?, '[]', '[]', ?, 0, ?, ?, ?)"
            " ON CONFLICT (user_id) DO UPDATE SET deleted = 0, created_at_ms = excluded.created_at_ms,"
            " updated_at_ms = excluded.updated_at_ms, sequence = excluded.sequence",
            (user_id, _least_generation(change), change.at_ms, change.at_ms, change.log_index),
        )
    if roles is not None:
        _store(change, user_id, "roles", json.dumps(sorted(set(roles))))
    if groups is not None:
        groups_held.store_local(change, user_id, groups)
    if disabled is not None:
        _store(change, user_id, "disabled", int(disabled))
    if disabled:
        _end_parts(change, user_id)
        invitations.end(change, user_id)
    change.users.forget(user_id)
    return _require(change, user_id)


def _store(change: Change, user_id: str, column: str, value: str | int) -> None:
    assert column in {"roles", "disabled"}
    change.db.execute(
        f"UPDATE users SET {column} = ?, updated_at_ms = ? WHERE user_id = ?", (value, change.at_ms, user_id)
    )


def _user_of_link(scope: Change | Question, secret_sha256: str) -> UserRecord:
    user = _find(scope, invitations.user_of(scope, secret_sha256))
    if user is None or user.disabled:
        raise Gone("This invitation has ended.")
    return user


def _require(scope: Change | Question, user_id: str) -> UserRecord:
    user = _find(scope, user_id)
    if user is None:
        # until 0.3.0: replies are stored, and must be those of members that run 0.1.0
        is_stored = isinstance(scope, Change)
        raise NotFound("There is no such user." if is_stored else f"There is no user named {user_id}.")
    return user


def _find(scope: Change | Question, user_id: str) -> UserRecord | None:
    row = scope.db.execute(
        f"SELECT {_SELECTED} FROM users WHERE user_id = ? AND deleted = 0", (user_id,)
    ).fetchone()
    return None if row is None else _record(row)


def _record(row: tuple[Any, ...]) -> UserRecord:
    return UserRecord(
        user_id=row[0],
        roles=_names(row[1]),
        groups=groups_of(_names(row[2]), _names(row[7])),
        generation=row[3],
        disabled=bool(row[4]),
        created_at_ms=row[5],
        updated_at_ms=row[6],
    )
