"""Groups of users, their sessions, and invitations. Apart from `administration`, which is long.

Tested by tests/cluster/test_command_people.py.
"""

from collections.abc import AsyncIterator, Sequence

import msgspec

from filestore_client.administration import Resource, given
from filestore_client.base.pages import pages, with_query
from filestore_client.base.paths import path_part
from filestore_client.base.records import Grant, Group, GroupMember, Invitation, ListedInvitation, Session


class _Added(msgspec.Struct, frozen=True):
    added: list[str]


class Groups(Resource):
    """Groups of users. Admins only."""

    def list(self) -> AsyncIterator[Group]:
        """Every group, by name."""
        return pages(self._transport, "/api/v1/groups", "groups", Group)

    async def get(self, group: str) -> Group:
        """One group."""
        return await self._transport.call("GET", _group(group), Group)

    async def put(self, group: str, *, description: str | None = None) -> Group:
        """Create a group, or change one; a description that is None stays unchanged."""
        body = given(description=description)
        return await self._transport.call("PUT", _group(group), Group, body=body)

    async def delete(self, group: str) -> None:
        """Delete a group, its memberships and its permissions."""
        await self._transport.delete(_group(group))

    def members(self, group: str) -> AsyncIterator[GroupMember]:
        """Every user in the group."""
        return pages(self._transport, f"{_group(group)}/members", "members", GroupMember)

    async def add(self, group: str, user_ids: Sequence[str]) -> Sequence[str]:
        """Add up to 500 existing users to a group, which is created if necessary.

        Returns those that no administrator had added before. Raises NotFound, and adds none, if one of them
        does not exist.
        """
        body = {"user_ids": list(user_ids)}
        path = f"{_group(group)}/members"
        return (await self._transport.call("POST", path, _Added, body=body, repeats=True)).added

    async def remove(self, group: str, user_id: str) -> None:
        """Remove a user from a group. Raises Conflict if a provider of sign-in has put it there."""
        await self._transport.delete(f"{_group(group)}/members/{path_part(user_id)}")

    def grants(self, group: str) -> AsyncIterator[Grant]:
        """Every permission that the group itself was granted."""
        return pages(self._transport, f"{_group(group)}/permissions", "permissions", Grant)


class Sessions(Resource):
    """Sessions of a user: a first token, and those that were renewed from it. Of others for admins only."""

    def list(self, user_id: str) -> AsyncIterator[Session]:
        """Every live session of a user."""
        return pages(self._transport, _sessions(user_id), "sessions", Session)

    async def end(self, user_id: str, session_id: str) -> None:
        """End a session: its tokens are rejected from now on."""
        await self._transport.delete(f"{_sessions(user_id)}/{path_part(session_id)}")

    async def end_all(self, user_id: str) -> None:
        """End all sessions of a user, and every other token. Permissions and links stay."""
        await self._transport.delete(_sessions(user_id))


class Invitations(Resource):
    """Links with which users get their first token. Admins only."""

    def list(self) -> AsyncIterator[ListedInvitation]:
        """The newest invitation of each user, used and expired ones too."""
        return pages(self._transport, "/api/v1/auth/invitations", "invitations", ListedInvitation)

    async def create(
        self,
        user_id: str,
        *,
        roles: Sequence[str] | None = None,
        groups: Sequence[str] | None = None,
        ttl_seconds: int | None = None,
        existing: bool = False,
    ) -> Invitation:
        """Make the link of a user, who is created if unknown; an earlier link of the user ends.

        None leaves roles and groups alone. If `existing`, raises NotFound instead of creating a user.
        """
        body = given(roles=roles, groups=groups, ttl_seconds=ttl_seconds)
        path = with_query(_invitation(user_id), existing="1" if existing else "")
        return await self._transport.call("POST", path, Invitation, body=body, repeats=True)

    async def revoke(self, user_id: str) -> None:
        """End the link of a user. Raises NotFound if there is none that could be used."""
        await self._transport.delete(_invitation(user_id))


def _sessions(user_id: str) -> str:
    return f"/api/v1/auth/users/{path_part(user_id)}/sessions"


def _invitation(user_id: str) -> str:
    return f"/api/v1/auth/users/{path_part(user_id)}/invitation"


def _group(group: str) -> str:
    return f"/api/v1/groups/{path_part(group)}"
