"""Public links: content for whoever has a public token, without a credential.

Tickets are served by `serve_link`, too.

The token is part of the path, so the path never goes into a log, a metric, an error, or a redirect to anybody
but another node of the cluster. Only the token's sha256 leaves this process.
"""

import hashlib
import re
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web

from ca.errors import FilestoreError, Gone, NotFound
from coordinator.model.records import ContentRecord
from coordinator.protocol.queries import GetPublicContent
from node.api.access import PRINCIPAL_UNKNOWN, on_record
from node.base.identifiers import is_uuid
from node.content.context import CONTENT, ContentContext
from node.content.download import serve_content
from node.http.conditions import http_date

PUBLIC_POLICY: Final = {"Cache-Control": "private, no-store", "Referrer-Policy": "no-referrer"}
Find = Callable[[web.Request, ContentContext], Awaitable[ContentRecord]]
_TOKEN = re.compile(r"[A-Za-z0-9_-]{43}", re.ASCII)  # 32 bytes in base64url


async def serve_public(request: web.Request) -> web.StreamResponse:
    """The content that a public token leads to. Raises FilestoreError, always with the headers of a link."""
    return await serve_link(request, _find)


async def serve_link(request: web.Request, find: Find) -> web.StreamResponse:
    """The content that `find` says a path with a secret in it leads to. Raises as `serve_public` does."""
    services = request.app[CONTENT]
    try:
        content = await find(request, services)
        return await serve_content(request, services, content, policy=PUBLIC_POLICY | _of_link(content))
    except FilestoreError as error:
        error.headers |= PUBLIC_POLICY
        raise


def _of_link(content: ContentRecord) -> dict[str, str]:
    """Who made the link and when it ends, for the page that shows it; nothing of a ticket."""
    if not content.link_ends_at_ms:
        return {}
    return {"Shared-By": content.shared_by, "Link-Expires": http_date(content.link_ends_at_ms)}


async def _find(request: web.Request, services: ContentContext) -> ContentRecord:
    bucket_id, token = request.match_info["bucket_uuid"].lower(), request.match_info["token"]
    try:
        if not is_uuid(bucket_id) or _TOKEN.fullmatch(token) is None:
            raise NotFound("There is no such public token.")
        digest = hashlib.sha256(token.encode("ascii")).hexdigest()
        query = GetPublicContent(bucket_id=bucket_id, token_sha256=digest)
        return await services.api.metadata.read(query, ContentRecord)
    except (NotFound, Gone) as error:
        raise on_record(
            request,
            error,
            services.api.rates.public_tokens,
            action="public link",
            principal=PRINCIPAL_UNKNOWN,
            target=f"{request.method} /api/v1/public/files",
        ) from error
