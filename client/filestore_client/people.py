"""Groups of users, for administrators."""

from collections.abc import AsyncIterator, Sequence

import msgspec

from filestore_client.administration import Resource, given
from filestore_client.base.pages import pages
from filestore_client.base.paths import path_part
from filestore_client.base.records import Grant, Group, GroupMember


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


def _group(group: str) -> str:
    return f"/api/v1/groups/{path_part(group)}"
