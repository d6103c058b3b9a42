"""Operations on groups: their list, their members and what they were granted. Admins only."""

from typing import Final

from aiohttp import web
from msgspec import UNSET

from api.access import audited, authenticate
from api.bodies.checks import check_label
from api.bodies.files import KIND_WORDS
from api.bodies.groups import (
    AddedMembers,
    AddMembersBody,
    DeletedGroup,
    GroupBody,
    GroupList,
    MemberBody,
    MemberList,
    PutGroupBody,
    RemovedMember,
)
from api.bodies.permissions import OwnPermissionBody, OwnPermissionList
from api.bodies.views import shown
from api.context import API
from api.pages import NEXT_PAGE, PAGE_PARAMETERS, page_response, page_wanted
from api.spec.operation import Answer, OperationTable
from api.users import path_user
from ca.errors import Conflict, InvalidRequest, NotFound
from ca.names import check_names, check_user_id
from metadata.model.listed_records import GrantPage, GroupPage, GroupRecord, MemberPage
from metadata.protocol.commands import AddMembers, DeleteGroup, PutGroup, RemoveMember
from metadata.protocol.people_queries import FindGroup, ListGroupPermissions, ListGroups, ListMembers
from web.app import json_response, read_json

_GROUPS: Final = "/api/v1/groups"
_GROUP: Final = f"{_GROUPS}/{{group}}"
_MEMBERS: Final = f"{_GROUP}/members"
OPERATIONS: Final = OperationTable("Groups")


@OPERATIONS.add(
    f"GET {_GROUPS}",
    "list_groups",
    "List groups",
    Answer("A page of groups.", GroupList, headers=NEXT_PAGE),
    query=PAGE_PARAMETERS,
)
async def list_page(request: web.Request) -> web.Response:
    """List all groups by name: those that were created, and those that users are in. Admins only."""
    caller = await authenticate(request)
    page = await request.app[API].metadata.read(ListGroups(caller=caller, **page_wanted(request)), GroupPage)
    groups = [shown(GroupBody, group) for group in page.groups]
    return page_response(request, GroupList, groups, page.next_cursor)


@OPERATIONS.add(f"GET {_GROUP}", "get_group", "Show a group", Answer("The group.", GroupBody))
async def get(request: web.Request) -> web.Response:
    """Show a group. Admins only."""
    caller = await authenticate(request)
    query = FindGroup(caller=caller, group=_path_group(request))
    return json_response(shown(GroupBody, await request.app[API].metadata.read(query, GroupRecord)))


@OPERATIONS.add(
    f"PUT {_GROUP}",
    "put_group",
    "Create or change a group",
    Answer("The group as it is now.", GroupBody),
    body=PutGroupBody,
    changes=True,
)
async def put(request: web.Request) -> web.Response:
    """Create a group without members, or change its description. Admins only."""
    caller = await authenticate(request)
    group = _path_group(request)
    body = await read_json(request, PutGroupBody)
    description = UNSET if body.description is None else check_label(body.description, "description")
    command = PutGroup(caller=caller, group=group, description=description)
    async with audited(request, "put_group", principal=caller.subject, target=f"group {group}"):
        record = await request.app[API].metadata.propose(command, GroupRecord)
    return json_response(shown(GroupBody, record))


@OPERATIONS.add(
    f"DELETE {_GROUP}", "delete_group", "Delete a group", Answer("The group is deleted.", DeletedGroup)
)
async def delete(request: web.Request) -> web.Response:
    """Delete a group: its memberships and its permissions end with the next request. Admins only.

    A provider of sign-in may report the group again; it has no permissions then.
    """
    caller = await authenticate(request)
    group = _path_group(request)
    async with audited(request, "delete_group", principal=caller.subject, target=f"group {group}"):
        await request.app[API].metadata.propose(DeleteGroup(caller=caller, group=group), type(None))
    return json_response(DeletedGroup(deleted=True, group=group))


@OPERATIONS.add(
    f"GET {_MEMBERS}",
    "list_group_members",
    "List the members of a group",
    Answer("A page of members.", MemberList, headers=NEXT_PAGE),
    query=PAGE_PARAMETERS,
)
async def list_members(request: web.Request) -> web.Response:
    """List the users in a group, and why they are in it. Admins only."""
    caller = await authenticate(request)
    query = ListMembers(caller=caller, group=_path_group(request), **page_wanted(request))
    page = await request.app[API].metadata.read(query, MemberPage)
    return page_response(
        request, MemberList, [shown(MemberBody, member) for member in page.members], page.next_cursor
    )


@OPERATIONS.add(
    f"POST {_MEMBERS}",
    "add_group_members",
    "Add users to a group",
    Answer("The users are in the group.", AddedMembers),
    body=AddMembersBody,
    changes=True,
)
async def add_members(request: web.Request) -> web.Response:
    """Add users to a group, which is created if necessary. Admins only.

    If one of them does not exist, none is added. What the group was granted holds with their next request.
    """
    caller = await authenticate(request)
    group = _path_group(request)
    body = await read_json(request, AddMembersBody)
    users = [check_user_id(user_id, "user_ids") for user_id in body.user_ids]
    command = AddMembers(caller=caller, group=group, user_ids=users)
    target = f"group {group}: {', '.join(users)}"
    async with audited(request, "add_group_members", principal=caller.subject, target=target):
        added = await request.app[API].metadata.propose(command, list[str])
    return json_response(AddedMembers(group=group, added=added))


@OPERATIONS.add(
    f"DELETE {_MEMBERS}/{{user_id}}",
    "remove_group_member",
    "Remove a user from a group",
    Answer("The user is not in the group any more.", RemovedMember),
    errors=(Conflict,),
)
async def remove_member(request: web.Request) -> web.Response:
    """Remove a user from a group: what the group was granted ends with its next request. Admins only.

    Conflict if only a provider of sign-in reports the user as a member.
    """
    caller = await authenticate(request)
    group = _path_group(request)
    user_id = path_user(request)
    command = RemoveMember(caller=caller, group=group, user_id=user_id)
    target = f"group {group}: {user_id}"
    async with audited(request, "remove_group_member", principal=caller.subject, target=target):
        await request.app[API].metadata.propose(command, type(None))
    return json_response(RemovedMember(deleted=True, group=group, user_id=user_id))


@OPERATIONS.add(
    f"GET {_GROUP}/permissions",
    "list_group_permissions",
    "List what a group was granted",
    Answer("A page of permissions.", OwnPermissionList, headers=NEXT_PAGE),
    query=PAGE_PARAMETERS,
)
async def list_permissions(request: web.Request) -> web.Response:
    """List the permissions of the group on buckets and files, expired ones too. Admins only."""
    caller = await authenticate(request)
    query = ListGroupPermissions(caller=caller, group=_path_group(request), **page_wanted(request))
    page = await request.app[API].metadata.read(query, GrantPage)
    permissions = [
        shown(OwnPermissionBody, record, id=record.permission_id, kind=KIND_WORDS.get(record.kind, ""))
        for record in page.permissions
    ]
    return page_response(request, OwnPermissionList, permissions, page.next_cursor)


def _path_group(request: web.Request) -> str:
    """Return the name of the group in the path. Raises NotFound for a malformed name."""
    try:
        return check_names([request.match_info["group"]], "group")[0]
    except InvalidRequest as error:
        raise NotFound("There is no group with this name.") from error
