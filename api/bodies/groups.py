"""Bodies of `/api/v1/groups`. Apart from those of users: a resource of its own."""

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from api.bodies.fields import Count, Deleted, GroupOrRole, MaybeLabel, NextCursor, Request, UserId
from runtime.bounds import IDS_MAX

GroupName = Annotated[
    GroupOrRole, Meta(description="The name of the group, as permissions name it.", examples=["netlab-2026"])
]
Description = Annotated[
    MaybeLabel, Meta(description="What the group is for, for people.", examples=["Network lab, winter 2026"])
]


class PutGroupBody(Request, frozen=True, kw_only=True):
    """A group to create or change. An absent description stays as it is."""

    description: Description | None = None


class AddMembersBody(Request, frozen=True, kw_only=True):
    """Users who are added to the group. All of them must exist."""

    user_ids: Annotated[
        list[UserId],
        Meta(min_length=1, max_length=IDS_MAX, description="The users.", examples=[["alice", "bob"]]),
    ]


class GroupBody(Struct, frozen=True, kw_only=True):
    """A group."""

    group: GroupName
    description: Description
    members: Annotated[int, Meta(ge=0, description="How many users are in the group.", examples=[24])]


class GroupList(Struct, frozen=True, kw_only=True):
    """A page of groups, by name."""

    count: Count
    groups: Annotated[list[GroupBody], Meta(description="The groups.")]
    next_cursor: NextCursor | UnsetType = UNSET


class MemberBody(Struct, frozen=True, kw_only=True):
    """A user in a group."""

    user_id: UserId
    sources: Annotated[
        list[str],
        Meta(
            description=(
                "Why the user is in the group: `local` if an administrator has added it, and the name of each"
                " provider of sign-in that reports the group."
            ),
            examples=[["local"]],
        ),
    ]
    disabled: Annotated[bool, Meta(description="Whether the user is disabled.", examples=[False])]


class MemberList(Struct, frozen=True, kw_only=True):
    """A page of members, the oldest user first."""

    count: Count
    members: Annotated[list[MemberBody], Meta(description="The members.")]
    next_cursor: NextCursor | UnsetType = UNSET


class AddedMembers(Struct, frozen=True, kw_only=True):
    """The users are in the group."""

    group: GroupName
    added: Annotated[
        list[UserId],
        Meta(description="Those that no administrator had added before.", examples=[["alice"]]),
    ]


class RemovedMember(Struct, frozen=True, kw_only=True):
    """The user is not in the group any more."""

    deleted: Deleted
    group: GroupName
    user_id: UserId


class DeletedGroup(Struct, frozen=True, kw_only=True):
    """The group, its memberships and its permissions are gone."""

    deleted: Deleted
    group: GroupName
