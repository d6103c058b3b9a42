"""The routes of file content, for a node's client port and, for what is passed on, its peer port."""

import re
from collections.abc import Awaitable, Callable

from aiohttp import web

from ca.errors import FilestoreError, NotFound
from coordinator.queries import GetUpload
from coordinator.records import Caller, UploadRecord
from coordinator.web import json_response
from node.api.access import authenticate, watched
from node.content import put, tus
from node.content.bodies import UploadOffset
from node.content.download import download
from node.content.passing import pass_on
from node.content.upload import Session, upload_session
from node.services import NODE, NodeServices

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_Act = Callable[[Session], Awaitable[web.StreamResponse]]
_Require = Callable[[web.Request, UploadRecord], None]
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def content_routes() -> list[web.RouteDef]:
    """Downloads at `/api/v1/files/{file_uuid}`, uploads at `.../content`, offsets at `.../status`."""
    file_path = "/api/v1/files/{file_uuid}"
    content_path = f"{file_path}/content"
    return [
        web.get(file_path, watched(_download), allow_head=False),
        web.head(file_path, watched(_download)),
        web.get(f"{file_path}/status", watched(_status)),
        web.options(content_path, tus.options),
        web.head(content_path, watched(_tus(_head))),
        web.patch(content_path, watched(_tus(_writing(tus.patch)))),
        web.delete(content_path, watched(_tus(_writing(tus.delete)))),
        web.put(content_path, watched(_writing(put.put, put.require_length))),
    ]


async def _download(request: web.Request) -> web.StreamResponse:
    caller = await authenticate(request)
    return await download(request, request.app[NODE], caller, _file_uuid(request))


async def _status(request: web.Request) -> web.StreamResponse:
    """Needs write on the file, like everything about its upload."""
    services, _, record = await _begin(request)
    if holder := _elsewhere(services, record):
        return await pass_on(request, services.peers, holder)
    return json_response(UploadOffset(offset=await _durable_offset(services, record)))


async def _head(request: web.Request) -> web.StreamResponse:
    services, _, record = await _begin(request)
    if "Tus-Resumable" in request.headers:
        tus.require_version(request.headers)
    if holder := _elsewhere(services, record):
        return await pass_on(request, services.peers, holder)
    return tus.head(record, await _durable_offset(services, record))


def _writing(act: _Act, require: _Require = lambda _request, _record: None) -> _Handler:
    """A handler that has the upload for itself on the node that holds it, and is passed on by every other.

    `require` looks at the request on the node that the client sent it to, before anything else.
    """

    async def handler(request: web.Request) -> web.StreamResponse:
        seen_releases = request.app[NODE].locks.releases
        services, caller, record = await _begin(request)
        require(request, record)
        if holder := _elsewhere(services, record):
            with services.locks.writer(caller.subject):  # connections to peers are bounded too
                return await pass_on(request, services.peers, holder)
        async with upload_session(request, services, caller, record, seen_releases=seen_releases) as session:
            return await act(session)

    return handler


def _tus(handler: _Handler) -> _Handler:
    """Errors carry the protocol version too (tus core, Tus-Resumable)."""

    async def answering(request: web.Request) -> web.StreamResponse:
        try:
            return await handler(request)
        except FilestoreError as error:
            error.headers |= tus.RESUMABLE
            raise

    return answering


async def _begin(request: web.Request) -> tuple[NodeServices, Caller, UploadRecord]:
    services = request.app[NODE]
    caller = await authenticate(request)
    query = GetUpload(caller=caller, file_uuid=_file_uuid(request))
    return services, caller, await services.api.metadata.read(query, UploadRecord)


async def _durable_offset(services: NodeServices, record: UploadRecord) -> int:
    """What a client may count on, once an earlier request of a lost client has synced its bytes."""
    if not record.placement:
        return record.offset_bytes
    await services.locks.settled(record.file_uuid)
    try:
        return await services.disk.run(services.uploads.durable_offset, record.file_uuid)
    except NotFound:
        return 0  # no byte has come yet


def _elsewhere(services: NodeServices, record: UploadRecord) -> str:
    """The node that holds the upload, "" when this one does or the upload has ended."""
    holder = record.placement[0] if record.placement else services.node_id
    return "" if holder == services.node_id else holder


def _file_uuid(request: web.Request) -> str:
    file_uuid = request.match_info["file_uuid"]
    if _UUID.fullmatch(file_uuid) is None:
        raise NotFound("No such file.")
    return file_uuid
