"""Tickets: content for whoever has one, as the user may read it that it was made for.

The ticket is part of the path and is treated as a public token is (`node/content/public.py`): no log, metric
or error has it. The coordinators get it in place of a user token, and verify it again.
"""

from typing import Final

from aiohttp import web

from ca.errors import Forbidden, Gone, NotFound, Unauthorized
from coordinator.model.records import Caller, ContentRecord
from coordinator.protocol.queries import GetTicketContent
from node.api.access import PRINCIPAL_UNKNOWN, on_record
from node.content.context import ContentContext
from node.content.public import serve_link

_ENDED: Final = "This ticket has ended."


async def serve_ticket(request: web.Request) -> web.StreamResponse:
    """The content that a ticket is for. Raises FilestoreError, always with the headers of a link."""
    return await serve_link(request, _find)


async def _find(request: web.Request, services: ContentContext) -> ContentRecord:
    try:
        return await _read(services, request.match_info["ticket"])
    except (NotFound, Gone) as error:
        raise on_record(
            request,
            error,
            services.api.rates.public_tokens,
            action="ticket",
            principal=PRINCIPAL_UNKNOWN,
            target=f"{request.method} /api/v1/tickets",
        ) from error


async def _read(services: ContentContext, text: str) -> ContentRecord:
    """The content. Raises NotFound for what is no ticket, or to no file, Gone for one that has ended.

    It ends by itself, or because its user was revoked or may not read the file any more.
    """
    try:
        ticket = services.api.view.verify_ticket(text)
    except Unauthorized:
        raise NotFound("There is no such ticket.") from None
    caller = Caller(ticket.subject, ticket.generation, text)
    query = GetTicketContent(caller=caller, file_uuid=ticket.file_uuid)
    try:
        return await services.api.metadata.read(query, ContentRecord)
    except (Unauthorized, Forbidden):
        raise Gone(_ENDED) from None
