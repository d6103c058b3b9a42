"""Invitations: links that work once, for a new or a lost token. Apart from `users`, which is long.

A user has at most one: a new one ends the one before. It works while its maker is an enabled admin, like a
join token. The table has the hash of its secret only. `coordinator.machine.users` makes and admits the user.
"""

import sqlite3
from typing import Final

from ca.errors import Conflict, Gone, NotFound
from coordinator.machine.execution.access import is_enabled_admin, require_admin
from coordinator.machine.execution.change import Change, Question
from metadata.model.listed_records import InvitationPage, InvitationRecord
from metadata.protocol.commands import CreateInvitation, RevokeInvitation
from metadata.protocol.people_queries import ListInvitations

RETENTION_MS: Final = 30 * 24 * 3_600_000  # after its end: for this time an admin sees that it was used
_COLUMNS: Final = "user_id, created_by, created_at_ms, expires_at_ms, COALESCE(used_at_ms, 0)"


def check_new(change: Change, secret_sha256: str) -> None:
    """Raise Conflict if an invitation has this secret."""
    taken = "SELECT EXISTS (SELECT 1 FROM invitations WHERE secret_sha256 = ?)"
    if change.db.execute(taken, (secret_sha256,)).fetchone()[0]:
        raise Conflict("An invitation with this secret exists.")


def store(change: Change, command: CreateInvitation) -> InvitationRecord:
    """Store the link of a user in place of an earlier one. The caller is an admin, the secret is new."""
    expires_at_ms = change.at_ms + command.ttl_seconds * 1000
    record = InvitationRecord(command.user_id, command.caller.subject, change.at_ms, expires_at_ms, 0)
    change.db.execute(
        "INSERT OR REPLACE INTO invitations (user_id, secret_sha256, created_by, created_at_ms,"
        " expires_at_ms) VALUES (?, ?, ?, ?, ?)",
        (
            record.user_id,
            command.secret_sha256,
            record.created_by,
            record.created_at_ms,
            record.expires_at_ms,
        ),
    )
    return record


def user_of(scope: Change | Question, secret_sha256: str) -> str:
    """Return the user of the link with this secret.

    Raises NotFound for an unknown secret, and that of an earlier link; Gone if the link was used, has
    expired, or its maker is no enabled admin any more.
    """
    row = scope.db.execute(
        f"SELECT {_COLUMNS} FROM invitations WHERE secret_sha256 = ?", (secret_sha256,)
    ).fetchone()
    if row is None:
        raise NotFound("There is no such invitation.")
    invitation = InvitationRecord(*row)
    if invitation.used_at_ms:
        raise Gone("This invitation was used.")
    if invitation.expires_at_ms <= scope.at_ms or not is_enabled_admin(scope.db, invitation.created_by):
        raise Gone("This invitation has ended.")
    return invitation.user_id


def use(change: Change, user_id: str) -> None:
    """Use up the link of a user."""
    change.db.execute("UPDATE invitations SET used_at_ms = ? WHERE user_id = ?", (change.at_ms, user_id))


def end(change: Change, user_id: str) -> None:
    """Delete the link of a user, if it has one."""
    change.db.execute("DELETE FROM invitations WHERE user_id = ?", (user_id,))


def end_after_restore(db: sqlite3.Connection) -> None:
    """Delete each link that could be used: since the snapshot, it may have been used or revoked."""
    db.execute("DELETE FROM invitations WHERE used_at_ms IS NULL")


def revoke(change: Change, command: RevokeInvitation) -> None:
    """End the link of a user. Admin only. Raises NotFound if there is none that could be used."""
    require_admin(change.users, command.caller)
    unused = "DELETE FROM invitations WHERE user_id = ? AND used_at_ms IS NULL"
    if not change.db.execute(unused, (command.user_id,)).rowcount:
        raise NotFound("This user has no invitation that could be used.")


def list_page(question: Question, query: ListInvitations) -> InvitationPage:
    """Return one page of invitations, oldest first, including used and expired ones. Admin only."""
    require_admin(question.users, query.caller)
    rows = question.db.execute(
        f"SELECT {_COLUMNS} FROM invitations ORDER BY created_at_ms, user_id LIMIT ? OFFSET ?",
        (query.limit + 1, query.cursor),
    ).fetchall()
    page = [InvitationRecord(*row) for row in rows[: query.limit]]
    return InvitationPage(page, query.cursor + query.limit if len(rows) > query.limit else 0)
