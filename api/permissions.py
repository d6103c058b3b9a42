"""Permissions on buckets and on files: `.../{bucket_id or file_uuid}/permissions`.

`/api/v1/permissions` lists the permissions that concern the caller, on any bucket or file.
"""

from typing import Final

import uuid_utils
from aiohttp import web
from msgspec import UNSET

from api.access import audited, authenticate
from api.bodies.checks import end_ms, path_uuid
from api.bodies.files import KIND_WORDS
from api.bodies.permissions import (
    GrantBody,
    OwnPermissionBody,
    OwnPermissionList,
    PermissionBody,
    PermissionList,
    WithdrawnPermission,
)
from api.bodies.views import shown
from api.context import API
from api.pages import (
    NEXT_PAGE,
    PAGE_PARAMETERS,
    page_response,
    page_wanted,
    query_flag,
)
from api.spec.operation import Answer, OperationTable, Parameter
from ca.errors import Conflict
from ca.names import check_names, check_user_id
from metadata.model.listed_records import GrantPage
from metadata.model.records import PermissionPage, PermissionRecord
from metadata.protocol.commands import GrantPermission, WithdrawPermission
from metadata.protocol.commands.access import Target
from metadata.protocol.queries import CheckPrincipal, ListOwnPermissions, ListPermissions
from web.app import json_response, read_json

_PLACES: Final[dict[Target, tuple[str, str]]] = {  # the path, and what a permission applies to
    "bucket": ("/api/v1/buckets/{bucket_id}/permissions", "a bucket and on every file in it"),
    "file": ("/api/v1/files/{file_uuid}/permissions", "one file, in addition to those of its bucket"),
}
_EXISTING: Final = Parameter(
    "existing", ("`1`: fail with 404 if there is no such user or group, or no user with such a role.")
)
OPERATIONS: Final = OperationTable("Permissions")


@OPERATIONS.add(
    "GET /api/v1/permissions",
    "list_own_permissions",
    "List the caller's permissions",
    Answer("A page of permissions.", OwnPermissionList, headers=NEXT_PAGE),
    query=PAGE_PARAMETERS,
)
async def list_own(request: web.Request) -> web.Response:
    """List the permissions that concern the caller, oldest first. Admins see all.

    These are the permissions of the caller, its groups and its roles, those that it granted, and those on
    files and buckets that it owns. Expired permissions of the caller are left out.
    """
    caller = await authenticate(request)
    query = ListOwnPermissions(caller=caller, **page_wanted(request))
    page = await request.app[API].metadata.read(query, GrantPage)
    permissions = [
        shown(OwnPermissionBody, record, id=record.permission_id, kind=KIND_WORDS.get(record.kind, ""))
        for record in page.permissions
    ]
    return page_response(request, OwnPermissionList, permissions, page.next_cursor)


async def _grant(request: web.Request) -> web.Response:
    caller = await authenticate(request)
    target, target_id = _target(request)
    body = await read_json(request, GrantBody)
    command = GrantPermission(
        caller=caller,
        target=target,
        target_id=target_id,
        permission_id=str(uuid_utils.uuid7()),
        permission=body.permission,
        principal_type=body.principal_type,
        principal_id=_checked_principal(body),
        expires_at_ms=end_ms(body.expires_at, body.ttl_seconds),
        ttl_seconds=body.ttl_seconds or UNSET,
    )
    place = f"{target} {target_id}: {body.permission} for {body.principal_type} {command.principal_id}"
    async with audited(request, "grant_permission", principal=caller.subject, target=place):
        if query_flag(request, "existing"):
            await request.app[API].metadata.read(_principal_of(command), type(None))
        record = await request.app[API].metadata.propose(command, PermissionRecord)
    headers = {"Location": f"{request.path}/{record.permission_id}"}
    return json_response(_body_of(record), status=201, headers=headers)


async def _list(request: web.Request) -> web.Response:
    caller = await authenticate(request)
    target, target_id = _target(request)
    query = ListPermissions(caller=caller, target=target, target_id=target_id, **page_wanted(request))
    page = await request.app[API].metadata.read(query, PermissionPage)
    permissions = [_body_of(record) for record in page.permissions]
    return page_response(request, PermissionList, permissions, page.next_cursor)


async def _withdraw(request: web.Request) -> web.Response:
    caller = await authenticate(request)
    target, target_id = _target(request)
    permission_id = path_uuid(request, "perm_id")
    command = WithdrawPermission(
        caller=caller, target=target, target_id=target_id, permission_id=permission_id
    )
    place = f"{target} {target_id} permission {permission_id}"
    async with audited(request, "withdraw_permission", principal=caller.subject, target=place):
        await request.app[API].metadata.propose(command, type(None))
    return json_response(WithdrawnPermission(deleted=True, id=permission_id))


def _target(request: web.Request) -> tuple[Target, str]:
    """Return the bucket or file that the path names. Raises NotFound."""
    if "bucket_id" in request.match_info:
        return "bucket", path_uuid(request, "bucket_id")
    return "file", path_uuid(request)


def _principal_of(command: GrantPermission) -> CheckPrincipal:
    return CheckPrincipal(
        caller=command.caller, principal_type=command.principal_type, principal_id=command.principal_id
    )


def _checked_principal(body: GrantBody) -> str:
    """Return the id of the principal. Raises InvalidRequest if it is malformed for its type."""
    if body.principal_type == "user":
        return check_user_id(body.principal_id, "principal_id")
    return check_names([body.principal_id], "principal_id")[0]


def _body_of(record: PermissionRecord) -> PermissionBody:
    return shown(PermissionBody, record, id=record.permission_id)


for each, (path, what) in _PLACES.items():
    OPERATIONS.add(
        f"POST {path}",
        f"grant_{each}_permission",
        f"Grant a permission on a {each}",
        Answer(
            "The permission entry.",
            PermissionBody,
            headers={"Location": "The path of the entry, to delete it."},
        ),
        status=201,
        description=f"Read, write or admin on {what}. Needs admin on the {each}.\n\n"
        "If the principal already has this permission, the entry keeps its id and gets the new expiry.",
        body=GrantBody,
        query=(_EXISTING,),
        errors=(Conflict,),
        changes=True,
    )(_grant)
    OPERATIONS.add(
        f"GET {path}",
        f"list_{each}_permissions",
        f"List the permissions on a {each}",
        Answer("A page of permissions.", PermissionList, headers=NEXT_PAGE),
        description=f"All permissions on the {each}, oldest first, expired entries too. "
        f"Needs admin on the {each}.",
        query=PAGE_PARAMETERS,
    )(_list)
    OPERATIONS.add(
        f"DELETE {path}/{{perm_id}}",
        f"withdraw_{each}_permission",
        f"Revoke a permission on a {each}",
        Answer("The permission is revoked.", WithdrawnPermission),
        description=f"It ends with the next request of its principal. Needs admin on the {each}.",
    )(_withdraw)
