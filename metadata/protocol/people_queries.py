"""Questions about people: groups, sessions, invitations, providers. Apart from those about files and nodes.

Tested by tests/unit/coordinator/sign_in/test_flows.py.
"""

from msgspec import Struct

from metadata.model.providers import PersonIdentity
from metadata.model.records import Caller, UserRecord
from metadata.protocol.query_root import ListQuery, Query
from runtime.bounds import Text


class FindGroup(Query, frozen=True, kw_only=True, tag="find_group"):
    """Admin only: the GroupRecord; not_found when there is none."""

    caller: Caller
    group: Text


class ListGroups(ListQuery, frozen=True, kw_only=True, tag="list_groups"):
    """Admin only: a GroupPage, by name. The cursor counts the groups of earlier pages."""


class ListMembers(ListQuery, frozen=True, kw_only=True, tag="list_members"):
    """Admin only: a MemberPage."""

    group: Text


class ListGroupPermissions(ListQuery, frozen=True, kw_only=True, tag="list_group_permissions"):
    """Admin only: a GrantPage of what the group itself was granted."""

    group: Text


class ListSessions(ListQuery, frozen=True, kw_only=True, tag="list_sessions"):
    """The user itself, or an admin: a SessionPage. The cursor counts the sessions of earlier pages."""

    user_id: Text


class ListInvitations(ListQuery, frozen=True, kw_only=True, tag="list_invitations"):
    """Admin only: an InvitationPage. The cursor counts the invitations of earlier pages."""


class CheckInvitation(Query, frozen=True, kw_only=True, tag="check_invitation"):
    """The user whom the link with this secret admits now; not_found or gone otherwise."""

    secret_sha256: Text


class FindProvider(Query, frozen=True, kw_only=True, tag="find_provider"):
    """Admin only: the ProviderRecord of this name; not_found when there is none."""

    caller: Caller
    name: Text


class MatchIdentity(Query, frozen=True, kw_only=True, tag="match_identity"):
    """For members only: the KnownIdentity."""

    identity: PersonIdentity


class FindProviderOfUser(Query, frozen=True, kw_only=True, tag="find_provider_of_user"):
    """For members only: the name of the provider with which a user signs in, "" for none."""

    user_id: Text


class KnownIdentity(Struct, frozen=True):
    """The user that an identity is, None if it is new; whether all that it gives is recorded already."""

    user: UserRecord | None
    is_recorded: bool
