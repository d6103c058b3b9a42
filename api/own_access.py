"""Lists of what concerns the caller, wherever it is: `/api/v1/permissions` and `/api/v1/public-tokens`."""

from typing import Final

from aiohttp import web
from msgspec.structs import asdict

from api.access import authenticate
from api.bodies.files import KIND_WORDS
from api.bodies.permissions import OwnPermissionBody, OwnPermissionList
from api.bodies.public_tokens import OwnPublicToken, OwnPublicTokenList
from api.context import API
from api.pages import NEXT_PAGE, PAGE_PARAMETERS, cursor_text, page_response, query_cursor, query_limit
from api.permissions import body_of
from api.public_tokens import listed
from api.spec.operation import Answer, Operation
from metadata.model.listed_records import GrantPage, GrantRecord, SharePage, ShareRecord
from metadata.protocol.queries import ListOwnPermissions, ListOwnPublicTokens


async def list_permissions(request: web.Request) -> web.Response:
    """List the permissions that concern the caller, oldest first. Admins see all permissions.

    They are those granted to the caller or to its groups and roles, those that it granted, and those on its
    buckets and files. Expired permissions granted to the caller are omitted.
    """
    caller = await authenticate(request)
    query = ListOwnPermissions(caller=caller, limit=query_limit(request), cursor=query_cursor(request))
    page = await request.app[API].metadata.read(query, GrantPage)
    answer = OwnPermissionList(
        count=len(page.permissions),
        permissions=[_permission(record) for record in page.permissions],
        next_cursor=cursor_text(page.next_cursor),
    )
    return page_response(request, answer, page.next_cursor)


async def list_public_tokens(request: web.Request) -> web.Response:
    """List the links that the caller made, and those on its files, oldest first. Admins see all.

    The links have no secrets. Expired and revoked links are included. Links on files of which the caller is
    no longer admin are omitted.
    """
    caller = await authenticate(request)
    query = ListOwnPublicTokens(caller=caller, limit=query_limit(request), cursor=query_cursor(request))
    page = await request.app[API].metadata.read(query, SharePage)
    answer = OwnPublicTokenList(
        count=len(page.public_tokens),
        public_tokens=[_public_token(record) for record in page.public_tokens],
        next_cursor=cursor_text(page.next_cursor),
    )
    return page_response(request, answer, page.next_cursor)


def _permission(record: GrantRecord) -> OwnPermissionBody:
    return OwnPermissionBody(
        **asdict(body_of(record)),
        target=record.target,
        bucket_id=record.bucket_id,
        file_uuid=record.file_uuid,
        name=record.name,
        kind=KIND_WORDS[record.kind] if record.kind else "",
    )


def _public_token(record: ShareRecord) -> OwnPublicToken:
    return OwnPublicToken(**asdict(listed(record)), filename=record.filename, kind=KIND_WORDS[record.kind])


OPERATIONS: Final[tuple[Operation, ...]] = (
    Operation(
        name="list_own_permissions",
        tag="Permissions",
        method="GET",
        path="/api/v1/permissions",
        handler=list_permissions,
        summary="List the caller's permissions",
        query=PAGE_PARAMETERS,
        answers={
            200: Answer(description="A page of permissions.", body=OwnPermissionList, headers=NEXT_PAGE)
        },
    ),
    Operation(
        name="list_own_public_tokens",
        tag="Public tokens",
        method="GET",
        path="/api/v1/public-tokens",
        handler=list_public_tokens,
        summary="List the caller's public tokens",
        query=PAGE_PARAMETERS,
        answers={200: Answer(description="A page of links.", body=OwnPublicTokenList, headers=NEXT_PAGE)},
    ),
)
