"""Public tokens: links to one file that need no credential.

The secret is in the answer that makes the link, and nowhere else: the cluster stores only its hash.
"""

import hashlib
import secrets
from typing import Final

import uuid_utils
from aiohttp import web
from msgspec import UNSET

from api.access import audited, authenticate
from api.bodies.checks import check_uuid, end_ms, path_uuid
from api.bodies.public_tokens import (
    CreatePublicTokenBody,
    ListedPublicToken,
    PublicTokenBody,
    PublicTokenList,
    RevokedPublicToken,
)
from api.context import API
from api.pages import NEXT_PAGE, PAGE_PARAMETERS, cursor_text, page_response, query_cursor, query_limit
from api.spec.operation import Answer, Operation
from ca.errors import Conflict, Gone, InvalidRequest
from metadata.model.records import PublicTokenPage, PublicTokenRecord
from metadata.protocol.commands import CreatePublicToken, RevokePublicToken
from metadata.protocol.queries import ListPublicTokens
from runtime.timestamps import rfc3339
from web.app import json_response, read_json

_FILE: Final = "/api/v1/files/{file_uuid}"
_TOKEN_BYTES: Final = 32


async def create(request: web.Request) -> web.Response:
    """Create a temporary link with which anyone can download the file. Needs admin on the file.

    The link works while its creator has this permission. It is shown only in this response.
    """
    caller = await authenticate(request)
    file_uuid = path_uuid(request)
    body = await read_json(request, CreatePublicTokenBody)
    if body.file_uuid and check_uuid(body.file_uuid, "file_uuid") != file_uuid:
        raise InvalidRequest("file_uuid: does not match the file in the path")
    secret = secrets.token_urlsafe(_TOKEN_BYTES)
    command = CreatePublicToken(
        caller=caller,
        file_uuid=file_uuid,
        bucket_id=check_uuid(body.bucket_uuid, "bucket_uuid") if body.bucket_uuid else "",
        token_id=str(uuid_utils.uuid7()),
        token_sha256=hashlib.sha256(secret.encode("ascii")).hexdigest(),
        expires_at_ms=end_ms(body.expires_at, body.ttl_seconds),
        ttl_seconds=body.ttl_seconds or UNSET,
    )
    services = request.app[API]
    async with audited(request, "create_public_token", principal=caller.subject, target=f"file {file_uuid}"):
        record = await services.metadata.propose(command, PublicTokenRecord)
    answer = PublicTokenBody(
        token=secret,
        url=f"{services.link_url(request)}/api/v1/public/files/{record.bucket_id}/{secret}",
        file_uuid=record.file_uuid,
        bucket_uuid=record.bucket_id,
        expires_at=rfc3339(record.expires_at_ms),
    )
    location = f"{_FILE.format(file_uuid=file_uuid)}/public-tokens/{record.token_id}"
    return json_response(answer, status=201, headers={"Location": location})


async def list_page(request: web.Request) -> web.Response:
    """List the file's links without their secrets, oldest first. Needs admin on the file.

    Expired and revoked links are included.
    """
    caller = await authenticate(request)
    query = ListPublicTokens(
        caller=caller,
        file_uuid=path_uuid(request),
        limit=query_limit(request),
        cursor=query_cursor(request),
    )
    page = await request.app[API].metadata.read(query, PublicTokenPage)
    answer = PublicTokenList(
        count=len(page.public_tokens),
        public_tokens=[listed(record) for record in page.public_tokens],
        next_cursor=cursor_text(page.next_cursor),
    )
    return page_response(request, answer, page.next_cursor)


async def revoke(request: web.Request) -> web.Response:
    """Revoke the link, which is answered with 410 from now on. Needs admin on the file."""
    caller = await authenticate(request)
    file_uuid, token_id = path_uuid(request), path_uuid(request, "id")
    command = RevokePublicToken(caller=caller, file_uuid=file_uuid, token_id=token_id)
    place = f"file {file_uuid} public token {token_id}"
    async with audited(request, "revoke_public_token", principal=caller.subject, target=place):
        await request.app[API].metadata.propose(command, type(None))
    return json_response(RevokedPublicToken(deleted=True, id=token_id))


def listed(record: PublicTokenRecord) -> ListedPublicToken:
    """The token as lists show it."""
    return ListedPublicToken(
        id=record.token_id,
        file_uuid=record.file_uuid,
        bucket_uuid=record.bucket_id,
        created_by=record.created_by,
        created_at=rfc3339(record.created_at_ms),
        expires_at=rfc3339(record.expires_at_ms),
        status=record.status,
    )


OPERATIONS: Final[tuple[Operation, ...]] = (
    Operation(
        name="create_public_token",
        tag="Public tokens",
        method="POST",
        path=f"{_FILE}/public-token",
        handler=create,
        summary="Share a file by a public link",
        body=CreatePublicTokenBody,
        is_body_required=False,
        answers={
            201: Answer(
                description="The link.",
                body=PublicTokenBody,
                headers={
                    "Location": "The path of the public token, to delete it.",
                    "Cache-Control": "no-store",
                },
            )
        },
        errors=(Conflict, Gone),
        changes=True,
    ),
    Operation(
        name="list_public_tokens",
        tag="Public tokens",
        method="GET",
        path=f"{_FILE}/public-tokens",
        handler=list_page,
        summary="List the public tokens of a file",
        query=PAGE_PARAMETERS,
        answers={200: Answer(description="A page of links.", body=PublicTokenList, headers=NEXT_PAGE)},
    ),
    Operation(
        name="revoke_public_token",
        tag="Public tokens",
        method="DELETE",
        path=f"{_FILE}/public-tokens/{{id}}",
        handler=revoke,
        summary="Revoke a public token",
        answers={200: Answer(description="The link is revoked.", body=RevokedPublicToken)},
    ),
)
