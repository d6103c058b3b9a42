"""Commands about people: groups, sessions, invitations. Apart from `access`: none is older than rules 6.

Tested by tests/unit/coordinator/machine/people/test_groups.py.
"""

from msgspec import UNSET, UnsetType

from metadata.model.records import Caller
from metadata.model.rules import GROUPS_ARE_MANAGED, INVITATIONS_ARE_MADE, SESSIONS_ARE_RECORDED
from metadata.protocol.commands.root import NODES, Command
from runtime.bounds import Count, Ids, Label, LifeSeconds, Names, Text


class PutGroup(Command, frozen=True, kw_only=True, tag="put_group"):
    """Create a group, or change its description; unset leaves it. Admin only.

    Replies with the GroupRecord.
    """

    proposed_by = NODES
    since = GROUPS_ARE_MANAGED
    caller: Caller
    group: Text
    description: Label | UnsetType = UNSET


class AddMembers(Command, frozen=True, kw_only=True, tag="add_members"):
    """Add users to a group, which is created if necessary. Admin only.

    If one of them is unknown, none is added. Replies with the users that no
    administrator had added before.
    """

    proposed_by = NODES
    since = GROUPS_ARE_MANAGED
    is_long = True
    caller: Caller
    group: Text
    user_ids: Ids


class RemoveMember(Command, frozen=True, kw_only=True, tag="remove_member"):
    """Remove a user from a group. Admin only. A conflict if only a provider of sign-in has put it there."""

    proposed_by = NODES
    since = GROUPS_ARE_MANAGED
    caller: Caller
    group: Text
    user_id: Text


class DeleteGroup(Command, frozen=True, kw_only=True, tag="delete_group"):
    """Delete a group: all memberships end, and the permissions that it was granted. Admin only."""

    proposed_by = NODES
    since = GROUPS_ARE_MANAGED
    is_long = True
    caller: Caller
    group: Text


class RecordSession(Command, frozen=True, kw_only=True, tag="record_session"):
    """The leader is about to sign a token of the session, for a user with this generation.

    It is a new session, or one that gets another token. Refused if the token would not be valid.
    """

    since = SESSIONS_ARE_RECORDED
    user_id: Text
    generation: Count
    session_id: Text
    label: Label
    created_by: Text
    ttl_seconds: LifeSeconds


class EndSession(Command, frozen=True, kw_only=True, tag="end_session"):
    """The tokens of a session are rejected from now on. By its user, or an admin."""

    proposed_by = NODES
    since = SESSIONS_ARE_RECORDED
    caller: Caller
    user_id: Text
    session_id: Text


class EndSessions(Command, frozen=True, kw_only=True, tag="end_sessions"):
    """All tokens of a user die; permissions and public tokens stay. By the user, or an admin."""

    proposed_by = NODES
    since = SESSIONS_ARE_RECORDED
    caller: Caller
    user_id: Text


class CreateInvitation(Command, frozen=True, kw_only=True, tag="create_invitation"):
    """A link gives a user its first token, once. Its earlier link ends. Admin only.

    The user is created if necessary; roles and groups are set unless they are None. A conflict if the user is
    disabled. Replies with the InvitationRecord.
    """

    proposed_by = NODES
    since = INVITATIONS_ARE_MADE
    caller: Caller
    user_id: Text
    roles: Names | None
    groups: Names | None
    secret_sha256: Text
    ttl_seconds: LifeSeconds


class RevokeInvitation(Command, frozen=True, kw_only=True, tag="revoke_invitation"):
    """The link of a user ends. Admin only."""

    proposed_by = NODES
    since = INVITATIONS_ARE_MADE
    caller: Caller
    user_id: Text


class RedeemInvitation(Command, frozen=True, kw_only=True, tag="redeem_invitation"):
    """The bearer of a link gets a token: the link is used up. Replies with the UserRecord.

    The leader proposes it for a call, and signs the token after it.
    """

    since = INVITATIONS_ARE_MADE
    secret_sha256: Text
