"""PersonIdentity providers, and the people who sign in with them.

A person is an issuer and a subject, which never changes hands, and becomes a user of its own: no name that a
provider tells leads to a user that was there before. A provider gives groups and the role `admin`, and takes
back only what it gave.
"""

import sqlite3
from typing import Final

import msgspec

from ca.errors import Conflict, NotFound
from coordinator.machine.execution.access import require_admin
from coordinator.machine.execution.change import Change, Question
from coordinator.machine.people import groups
from metadata.model.providers import (
    PROVIDERS_MAX,
    PersonIdentity,
    Provider,
    ProviderName,
    ProviderRecord,
)
from metadata.protocol.commands import DeleteProvider, PutProvider
from metadata.protocol.people_queries import FindProvider, FindProviderOfUser

_IDENTITY: Final = (
    "SELECT user_id, provider, gave_admin, allowed FROM identities WHERE issuer = ? AND subject = ?"
)
_settings = msgspec.json.Decoder(Provider).decode


class KnownPerson(msgspec.Struct, frozen=True):
    """The record of a person: the user, and what the provider gave at the last sign-in."""

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


def find(question: Question, query: FindProvider) -> ProviderRecord:
    """Return one provider. Admin only."""
    require_admin(question.users, query.caller)
    return _require(question.db, query.name)


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


def find_sealed(db: sqlite3.Connection, name: str) -> tuple[Provider, bytes, bytes] | None:
    """Return a provider with the sealed secrets of its clients, None for an unknown one."""
    row = _row(db, name)
    return None if row is None else (_settings(row[0]), row[1], row[2])


def groups_of_others(
    db: sqlite3.Connection, user_id: str, identity: PersonIdentity, known: KnownPerson | None
) -> tuple[list[str], list[str]]:
    """Return the groups that administrators give to a user, and those of other providers."""
    own = (identity.provider, known.provider if known else "")
    rows = db.execute(
        "SELECT DISTINCT group_name FROM group_members WHERE user_id = ? AND source NOT IN (?, ?)"
        " ORDER BY group_name",
        (user_id, *own),
    ).fetchall()
    return groups.local_and_given(db, user_id)[0], [name for (name,) in rows]


def record(change: Change, identity: PersonIdentity, user_id: str, *, gave_admin: bool) -> None:
    """Record who a person is, and what the provider gives at this sign-in."""
    person = (identity.issuer, identity.subject)
    change.db.execute(
        "INSERT OR IGNORE INTO identities (issuer, subject, user_id, provider, gave_admin, allowed,"
        " created_at_ms) VALUES (?, ?, ?, '', 0, 0, ?)",
        (*person, user_id, change.at_ms),
    )
    change.db.execute(
        "UPDATE identities SET provider = ?, gave_admin = ?, allowed = ? WHERE issuer = ? AND subject = ?",
        (identity.provider, int(gave_admin), int(identity.is_allowed), *person),
    )


def find_identity(db: sqlite3.Connection, identity: PersonIdentity) -> KnownPerson | None:
    """Return what is recorded of a person, None for a new one."""
    row = db.execute(_IDENTITY, (identity.issuer, identity.subject)).fetchone()
    return None if row is None else KnownPerson(row[0], row[1], bool(row[2]), bool(row[3]))


def require_configured(db: sqlite3.Connection, identity: PersonIdentity) -> None:
    """Raise Conflict unless the provider still has the issuer that the identity is of."""
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
