"""Invitations: links that work once, for the first token of a user, or another one after it was lost.

A user has one at most: a new one ends the one before. It works while its maker is an enabled admin, like a
join token. Only the hash of its secret is here.
"""

from typing import Any, Final

from ca.errors import Conflict, Gone, NotFound
from coordinator.machine import users
from coordinator.machine.execution.access import is_enabled_admin, require_admin
from coordinator.machine.execution.change import Change, Question
from metadata.model.listed_records import InvitationPage, InvitationRecord
from metadata.model.records import UserRecord
from metadata.protocol.commands import AdmitUser, CreateInvitation, RedeemInvitation, RevokeInvitation
from metadata.protocol.queries import CheckInvitation, ListInvitations

RETENTION_MS: Final = 30 * 24 * 3_600_000  # after its end: for this time an admin sees that it was used
_COLUMNS: Final = "user_id, created_by, created_at_ms, expires_at_ms, COALESCE(used_at_ms, 0)"


def create(change: Change, command: CreateInvitation) -> InvitationRecord:
    """Make the link of a user, who is created if necessary. Admin only. Raises Conflict if it is disabled."""
    require_admin(change.users, command.caller)
    taken = "SELECT EXISTS (SELECT 1 FROM invitations WHERE secret_sha256 = ?)"
    if change.db.execute(taken, (command.secret_sha256,)).fetchone()[0]:
        raise Conflict("An invitation with this secret exists.")
    admission = AdmitUser(
        caller=command.caller, user_id=command.user_id, roles=command.roles, groups=command.groups
    )
    users.admit(change, admission)
    record = InvitationRecord(
        user_id=command.user_id,
        created_by=command.caller.subject,
        created_at_ms=change.at_ms,
        expires_at_ms=change.at_ms + command.ttl_seconds * 1000,
        used_at_ms=0,
    )
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


def revoke(change: Change, command: RevokeInvitation) -> None:
    """End the link of a user. Admin only. Raises NotFound if there is none that could be used."""
    require_admin(change.users, command.caller)
    ended = change.db.execute(
        "DELETE FROM invitations WHERE user_id = ? AND used_at_ms IS NULL", (command.user_id,)
    ).rowcount
    if not ended:
        raise NotFound("This user has no invitation that could be used.")


def redeem(change: Change, command: RedeemInvitation) -> UserRecord:
    """Use up the link, and return its user, who gets a token. Raises as `check`."""
    user = _admitted(change, command.secret_sha256)
    change.db.execute("UPDATE invitations SET used_at_ms = ? WHERE user_id = ?", (change.at_ms, user.user_id))
    return user


def check(question: Question, query: CheckInvitation) -> UserRecord:
    """Return the user whom the link admits now.

    Raises NotFound for an unknown secret, or that of an earlier link; Gone if the link was used or has
    expired, and if its user or its maker was disabled.
    """
    return _admitted(question, query.secret_sha256)


def list_page(question: Question, query: ListInvitations) -> InvitationPage:
    """Return one page of invitations, oldest first, used and expired ones too. Admin only."""
    require_admin(question.users, query.caller)
    rows = question.db.execute(
        f"SELECT {_COLUMNS} FROM invitations ORDER BY created_at_ms, user_id LIMIT ? OFFSET ?",
        (query.limit + 1, query.cursor),
    ).fetchall()
    page = [_record(row) for row in rows[: query.limit]]
    return InvitationPage(page, query.cursor + query.limit if len(rows) > query.limit else 0)


def _admitted(scope: Change | Question, secret_sha256: str) -> UserRecord:
    row = scope.db.execute(
        f"SELECT {_COLUMNS} FROM invitations WHERE secret_sha256 = ?", (secret_sha256,)
    ).fetchone()
    if row is None:
        raise NotFound("There is no such invitation.")
    invitation = _record(row)
    if invitation.used_at_ms:
        raise Gone("This invitation was used.")
    user = users.find_enabled(scope, invitation.user_id)
    is_offered = invitation.expires_at_ms > scope.at_ms and is_enabled_admin(scope.db, invitation.created_by)
    if user is None or not is_offered:
        raise Gone("This invitation has ended.")
    return user


def _record(row: tuple[Any, ...]) -> InvitationRecord:
    return InvitationRecord(*row)
