"""Files of every kind: `/api/v1/files`. Their content is the business of `node/content`."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from aiohttp import hdrs, web
from msgspec import UNSET
from msgspec.structs import replace

from api.access import audited, authenticate
from api.bodies.checks import path_uuid
from api.bodies.files import CreateTicketBody, DeletedFile, FileReplicas, TicketBody
from api.context import API
from api.pages import query_flag
from api.spec.operation import NOT_STORED, Answer, OperationTable, Parameter
from api.tags import Found, state_named
from ca.errors import Conflict, Gone, NotAvailable, PreconditionFailed, Protected
from metadata.model.records import Caller, ContentRecord
from metadata.protocol.commands import DeleteFile
from metadata.protocol.queries import GetContent
from runtime.timestamps import rfc3339
from web.app import METRICS, json_response, read_json
from web.headers.conditions import evaluate

FindFile = Callable[[web.Request, Caller], Awaitable[Found]]

PRECONDITIONS: Final = (
    Parameter("If-Match", "Only if the content has this entity tag, or one of a list."),
    Parameter("If-None-Match", ("Only if the content differs from this entity tag, or there is none.")),
    Parameter("If-Unmodified-Since", "Only if the content is not newer."),
)
DELETION: Final = (
    Parameter("now", "`1`: delete it for good; it does not go to the trash."),
    Parameter(
        "override_protection",
        "`1`: delete it although it is protected. Only admins of the cluster can; it is audited, and alerts.",
    ),
)
OPERATIONS: Final = OperationTable("Files")


@OPERATIONS.add(
    "DELETE /api/v1/files/{file_uuid}",
    "delete_file",
    "Delete a file of any kind",
    Answer("The file is deleted.", DeletedFile),
    query=DELETION,
    headers=PRECONDITIONS,
    errors=(Conflict, PreconditionFailed, Protected),
)
async def delete(request: web.Request) -> web.Response:
    """Delete a file of any kind, or a partial upload. Needs admin on the file.

    Readers find it no more from then on. It goes to the trash of its bucket and can be restored for some
    days; then, or with `now` at once, the blob is deleted when nothing refers to it any more. Preconditions
    apply to the content of the file. A backup that is the parent of another one is a conflict.
    """
    caller = await authenticate(request)
    file_uuid = path_uuid(request)
    if any(condition.name in request.headers for condition in PRECONDITIONS):
        await _require_content(request, caller, file_uuid)
    return await _deleted(request, DeleteFile(caller=caller, file_uuid=file_uuid, kind=""))


@OPERATIONS.add(
    "GET /api/v1/files/{file_uuid}/replicas",
    "list_file_replicas",
    "Show which nodes hold a file's content",
    Answer("The nodes.", FileReplicas),
    errors=(Gone, NotAvailable),
)
async def list_replicas(request: web.Request) -> web.Response:
    """List the nodes that hold the content, according to the log. Needs read.

    Repair creates more replicas if there are too few. There are none before the upload has ended.
    """
    caller = await authenticate(request)
    file_uuid = path_uuid(request)
    query = GetContent(caller=caller, file_uuid=file_uuid)
    content = await request.app[API].metadata.read(query, ContentRecord)
    nodes = sorted(content.replicas)
    body = FileReplicas(
        file_uuid=file_uuid, blob_sha256=content.file.blob_sha256, count=len(nodes), nodes=nodes
    )
    return json_response(body)


@OPERATIONS.add(
    "POST /api/v1/files/{file_uuid}/ticket",
    "create_ticket",
    "Create a temporary address of a file for a browser",
    Answer("The address.", TicketBody, headers=NOT_STORED),
    body=CreateTicketBody,
    errors=(Gone, NotAvailable),
)
async def create_ticket(request: web.Request) -> web.Response:
    """Create an address of the content that a browser can open without a header. Needs read on the file.

    It works until the ticket expires, while the caller may read the file. It is shown only in this response:
    the key of user tokens signs it, and no record is stored.
    """
    caller = await authenticate(request)
    file_uuid = path_uuid(request)
    body = await read_json(request, CreateTicketBody)
    services = request.app[API]
    async with audited(request, "create_ticket", principal=caller.subject, target=f"file {file_uuid}"):
        reply = await services.metadata.ticket(caller, file_uuid, body.ttl_seconds)
    url = f"{services.link_url(request)}/api/v1/tickets/{reply.ticket}"
    return json_response(TicketBody(url=url, expires_at=rfc3339(reply.expires_at_ms)))


async def delete_of_kind(request: web.Request, kind: str, find: FindFile) -> web.Response:
    """Delete the file in the path; one of another kind is not found.

    Raises PreconditionFailed by the state of its record, which the tag of its content names as well.
    """
    caller = await authenticate(request)
    command = DeleteFile(
        caller=caller,
        file_uuid=path_uuid(request),
        kind=kind,
        unchanged_since_ms=await state_named(request, partial(find, request, caller), also_content=True),
    )
    return await _deleted(request, command)


async def _deleted(request: web.Request, command: DeleteFile) -> web.Response:
    caller, file_uuid = command.caller, command.file_uuid
    now, overrides = query_flag(request, "now"), query_flag(request, "override_protection")
    if now or overrides:
        command = replace(command, for_good=now or UNSET, override_protection=overrides or UNSET)
    action = "override_protection" if overrides else "delete_file"
    async with audited(request, action, principal=caller.subject, target=file_uuid):
        await request.app[API].metadata.propose(command, type(None))
    if overrides:
        request.app[METRICS].protection_overridden()
    return json_response(DeletedFile(file_uuid=file_uuid))


async def _require_content(request: web.Request, caller: Caller, file_uuid: str) -> None:
    """Raise PreconditionFailed if the content does not match the request's preconditions.

    The result stays valid, as content never changes once it is available.
    """
    query = GetContent(caller=caller, file_uuid=file_uuid)
    try:
        content = await request.app[API].metadata.read(query, ContentRecord)
    except (NotAvailable, Gone) as error:
        if hdrs.IF_MATCH in request.headers:
            raise PreconditionFailed("If-Match: the file has no content.") from error
        return  # nor has it a date to compare (RFC 9110, section 13.1.4)
    evaluate(request.method, request.headers, f'"{content.file.blob_sha256}"', content.available_at_ms)
