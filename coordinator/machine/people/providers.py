"""Identity providers, and the people who sign in with them.

A person is an issuer and a subject, which never changes hands, and becomes a user of its own: no name that a
provider tells leads to a user that was there before. A provider gives groups and the role `admin`, and takes
back only what it gave.
"""

import sqlite3
from typing import Final

import msgspec

from ca.errors import Conflict, Forbidden, NotFound
from coordinator.machine import users
from coordinator.machine.execution.access import require_admin
from coordinator.machine.execution.change import Change, Question
from coordinator.machine.people import groups
from metadata.model.providers import (
    PROVIDERS_MAX,
    Identity,
    Provider,
    ProviderName,
    ProviderRecord,
    numbered,
)
from metadata.model.records import ADMIN_ROLE, UserRecord
from metadata.protocol.commands import AdmitIdentity, DeleteProvider, PutProvider
from metadata.protocol.sign_in_queries import FindProvider, FindProviderOfUser, KnownIdentity, MatchIdentity

_IDENTITY: Final = (
    "SELECT user_id, provider, gave_admin, allowed FROM identities WHERE issuer = ? AND subject = ?"
)
_settings = msgspec.json.Decoder(Provider).decode


class _Known(msgspec.Struct, frozen=True):
    """What is recorded of a person."""

    user_id: str
    provider: str
    gave_admin: bool
    allowed: bool


def put(change: Change, command: PutProvider) -> ProviderRecord:
    """Add a provider, or replace its configuration. Admin only.

    Raises Conflict if another one has the issuer, or there are PROVIDERS_MAX.
    """
    require_admin(change.users, command.caller)
    provider = command.provider
    holder = change.db.execute(
        "SELECT name FROM providers WHERE issuer = ? AND name <> ?", (provider.issuer, provider.name)
    ).fetchone()
    if holder is not None:
        raise Conflict(f"The provider {holder[0]} has this issuer.")
    is_new = _row(change.db, provider.name) is None
    (count,) = change.db.execute("SELECT COUNT(*) FROM providers").fetchone()
    if is_new and count >= PROVIDERS_MAX:
        raise Conflict(f"There are at most {PROVIDERS_MAX} providers.")
    change.db.execute(
        "INSERT OR REPLACE INTO providers (name, issuer, settings, secret, command_secret, updated_at_ms)"
        " VALUES (?, ?, ?, ?, ?, ?)",
        (
            provider.name,
            provider.issuer,
            msgspec.json.encode(provider).decode(),
            command.secret,
            command.command_secret,
            change.at_ms,
        ),
    )
    change.touch_view()
    return _require(change.db, provider.name)


def delete(change: Change, command: DeleteProvider) -> None:
    """Remove a provider. Admin only. Raises NotFound."""
    require_admin(change.users, command.caller)
    _require(change.db, command.name)
    change.db.execute("DELETE FROM providers WHERE name = ?", (command.name,))
    change.touch_view()


def admit(change: Change, command: AdmitIdentity) -> UserRecord:
    """Return the user of a person, with what the provider gives now; a new user at the first sign-in.

    Raises Conflict if the provider or the person is known otherwise than the leader believed, Forbidden for a
    disabled user, and for a new person who may not sign in.
    """
    identity = command.identity
    _require_configured(change.db, identity)
    known = _known(change.db, identity)
    before = None if known is None else users.find_record(change, known.user_id)
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
    administrators, others = _groups_of_others(change.db, user_id, identity, known)
    groups.check_room([*local, *given_roles], administrators, sorted({*others, *given_groups}))
    users.store_roles(change, user_id, sorted({*local, *given_roles}))
    if known is not None and known.provider != identity.provider:
        groups.replace_given(change, user_id, known.provider, [])
    groups.replace_given(change, user_id, identity.provider, given_groups)
    if known is not None and known.allowed and not identity.is_allowed:
        users.end_tokens(change, user_id)
    _record(change, identity, user_id, gave_admin=bool(given_roles) and ADMIN_ROLE not in local)
    return users.require_record(change, user_id)


def find(question: Question, query: FindProvider) -> ProviderRecord:
    """Return one provider. Admin only."""
    require_admin(question.users, query.caller)
    return _require(question.db, query.name)


def match(question: Question, query: MatchIdentity) -> KnownIdentity:
    """Return whom an identity is known to be, and whether everything that it gives is recorded already."""
    identity = query.identity
    _require_configured(question.db, identity)
    known = _known(question.db, identity)
    user = None if known is None else users.find_record(question, known.user_id)
    if known is None or user is None:
        return KnownIdentity(None, is_recorded=False)
    given = question.db.execute(
        "SELECT group_name FROM group_members WHERE user_id = ? AND source = ? ORDER BY group_name",
        (user.user_id, identity.provider),
    ).fetchall()
    has_role = ADMIN_ROLE in user.roles if identity.is_admin else not known.gave_admin
    is_same = (known.allowed, known.provider) == (identity.is_allowed, identity.provider)
    is_recorded = is_same and has_role and [name for (name,) in given] == sorted(identity.groups)
    return KnownIdentity(user, is_recorded=is_recorded and not user.disabled)


def find_of_user(question: Question, query: FindProviderOfUser) -> str:
    """Return the provider with which a user signs in, "" for none."""
    row = question.db.execute(
        "SELECT provider FROM identities WHERE user_id = ? ORDER BY issuer, subject LIMIT 1", (query.user_id,)
    ).fetchone()
    return "" if row is None else str(row[0])


def names(db: sqlite3.Connection) -> list[ProviderName]:
    """Return the providers as the sign-in page shows them, by name."""
    rows = db.execute("SELECT settings FROM providers ORDER BY name").fetchall()
    return [ProviderName(each.name, each.label) for each in (_settings(row[0]) for row in rows)]


def sealed(db: sqlite3.Connection, name: str) -> tuple[Provider, bytes, bytes] | None:
    """Return a provider with the sealed secrets of its clients, None for an unknown one."""
    row = _row(db, name)
    return None if row is None else (_settings(row[0]), row[1], row[2])


def _free_name(db: sqlite3.Connection, wanted: str) -> str:
    """Return the first name that no user has. Raises Conflict if all are in use."""
    for name in numbered(wanted):
        if db.execute("SELECT 1 FROM users WHERE user_id = ? AND deleted = 0", (name,)).fetchone() is None:
            return name
    raise Conflict("All user ids for this name are in use.")


def _groups_of_others(
    db: sqlite3.Connection, user_id: str, identity: Identity, known: _Known | None
) -> tuple[list[str], list[str]]:
    """Return the groups that administrators give to a user, and those of other providers."""
    own = (identity.provider, known.provider if known else "")
    rows = db.execute(
        "SELECT DISTINCT group_name FROM group_members WHERE user_id = ? AND source NOT IN (?, ?)"
        " ORDER BY group_name",
        (user_id, *own),
    ).fetchall()
    return groups.local_and_given(db, user_id)[0], [name for (name,) in rows]


def _record(change: Change, identity: Identity, user_id: str, *, gave_admin: bool) -> None:
    change.db.execute(
        "INSERT INTO identities (issuer, subject, user_id, provider, gave_admin, allowed, created_at_ms)"
        " VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (issuer, subject) DO UPDATE SET"
        " provider = excluded.provider, gave_admin = excluded.gave_admin, allowed = excluded.allowed",
        (
            identity.issuer,
            identity.subject,
            user_id,
            identity.provider,
            int(gave_admin),
            int(identity.is_allowed),
            change.at_ms,
        ),
    )


def _known(db: sqlite3.Connection, identity: Identity) -> _Known | None:
    row = db.execute(_IDENTITY, (identity.issuer, identity.subject)).fetchone()
    return None if row is None else _Known(row[0], row[1], bool(row[2]), bool(row[3]))


def _require_configured(db: sqlite3.Connection, identity: Identity) -> None:
    row = db.execute("SELECT issuer FROM providers WHERE name = ?", (identity.provider,)).fetchone()
    if row is None or row[0] != identity.issuer:
        raise Conflict("This provider was removed or changed meanwhile.")


def _require(db: sqlite3.Connection, name: str) -> ProviderRecord:
    row = _row(db, name)
    if row is None:
        raise NotFound("There is no such provider.")
    return ProviderRecord(
        provider=_settings(row[0]),
        has_secret=bool(row[1]),
        has_command_secret=bool(row[2]),
        updated_at_ms=row[3],
    )


def _row(db: sqlite3.Connection, name: str) -> tuple[str, bytes, bytes, int] | None:
    found: tuple[str, bytes, bytes, int] | None = db.execute(
        "SELECT settings, secret, command_secret, updated_at_ms FROM providers WHERE name = ?", (name,)
    ).fetchone()
    return found
