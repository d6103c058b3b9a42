"""Permissions on buckets and files: granted to a user, a group or a role, by a user with admin there."""

from dataclasses import replace
from typing import Any, Final

from msgspec import Struct

from ca.errors import Conflict, NotFound
from coordinator.machine import buckets, files
from coordinator.machine.execution.access import (
    Level,
    User,
    level_on_bucket,
    level_on_file,
    principal,
    received_condition,
    require_admin,
    require_user,
)
from coordinator.machine.execution.change import Change, Question
from coordinator.machine.execution.pages import Condition, Listing, read_page
from metadata.model.listed_records import GrantPage, GrantRecord
from metadata.model.records import DEFAULT_BUCKET_ID, Caller, PermissionPage, PermissionRecord
from metadata.protocol.commands import GrantPermission, WithdrawPermission
from metadata.protocol.people_queries import ListGroupPermissions
from metadata.protocol.queries import ListOwnPermissions, ListPermissions
from metadata.protocol.query_root import ListQuery

PERMISSIONS_MAX = 1000  # on one bucket or file: they are scanned, and deleted together with it

_COLUMNS = "permission_id, level, principal, granted_by, created_at_ms, expires_at_ms, sequence"


class _Target(Struct, frozen=True):
    """The object of permissions: their table, and the column and value that select them."""

    what: str
    table: str
    column: str
    key: str | int
    bucket_id: str


class _GrantRow(Struct, frozen=True):
    """A row of `_ON_BUCKETS` or `_ON_FILES`, without its sequence."""

    permission_id: str
    level: int
    principal: str
    granted_by: str
    created_at_ms: int
    expires_at_ms: int | None
    target: str
    bucket_id: str
    file_uuid: str
    name: str
    kind: str
    owner_id: str
    file_sequence: int

    def is_received(self, user: User, at_ms: int) -> bool:
        """Return whether it grants something to this user now."""
        is_over = self.expires_at_ms is not None and self.expires_at_ms <= at_ms
        return self.principal in user.principals and not is_over

    def record(self) -> GrantRecord:
        principal_type, _, principal_id = self.principal.partition(":")
        return GrantRecord(
            permission_id=self.permission_id,
            permission=Level(self.level).name.lower(),
            principal_type=principal_type,
            principal_id=principal_id,
            granted_by=self.granted_by,
            created_at_ms=self.created_at_ms,
            expires_at_ms=self.expires_at_ms,
            target=self.target,
            bucket_id=self.bucket_id,
            file_uuid=self.file_uuid,
            name=self.name,
            kind=self.kind,
        )


_GIVEN = "p.permission_id, p.level, p.principal, p.granted_by, p.created_at_ms, p.expires_at_ms"
_ON_BUCKETS: Final = Listing(
    columns=f"{_GIVEN}, 'bucket', b.bucket_id, '', b.name, '', b.owner_id, 0, p.sequence",
    table="bucket_permissions p",
    joined="JOIN buckets b ON b.bucket_id = p.bucket_id",
    sequence="p.sequence",
)
_ON_FILES: Final = Listing(
    columns=f"{_GIVEN}, 'file', f.bucket_id, f.file_uuid, f.filename, f.kind, f.owner_id, f.sequence,"
    " p.sequence",
    table="file_permissions p",
    joined="JOIN files f ON f.sequence = p.file_sequence",
    sequence="p.sequence",
)


def grant(change: Change, command: GrantPermission) -> PermissionRecord:
    """Give a principal a level on a bucket or file. Needs admin there.

    For the same principal and level the entry keeps its id; expiry and grantor are replaced.
    """
    target = _require(change, command.caller, command.target, command.target_id)
    expires_at_ms = change.end_ms(command.expires_at_ms, command.ttl_seconds)
    level = Level[command.permission.upper()]
    holder = principal(command.principal_type, command.principal_id)
    known = change.db.execute(
        f"SELECT {_COLUMNS} FROM {target.table} WHERE {target.column} = ? AND principal = ? AND level = ?",
        (target.key, holder, level.value),
    ).fetchone()
    if known is not None:
        change.db.execute(
            f"UPDATE {target.table} SET granted_by = ?, expires_at_ms = ? WHERE sequence = ?",
            (command.caller.subject, expires_at_ms, known[-1]),
        )
        return _record((*known[:3], command.caller.subject, known[4], expires_at_ms))
    for expired in _check_new(change, target, command.permission_id):
        change.db.execute(f"DELETE FROM {target.table} WHERE sequence = ?", (expired,))
    return _insert(change, command, target, level, holder, expires_at_ms)


def withdraw(change: Change, command: WithdrawPermission) -> None:
    """Withdraw a permission, which ends with the next request. Needs admin on its target."""
    target = _require(change, command.caller, command.target, command.target_id)
    known = change.db.execute(
        f"SELECT sequence FROM {target.table} WHERE permission_id = ? AND {target.column} = ?",
        (command.permission_id, target.key),
    ).fetchone()
    if known is None:
        raise NotFound(f"There is no such permission on this {target.what}.")
    change.db.execute(f"DELETE FROM {target.table} WHERE sequence = ?", known)


def list_page(question: Question, query: ListPermissions) -> PermissionPage:
    """Return one page of the permissions on a bucket or file, including expired ones, oldest first.

    Needs admin there.
    """
    target = _require(question, query.caller, query.target, query.target_id)
    # The plus keeps SQLite from walking the table by its key: the rows of one target are few, and sorted.
    rows = question.db.execute(
        f"SELECT {_COLUMNS} FROM {target.table} WHERE {target.column} = ? AND +sequence > ?"
        " ORDER BY +sequence LIMIT ?",
        (target.key, query.cursor, query.limit + 1),
    ).fetchall()
    page = rows[: query.limit]
    return PermissionPage([_record(row) for row in page], page[-1][-1] if len(rows) > query.limit else 0)


def _require(scope: Change | Question, caller: Caller, target: str, target_id: str) -> _Target:
    """Return the target, if the caller has admin on it. Raises Unauthorized, NotFound or Forbidden."""
    if target == "bucket":
        buckets.require(scope, caller, target_id, Level.ADMIN)
        return _Target(target, "bucket_permissions", "bucket_id", target_id, target_id)
    file = files.require(scope, caller, target_id, Level.ADMIN)
    return _Target(target, "file_permissions", "file_sequence", file.sequence, file.bucket_id)


def list_own(question: Question, query: ListOwnPermissions) -> GrantPage:
    """Return one page of what was given to the caller, by it, and on what it owns; oldest first.

    Admins see all. Sequences are those of the log, so that buckets and files have one order.
    """
    user = require_user(question.users, query.caller)
    found: list[tuple[int, _GrantRow]] = []
    ends: list[int] = []
    for is_shown, listing in ((_is_bucket_shown, _ON_BUCKETS), (_is_file_shown, _ON_FILES)):
        filters = () if user.is_admin else (_own(question, user, listing.table),)
        given, next_cursor = _rows(question, query, replace(listing, filters=filters))
        found += [each for each in given if user.is_admin or is_shown(question, user, each[1])]
        ends += [next_cursor] if next_cursor else []
    return _merged(found, ends, query.limit)


def list_of_group(question: Question, query: ListGroupPermissions) -> GrantPage:
    """Return one page of what a group was granted, oldest first, expired permissions too. Admin only."""
    require_admin(question.users, query.caller)
    held = (Condition("p.principal = ?", (principal("group", query.group),)),)
    pages = [_rows(question, query, replace(on, candidates=held)) for on in (_ON_BUCKETS, _ON_FILES)]
    ends = [next_cursor for _, next_cursor in pages if next_cursor]
    return _merged([each for rows, _ in pages for each in rows], ends, query.limit)


def _rows(question: Question, query: ListQuery, listing: Listing) -> tuple[list[tuple[int, _GrantRow]], int]:
    """Return rows with their sequences, and the cursor behind them, 0 if no candidate remains."""
    rows, next_cursor = read_page(question.db, listing, cursor=query.cursor, limit=query.limit)
    return [(row[-1], _GrantRow(*row[:-1])) for row in rows], next_cursor


def _merged(found: list[tuple[int, _GrantRow]], ends: list[int], limit: int) -> GrantPage:
    """Return the page of both tables, in the order of sequences."""
    end = min(ends, default=0)  # one of the two was not examined beyond this
    page = sorted((each for each in found if not end or each[0] <= end), key=lambda each: each[0])
    if len(page) > limit:
        page, end = page[:limit], page[limit - 1][0]
    return GrantPage([given.record() for _, given in page], end)


def _own(question: Question, user: User, table: str) -> Condition:
    """Build the condition for rows of `_ON_BUCKETS` or `_ON_FILES`. The default bucket has no owner."""
    given = received_condition(question, user)
    owned = "f.owner_id = ?"
    values: tuple[str | int, ...] = (user.user_id, user.user_id)
    if table == _ON_BUCKETS.table:
        owned, values = "(b.owner_id = ? AND b.bucket_id <> ?)", (*values, DEFAULT_BUCKET_ID)
    return Condition(f"(granted_by = ? OR {owned} OR {given.sql})", (*values, *given.values))


def _is_bucket_shown(question: Question, user: User, given: _GrantRow) -> bool:
    held = level_on_bucket(question, user, owner_id=given.owner_id, bucket_id=given.bucket_id)
    return held >= Level.ADMIN or given.is_received(user, question.at_ms)


def _is_file_shown(question: Question, user: User, given: _GrantRow) -> bool:
    held = level_on_file(
        question,
        user,
        owner_id=given.owner_id,
        bucket_id=given.bucket_id,
        sequence=given.file_sequence,
    )
    return held >= Level.ADMIN or given.is_received(user, question.at_ms)


def _check_new(change: Change, target: _Target, permission_id: str) -> tuple[int, ...]:
    """Return the sequence of the expired permission to replace by this one, if there are too many."""
    is_taken, count = change.db.execute(
        f"SELECT EXISTS (SELECT 1 FROM {target.table} WHERE permission_id = ?),"
        f" (SELECT COUNT(*) FROM {target.table} WHERE {target.column} = ?)",
        (permission_id, target.key),
    ).fetchone()
    if is_taken:
        raise Conflict("A permission with this id exists.")
    if count < PERMISSIONS_MAX:
        return ()
    expired = change.db.execute(
        f"SELECT sequence FROM {target.table} WHERE {target.column} = ? AND expires_at_ms <= ?"
        " ORDER BY +sequence LIMIT 1",
        (target.key, change.at_ms),
    ).fetchone()
    if expired is None:
        raise Conflict(f"There are {count} permissions on this {target.what}, the most that it may have.")
    return tuple(expired)


def _insert(
    change: Change,
    command: GrantPermission,
    target: _Target,
    level: Level,
    holder: str,
    expires_at_ms: int | None,
) -> PermissionRecord:
    values: dict[str, str | int | None] = {
        "sequence": change.log_index,
        "permission_id": command.permission_id,
        "bucket_id": target.bucket_id,
        target.column: target.key,
        "principal": holder,
        "level": level.value,
        "granted_by": command.caller.subject,
        "created_at_ms": change.at_ms,
        "expires_at_ms": expires_at_ms,
    }
    change.db.execute(
        f"INSERT INTO {target.table} ({', '.join(values)}) VALUES ({', '.join('?' * len(values))})",
        tuple(values.values()),
    )
    return PermissionRecord(
        permission_id=command.permission_id,
        permission=command.permission,
        principal_type=command.principal_type,
        principal_id=command.principal_id,
        granted_by=command.caller.subject,
        created_at_ms=change.at_ms,
        expires_at_ms=expires_at_ms,
    )


def _record(row: tuple[Any, ...]) -> PermissionRecord:
    """Return a record from a row that begins with _COLUMNS."""
    principal_type, _, principal_id = row[2].partition(":")
    return PermissionRecord(
        permission_id=row[0],
        permission=Level(row[1]).name.lower(),
        principal_type=principal_type,
        principal_id=principal_id,
        granted_by=row[3],
        created_at_ms=row[4],
        expires_at_ms=row[5],
    )
