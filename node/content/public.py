"""Public links: content for whoever has a public token, without a credential.

The token is part of the path, so the path never goes into a log, a metric, an error, or a redirect to anybody
but another node of the cluster. Only the token's sha256 leaves this process.
"""

import hashlib
import re
from typing import Final

from aiohttp import web

from ca.errors import FilestoreError, Gone, NotFound, RateLimited, Unavailable
from coordinator.queries import GetPublicContent
from coordinator.records import ContentRecord
from coordinator.web import request_id
from node.content.download import serve_content
from node.services import NODE, NodeServices

PUBLIC_POLICY: Final = {"Cache-Control": "private, no-store", "Referrer-Policy": "no-referrer"}
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.ASCII)
_TOKEN = re.compile(r"[A-Za-z0-9_-]{43}", re.ASCII)  # 32 bytes in base64url


async def serve_public(request: web.Request) -> web.StreamResponse:
    """The content that a public token leads to. Raises FilestoreError, always with the headers of a link."""
    services = request.app[NODE]
    try:
        content = await _find(request, services)
        return await serve_content(request, services, content, policy=PUBLIC_POLICY)
    except FilestoreError as error:
        error.headers |= PUBLIC_POLICY
        raise


async def _find(request: web.Request, services: NodeServices) -> ContentRecord:
    bucket_id, token = request.match_info["bucket_uuid"], request.match_info["token"]
    try:
        if _UUID.fullmatch(bucket_id) is None or _TOKEN.fullmatch(token) is None:
            raise NotFound("There is no such public token.")
        digest = hashlib.sha256(token.encode("ascii")).hexdigest()
        query = GetPublicContent(bucket_id=bucket_id, token_sha256=digest)
        return await services.api.metadata.read(query, ContentRecord)
    except (NotFound, Gone) as error:
        raise _failed(request, services, error) from error


def _failed(request: web.Request, services: NodeServices, error: FilestoreError) -> FilestoreError:
    """Count and audit a token that leads nowhere; beyond the rate, the answer is 429 and no log grows."""
    wait_s = services.api.rates.public_tokens.try_take(request.remote or "")
    if wait_s > 0:
        return RateLimited("Too many failed attempts from this address.", retry_after_s=int(wait_s) + 1)
    try:
        services.api.audit.record(
            "public link",
            principal="-",
            object=f"{request.method} /api/v1/public/files",
            outcome=error.code,
            request_id=request_id(request),
        )
    except Unavailable:
        return error  # a refusal needs no trace to be right
    return error
