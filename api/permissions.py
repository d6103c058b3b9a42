"""Permissions on buckets and on files: `.../{bucket_id or file_uuid}/permissions`, the same for both."""

from typing import Final

import uuid_utils
from aiohttp import web
from msgspec import UNSET

from api.access import audited, authenticate
from api.bodies.checks import end_ms, path_uuid
from api.bodies.permissions import GrantBody, PermissionBody, PermissionList, WithdrawnPermission
from api.context import API
from api.pages import (
    NEXT_PAGE,
    PAGE_PARAMETERS,
    cursor_text,
    page_response,
    query_cursor,
    query_flag,
    query_limit,
)
from api.spec.operation import Answer, Handler, Operation, Parameter
from ca.errors import Conflict
from ca.usertoken import check_names, check_user_id
from metadata.model.records import PermissionPage, PermissionRecord
from metadata.protocol.commands import GrantPermission, WithdrawPermission
from metadata.protocol.commands.access import Target
from metadata.protocol.queries import CheckPrincipal, ListPermissions
from runtime.timestamps import rfc3339
from web.app import json_response, read_json

_PATHS: Final[dict[Target, str]] = {
    "bucket": "/api/v1/buckets/{bucket_id}/permissions",
    "file": "/api/v1/files/{file_uuid}/permissions",
}
_EXISTING: Final = Parameter(
    name="existing",
    description="`1`: fail with 404 if there is no such user, or no user with such a group or role.",
)
_IDS: Final[dict[Target, str]] = {"bucket": "bucket_id", "file": "file_uuid"}


async def grant_on_bucket(request: web.Request) -> web.Response:
    """Grant read, write or admin on a bucket and on every file in it. Needs admin on the bucket.

    Repeating it for the same principal and level keeps the entry and its id, and sets the new expiry.
    """
    return await _grant(request, "bucket")


async def list_on_bucket(request: web.Request) -> web.Response:
    """List the permissions on the bucket, oldest first, including expired ones. Needs admin on the bucket."""
    return await _list(request, "bucket")


async def withdraw_from_bucket(request: web.Request) -> web.Response:
    """Revoke a permission on the bucket, from the next request on. Needs admin on the bucket."""
    return await _withdraw(request, "bucket")


async def grant_on_file(request: web.Request) -> web.Response:
    """Grant read, write or admin on one file, in addition to its bucket's permissions.

    Needs admin on the file.

    Repeating it for the same principal and level keeps the entry and its id, and sets the new expiry.
    """
    return await _grant(request, "file")


async def list_on_file(request: web.Request) -> web.Response:
    """List the permissions on the file, oldest first, including expired ones. Needs admin on the file."""
    return await _list(request, "file")


async def withdraw_from_file(request: web.Request) -> web.Response:
    """Revoke a permission on the file, from the next request on. Needs admin on the file."""
    return await _withdraw(request, "file")


async def _grant(request: web.Request, target: Target) -> web.Response:
    caller = await authenticate(request)
    target_id = path_uuid(request, _IDS[target])
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
    return json_response(body_of(record), status=201, headers=headers)


async def _list(request: web.Request, target: Target) -> web.Response:
    caller = await authenticate(request)
    query = ListPermissions(
        caller=caller,
        target=target,
        target_id=path_uuid(request, _IDS[target]),
        limit=query_limit(request),
        cursor=query_cursor(request),
    )
    page = await request.app[API].metadata.read(query, PermissionPage)
    answer = PermissionList(
        count=len(page.permissions),
        permissions=[body_of(record) for record in page.permissions],
        next_cursor=cursor_text(page.next_cursor),
    )
    return page_response(request, answer, page.next_cursor)


async def _withdraw(request: web.Request, target: Target) -> web.Response:
    caller = await authenticate(request)
    target_id = path_uuid(request, _IDS[target])
    permission_id = path_uuid(request, "perm_id")
    command = WithdrawPermission(
        caller=caller, target=target, target_id=target_id, permission_id=permission_id
    )
    place = f"{target} {target_id} permission {permission_id}"
    async with audited(request, "withdraw_permission", principal=caller.subject, target=place):
        await request.app[API].metadata.propose(command, type(None))
    return json_response(WithdrawnPermission(deleted=True, id=permission_id))


def _principal_of(command: GrantPermission) -> CheckPrincipal:
    return CheckPrincipal(
        caller=command.caller, principal_type=command.principal_type, principal_id=command.principal_id
    )


def _checked_principal(body: GrantBody) -> str:
    """The id of the principal, checked by its type. Raises InvalidRequest."""
    if body.principal_type == "user":
        return check_user_id(body.principal_id, "principal_id")
    return check_names([body.principal_id], "principal_id")[0]


def body_of(record: PermissionRecord) -> PermissionBody:
    """The entry as it is answered."""
    return PermissionBody(
        id=record.permission_id,
        permission=record.permission,
        principal_id=record.principal_id,
        principal_type=record.principal_type,
        granted_by=record.granted_by,
        created_at=rfc3339(record.created_at_ms),
        expires_at=rfc3339(record.expires_at_ms),
    )


def _operations(target: Target, grant: Handler, listing: Handler, withdraw: Handler) -> tuple[Operation, ...]:
    path = _PATHS[target]
    return (
        Operation(
            name=f"grant_{target}_permission",
            tag="Permissions",
            method="POST",
            path=path,
            handler=grant,
            summary=f"Grant a permission on a {target}",
            body=GrantBody,
            query=(_EXISTING,),
            answers={
                201: Answer(
                    description="The permission entry.",
                    body=PermissionBody,
                    headers={"Location": "The path of the entry, to delete it."},
                )
            },
            errors=(Conflict,),
            changes=True,
        ),
        Operation(
            name=f"list_{target}_permissions",
            tag="Permissions",
            method="GET",
            path=path,
            handler=listing,
            summary=f"List the permissions on a {target}",
            query=PAGE_PARAMETERS,
            answers={
                200: Answer(description="A page of permissions.", body=PermissionList, headers=NEXT_PAGE)
            },
        ),
        Operation(
            name=f"withdraw_{target}_permission",
            tag="Permissions",
            method="DELETE",
            path=f"{path}/{{perm_id}}",
            handler=withdraw,
            summary=f"Revoke a permission on a {target}",
            answers={200: Answer(description="The permission is revoked.", body=WithdrawnPermission)},
        ),
    )


OPERATIONS: Final[tuple[Operation, ...]] = (
    *_operations("bucket", grant_on_bucket, list_on_bucket, withdraw_from_bucket),
    *_operations("file", grant_on_file, list_on_file, withdraw_from_file),
)
