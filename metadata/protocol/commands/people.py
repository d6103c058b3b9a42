"""Commands about people: groups and their members. Apart from `access`: none is older than rules 6."""

from msgspec import UNSET, UnsetType

from metadata.model.records import Caller
from metadata.model.rules import GROUPS_ARE_MANAGED
from metadata.protocol.commands.root import NODES, Command
from runtime.bounds import Ids, Label, Text


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
