"""Groups: their list, their members, and who has put a user into one.

A user is in the groups that administrators give it (`users.groups`), and in those that a provider of sign-in
gives it (`group_members`). Each provider replaces its own and no others. A group exists if it has a name in
`groups`, or a member.
"""

import json
import sqlite3
from typing import Final

import msgspec
from msgspec import UNSET

from ca.errors import Conflict, InvalidRequest, NotFound
from ca.names import NAMES_MAX
from coordinator.machine.execution.access import GIVEN_GROUPS, groups_of, principal, require_admin
from coordinator.machine.execution.change import Change, Question
from coordinator.machine.execution.pages import LIST_SCAN_MAX
from metadata.model.listed_records import GroupPage, GroupRecord, MemberPage, MemberRecord
from metadata.protocol.commands import AddMembers, DeleteGroup, PutGroup, RemoveMember
from metadata.protocol.people_queries import FindGroup, ListGroups, ListMembers

LOCAL: Final = "local"  # the source of what administrators give; no provider has this name
NAMES_CHARS_MAX = 2000  # all names with their quotes and commas: the room in a token of 4 KiB
_HELD = (
    "SELECT held.value AS name, users.user_id FROM users, json_each(users.groups) held"
    " WHERE users.deleted = 0"
    " UNION SELECT group_name, user_id FROM group_members"
)
_LISTED = (
    "SELECT name, COALESCE(description, ''), SUM(member) FROM"
    f" (SELECT name, 1 AS member FROM ({_HELD}) UNION ALL SELECT group_name, 0 FROM groups)"
    " LEFT JOIN groups ON group_name = name {} GROUP BY name ORDER BY name LIMIT ? OFFSET ?"
)
_IS_LOCAL = "EXISTS (SELECT 1 FROM json_each(users.groups) held WHERE held.value = :group)"
_SOURCES = (
    "(SELECT json_group_array(source) FROM (SELECT source FROM group_members given"
    " WHERE given.user_id = users.user_id AND given.group_name = :group ORDER BY source))"
)
_MEMBERS = (
    f"SELECT user_id, disabled, {_IS_LOCAL}, {_SOURCES}, deleted, sequence FROM users"
    " WHERE sequence >= :cursor ORDER BY sequence, user_id LIMIT :scanned"
)
_decode = msgspec.json.Decoder(list[str]).decode


def put(change: Change, command: PutGroup) -> GroupRecord:
    """Create the group, or change its description. Admin only."""
    require_admin(change.users, command.caller)
    _name(change, command.group)
    if command.description is not UNSET:
        change.db.execute(
            "UPDATE groups SET description = ? WHERE group_name = ?", (command.description, command.group)
        )
    return _require(change.db, command.group)


def add_members(change: Change, command: AddMembers) -> list[str]:
    """Put users into the group; return those that were not in it by an administrator. Admin only.

    Raises NotFound for an unknown user, InvalidRequest if one has no room for the name. Nothing changes then.
    """
    require_admin(change.users, command.caller)
    added: dict[str, list[str]] = {}
    for user_id in dict.fromkeys(command.user_ids):
        roles, local, given = _of_user(change.db, user_id)
        if command.group in local:
            continue
        check_room(roles, [*local, command.group], given)
        added[user_id] = [*local, command.group]
    _name(change, command.group)
    for user_id, local in added.items():
        store_local(change, user_id, local)
    return list(added)


def remove_member(change: Change, command: RemoveMember) -> None:
    """End the membership that an administrator gave. Admin only.

    Raises NotFound if the user is not in the group, Conflict if it is only by a provider, which would give it
    again.
    """
    require_admin(change.users, command.caller)
    _, local, given = _of_user(change.db, command.user_id)
    if command.group not in local:
        if command.group in given:
            raise Conflict("A provider of sign-in gives this group to the user: remove the user there.")
        raise NotFound("This user is not in the group.")
    store_local(change, command.user_id, [name for name in local if name != command.group])


def delete(change: Change, command: DeleteGroup) -> None:
    """Delete the group, its memberships and its permissions. Admin only. Raises NotFound.

    A provider may give the group again, which then has no permissions.
    """
    require_admin(change.users, command.caller)
    _require(change.db, command.group)
    holders = change.db.execute(
        "SELECT user_id, groups FROM users WHERE EXISTS"
        " (SELECT 1 FROM json_each(users.groups) held WHERE held.value = ?) ORDER BY user_id",
        (command.group,),
    ).fetchall()
    for user_id, local in holders:
        store_local(change, user_id, [name for name in _decode(local) if name != command.group])
    given_to = change.db.execute(
        "SELECT DISTINCT user_id FROM group_members WHERE group_name = ? ORDER BY user_id", (command.group,)
    ).fetchall()
    change.db.execute("DELETE FROM group_members WHERE group_name = ?", (command.group,))
    for (user_id,) in given_to:
        change.users.forget(user_id)
    change.db.execute("DELETE FROM groups WHERE group_name = ?", (command.group,))
    withdraw_all(change, principal("group", command.group))


def find(question: Question, query: FindGroup) -> GroupRecord:
    """Return one group. Admin only."""
    require_admin(question.users, query.caller)
    return _require(question.db, query.group)


def list_page(question: Question, query: ListGroups) -> GroupPage:
    """Return one page of groups by name. Admin only. The cursor counts the groups of earlier pages."""
    require_admin(question.users, query.caller)
    rows = question.db.execute(_LISTED.format(""), (query.limit + 1, query.cursor)).fetchall()
    page = [GroupRecord(*row) for row in rows[: query.limit]]
    return GroupPage(page, query.cursor + query.limit if len(rows) > query.limit else 0)


def list_members(question: Question, query: ListMembers) -> MemberPage:
    """Return one page of the users in a group, oldest first. Admin only. The cursor is that of users."""
    require_admin(question.users, query.caller)
    if not exists(question.db, query.group):
        raise NotFound(f"There is no group named {query.group}.")
    values = {"group": query.group, "cursor": query.cursor, "scanned": LIST_SCAN_MAX}
    found: list[MemberRecord] = []
    looked_at, after = 0, 0
    for user_id, disabled, is_local, given, deleted, sequence in question.db.execute(_MEMBERS, values):
        sources = [LOCAL] * is_local + _decode(given)
        if sources and not deleted:
            if len(found) == query.limit:
                return MemberPage(found, sequence)
            found.append(MemberRecord(user_id, sources, bool(disabled)))
        looked_at, after = looked_at + 1, sequence
    return MemberPage(found, after + 1 if looked_at == LIST_SCAN_MAX else 0)


def exists(db: sqlite3.Connection, group: str) -> bool:
    """Return whether there is a group of this name."""
    (found,) = db.execute(
        "SELECT EXISTS (SELECT 1 FROM groups WHERE group_name = :group)"
        " OR EXISTS (SELECT 1 FROM group_members WHERE group_name = :group)"
        " OR EXISTS (SELECT 1 FROM users, json_each(users.groups) held WHERE held.value = :group)",
        {"group": group},
    ).fetchone()
    return bool(found)


def replace_given(change: Change, user_id: str, source: str, groups: list[str]) -> None:
    """Make these the groups that a provider gives to an existing user, in place of its earlier ones.

    Other sources stay. Raises InvalidRequest if the user has no room for the names, before any change.
    """
    assert source not in ("", LOCAL), f"{source!r} is not the name of a provider"
    roles, local, _ = _of_user(change.db, user_id)
    others = change.db.execute(
        "SELECT group_name FROM group_members WHERE user_id = ? AND source <> ? ORDER BY group_name",
        (user_id, source),
    ).fetchall()
    check_room(roles, local, groups_of(groups, [name for (name,) in others]))
    change.db.execute("DELETE FROM group_members WHERE user_id = ? AND source = ?", (user_id, source))
    change.db.executemany(
        "INSERT INTO group_members (user_id, source, group_name) VALUES (?, ?, ?)",
        [(user_id, source, name) for name in sorted(set(groups))],
    )
    change.users.forget(user_id)


def end_given(change: Change, user_id: str) -> None:
    """End what every provider gives to a user."""
    change.db.execute("DELETE FROM group_members WHERE user_id = ?", (user_id,))
    change.users.forget(user_id)


def local_and_given(db: sqlite3.Connection, user_id: str) -> tuple[list[str], list[str]]:
    """Return the groups that administrators give, and those that providers give; none to an unknown user."""
    row = db.execute(
        f"SELECT groups, {GIVEN_GROUPS} FROM users WHERE user_id = ? AND deleted = 0", (user_id,)
    ).fetchone()
    return (_decode(row[0]), sorted(set(_decode(row[1])))) if row else ([], [])


def check_room(roles: list[str], local: list[str], given: list[str]) -> None:
    """Raise InvalidRequest for more names than a token has room for."""
    names = roles + local + [name for name in given if name not in local]
    if sum(len(name) + 3 for name in names) > NAMES_CHARS_MAX:
        raise InvalidRequest(f"roles: roles and groups have at most {NAMES_CHARS_MAX} characters together.")
    if len(names) - len(roles) > NAMES_MAX:
        raise InvalidRequest(f"groups: a user is in at most {NAMES_MAX} groups.")


def store_local(change: Change, user_id: str, groups: list[str]) -> None:
    """Make these the groups that administrators give to a user."""
    change.db.execute(
        "UPDATE users SET groups = ?, updated_at_ms = ? WHERE user_id = ?",
        (json.dumps(sorted(set(groups))), change.at_ms, user_id),
    )
    change.users.forget(user_id)


def withdraw_all(change: Change, holder: str) -> None:
    """Withdraw every permission that was granted to this principal itself."""
    for table in ("bucket_permissions", "file_permissions"):
        change.db.execute(f"DELETE FROM {table} WHERE principal = ?", (holder,))


def _name(change: Change, group: str) -> None:
    change.db.execute("INSERT OR IGNORE INTO groups (group_name, description) VALUES (?, '')", (group,))


def _of_user(db: sqlite3.Connection, user_id: str) -> tuple[list[str], list[str], list[str]]:
    """Return the roles of a user, and its groups by administrators and by providers. Raises NotFound."""
    row = db.execute("SELECT roles FROM users WHERE user_id = ? AND deleted = 0", (user_id,)).fetchone()
    if row is None:
        raise NotFound(f"There is no user named {user_id}.")
    return _decode(row[0]), *local_and_given(db, user_id)


def _require(db: sqlite3.Connection, group: str) -> GroupRecord:
    row = db.execute(_LISTED.format("WHERE name = ?"), (group, 1, 0)).fetchone()
    if row is None:
        raise NotFound(f"There is no group named {group}.")
    return GroupRecord(*row)
