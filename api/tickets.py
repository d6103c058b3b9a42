"""Tickets: an address of one file, valid for minutes. Apart from `public_tokens`: no record is stored.

It is signed, by the key of user tokens. It stands for the caller and for the one file, so that it reads what
the caller may read when it is used; `node/content/links.py` serves it.
"""

from typing import Final

from aiohttp import web

from api.access import audited, authenticate
from api.bodies.checks import path_uuid
from api.bodies.files import CreateTicketBody, TicketBody
from api.context import API
from api.spec.operation import NOT_STORED, Answer, OperationTable
from ca.errors import Gone, NotAvailable
from runtime.timestamps import rfc3339
from web.app import json_response, read_json

OPERATIONS: Final = OperationTable("Files")


@OPERATIONS.add(
    "POST /api/v1/files/{file_uuid}/ticket",
    "create_ticket",
    "Create a temporary address of a file for a browser",
    Answer("The address.", TicketBody, headers=NOT_STORED),
    body=CreateTicketBody,
    errors=(Gone, NotAvailable),
)
async def create(request: web.Request) -> web.Response:
    """Create an address of the content that a browser can open without a header. Needs read on the file.

    It works until the ticket expires, while the caller may read the file. It is shown only in this response.
    """
    caller = await authenticate(request)
    file_uuid = path_uuid(request)
    body = await read_json(request, CreateTicketBody)
    services = request.app[API]
    async with audited(request, "create_ticket", principal=caller.subject, target=f"file {file_uuid}"):
        reply = await services.metadata.ticket(caller, file_uuid, body.ttl_seconds)
    url = f"{services.link_url(request)}/api/v1/tickets/{reply.ticket}"
    return json_response(TicketBody(url=url, expires_at=rfc3339(reply.expires_at_ms)))
