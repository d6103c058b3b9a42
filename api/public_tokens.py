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
from api.bodies.files import KIND_WORDS
from api.bodies.public_tokens import (
    CreatePublicTokenBody,
    ListedPublicToken,
    OwnPublicToken,
    OwnPublicTokenList,
    PublicTokenBody,
    PublicTokenList,
    RevokedPublicToken,
)
from api.bodies.views import shown
from api.context import API
from api.pages import (
    NEXT_PAGE,
    PAGE_PARAMETERS,
    page_response,
    page_wanted,
)
from api.spec.operation import Answer, OperationTable
from ca.errors import Conflict, Gone, InvalidRequest
from metadata.model.listed_records import SharePage
from metadata.model.records import PublicTokenPage, PublicTokenRecord
from metadata.protocol.commands import CreatePublicToken, RevokePublicToken
from metadata.protocol.queries import ListOwnPublicTokens, ListPublicTokens
from web.app import json_response, read_json

_FILE: Final = "/api/v1/files/{file_uuid}"
_TOKEN_BYTES: Final = 32
OPERATIONS: Final = OperationTable("Public tokens")


@OPERATIONS.add(
    f"POST {_FILE}/public-token",
    "create_public_token",
    "Share a file by a public link",
    Answer(
        "The link.",
        PublicTokenBody,
        headers={"Location": "The path of the public token, to delete it.", "Cache-Control": "no-store"},
    ),
    status=201,
    body=CreatePublicTokenBody,
    errors=(Conflict, Gone),
    changes=True,
)
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
    url = f"{services.link_url(request)}/api/v1/public/files/{record.bucket_id}/{secret}"
    answer = shown(PublicTokenBody, record, token=secret, url=url, bucket_uuid=record.bucket_id)
    location = f"{_FILE.format(file_uuid=file_uuid)}/public-tokens/{record.token_id}"
    return json_response(answer, status=201, headers={"Location": location})


@OPERATIONS.add(
    f"GET {_FILE}/public-tokens",
    "list_public_tokens",
    "List the public tokens of a file",
    Answer("A page of links.", PublicTokenList, headers=NEXT_PAGE),
    query=PAGE_PARAMETERS,
)
async def list_page(request: web.Request) -> web.Response:
    """List the file's links without their secrets, oldest first. Needs admin on the file.

    Expired and revoked links are included.
    """
    caller = await authenticate(request)
    query = ListPublicTokens(caller=caller, file_uuid=path_uuid(request), **page_wanted(request))
    page = await request.app[API].metadata.read(query, PublicTokenPage)
    tokens = [
        shown(ListedPublicToken, each, id=each.token_id, bucket_uuid=each.bucket_id)
        for each in page.public_tokens
    ]
    return page_response(request, PublicTokenList, tokens, page.next_cursor)


@OPERATIONS.add(
    f"DELETE {_FILE}/public-tokens/{{id}}",
    "revoke_public_token",
    "Revoke a public token",
    Answer("The link is revoked.", RevokedPublicToken),
)
async def revoke(request: web.Request) -> web.Response:
    """Revoke the link, which is answered with 410 from now on. Needs admin on the file."""
    caller = await authenticate(request)
    file_uuid, token_id = path_uuid(request), path_uuid(request, "id")
    command = RevokePublicToken(caller=caller, file_uuid=file_uuid, token_id=token_id)
    place = f"file {file_uuid} public token {token_id}"
    async with audited(request, "revoke_public_token", principal=caller.subject, target=place):
        await request.app[API].metadata.propose(command, type(None))
    return json_response(RevokedPublicToken(deleted=True, id=token_id))


@OPERATIONS.add(
    "GET /api/v1/public-tokens",
    "list_own_public_tokens",
    "List the caller's public tokens",
    Answer("A page of links.", OwnPublicTokenList, headers=NEXT_PAGE),
    query=PAGE_PARAMETERS,
)
async def list_own(request: web.Request) -> web.Response:
    """The links that the caller made, and those on its files, oldest first, ended ones too, without their
    secrets; for admins all. Links on files where the caller has no admin any more are left out.
    """
    caller = await authenticate(request)
    query = ListOwnPublicTokens(caller=caller, **page_wanted(request))
    page = await request.app[API].metadata.read(query, SharePage)
    tokens = [
        shown(OwnPublicToken, each, id=each.token_id, bucket_uuid=each.bucket_id, kind=KIND_WORDS[each.kind])
        for each in page.public_tokens
    ]
    return page_response(request, OwnPublicTokenList, tokens, page.next_cursor)
