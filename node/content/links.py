"""Links: content for the bearer of a public token or a ticket, without another credential.

The secret is part of the path, so the path never goes into a log, a metric, an error, or a redirect other
than to a node of the cluster. Only the sha256 of a public token leaves this process. The coordinators get a
ticket in place of a user token, and verify it again.
"""

import hashlib
import re
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web

from api.access import PRINCIPAL_UNKNOWN, record_failed_attempt
from ca.errors import FilestoreError, Forbidden, Gone, NotFound, Unauthorized
from metadata.model.identifiers import is_uuid
from metadata.model.records import Caller, ContentRecord
from metadata.protocol.queries import GetPublicContent, GetTicketContent
from node.content.download import serve_content
from node.uploads.services import NODE, NodeServices
from web.headers.conditions import http_date

PUBLIC_POLICY: Final = {"Cache-Control": "private, no-store", "Referrer-Policy": "no-referrer"}
Find = Callable[[web.Request, NodeServices], Awaitable[ContentRecord]]
_TOKEN = re.compile(r"[A-Za-z0-9_-]{43}", re.ASCII)  # 32 bytes in base64url
_ENDED: Final = "This ticket has expired."


async def serve_public(request: web.Request) -> web.StreamResponse:
    """Return the content of a public token. Raises FilestoreError, always with the headers of a link."""
    return await serve_link(request, _find)


async def serve_link(request: web.Request, find: Find) -> web.StreamResponse:
    """Return the content that `find` resolves from the secret in a path. Raises as `serve_public` does."""
    services = request.app[NODE]
    try:
        content = await find(request, services)
        return await serve_content(request, services, content, policy=PUBLIC_POLICY | _of_link(content))
    except FilestoreError as error:
        error.headers |= PUBLIC_POLICY
        raise


def _of_link(content: ContentRecord) -> dict[str, str]:
    """Return headers with the creator of a link and its expiry, for its page; none for a ticket."""
    if not content.link_ends_at_ms:
        return {}
    return {"Shared-By": content.shared_by, "Link-Expires": http_date(content.link_ends_at_ms)}


async def _find(request: web.Request, services: NodeServices) -> ContentRecord:
    bucket_id, token = request.match_info["bucket_uuid"].lower(), request.match_info["token"]
    try:
        if not is_uuid(bucket_id) or _TOKEN.fullmatch(token) is None:
            raise NotFound("There is no such public token.")
        digest = hashlib.sha256(token.encode("ascii")).hexdigest()
        query = GetPublicContent(bucket_id=bucket_id, token_sha256=digest)
        return await services.api.metadata.read(query, ContentRecord)
    except (NotFound, Gone) as error:
        raise record_failed_attempt(
            request,
            error,
            services.api.rates.public_tokens,
            action="public link",
            principal=PRINCIPAL_UNKNOWN,
            target=f"{request.method} /api/v1/public/files",
        ) from error


async def serve_ticket(request: web.Request) -> web.StreamResponse:
    """Return the content of a ticket. Raises FilestoreError, always with the headers of a link."""
    return await serve_link(request, _find_of_ticket)


async def _find_of_ticket(request: web.Request, services: NodeServices) -> ContentRecord:
    try:
        return await _read_ticket(services, request.match_info["ticket"])
    except (NotFound, Gone) as error:
        raise record_failed_attempt(
            request,
            error,
            services.api.rates.public_tokens,
            action="ticket",
            principal=PRINCIPAL_UNKNOWN,
            target=f"{request.method} /api/v1/tickets",
        ) from error


async def _read_ticket(services: NodeServices, text: str) -> ContentRecord:
    """Return the content. Raises NotFound for an invalid ticket or file, Gone for an ended ticket.

    A ticket ends when it expires, when its user is revoked, or when its user may no longer read the file.
    """
    try:
        ticket = services.api.view.verify_ticket(text)
    except Unauthorized:
        raise NotFound("There is no such ticket.") from None
    caller = Caller(ticket.subject, ticket.generation, text, ticket.session_id)
    query = GetTicketContent(caller=caller, file_uuid=ticket.file_uuid)
    try:
        return await services.api.metadata.read(query, ContentRecord)
    except (Unauthorized, Forbidden):
        raise Gone(_ENDED) from None
