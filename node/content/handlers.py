"""The handlers of file content: who asks, where the bytes are, and whose turn it is to write them."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Final

from aiohttp import hdrs, web

from api.access import authenticate
from api.bodies.checks import path_uuid
from ca.errors import MethodNotAllowed, RateLimited, Unavailable, UploadLocked
from metadata.model.records import Caller, UploadRecord
from metadata.protocol.queries import GetUpload
from node.content import put, tus
from node.content.download import serve_content
from node.content.links import serve_public, serve_ticket
from node.content.responses import UploadOffset
from node.content.sources import NoReplica
from node.content.upload_session import HandedOver, UploadSession, upload_session
from node.uploads.forwarding import PASSED_ON, HolderAddress, node_holding, pass_on, worker_holding
from node.uploads.services import NODE, NodeServices
from node.uploads.takeover import begin_anew_if_lost, take_over
from node.uploads.write_locks import DOUBT_S, POLL_DOUBT_S
from runtime.time_limits import bounded_s, moved, own_bounds
from web.app import json_response
from web.headers.conditions import require_content
from web.headers.digests import require_before_body
from web.headers.tus_fields import require_version, versioned

LOOK_S: Final = 1.0  # at the sizes of two files, before an offset is told
PRIVATE_POLICY: Final[Mapping[str, str]] = {"Cache-Control": "private, no-cache"}

_Act = Callable[[UploadSession], Awaitable[web.StreamResponse]]
_ActAlone = Callable[[web.Request, NodeServices, Caller, UploadRecord], Awaitable[web.StreamResponse]]
_Require = Callable[[web.Request, UploadRecord], None]
Begun = tuple[int, Caller, UploadRecord]  # `UploadLocks.releases` before the record was read comes first
PassOn = Callable[[web.Request, HolderAddress], Awaitable[web.StreamResponse]]


class Unreachable(Exception):
    """The holder does not answer."""


async def download_file(request: web.Request) -> web.StreamResponse:
    """Download the content of a file. Needs read on the file.

    Every node answers: from its own replica, or streamed from a node that has one. Ranges (also several) and
    preconditions follow RFC 9110.
    """
    with own_bounds():
        return await _download(request, await authenticate(request))


async def _download(request: web.Request, caller: Caller) -> web.StreamResponse:
    services = request.app[NODE]
    file_uuid = _file_uuid(request)
    content = await services.records.read(caller, file_uuid)
    try:
        return await serve_content(request, services, content, policy=PRIVATE_POLICY)
    except NoReplica:
        services.records.forget(file_uuid)
        if request.writer.output_size:
            raise
    # The replicas may have moved since the record was kept.
    content = await services.records.read(caller, file_uuid)
    return await serve_content(request, services, content, policy=PRIVATE_POLICY)


async def download_public(request: web.Request) -> web.StreamResponse:
    """Download the content of a public link.

    The link's token must be valid, and its creator must still have admin permission on the file. An
    `Authorization` header is ignored.
    """
    with own_bounds():
        return await serve_public(request)


async def download_ticket(request: web.Request) -> web.StreamResponse:
    """Download the content of a ticket.

    The ticket must not have expired, and its user must still have read access. An `Authorization` header is
    ignored.
    """
    with own_bounds():
        return await serve_ticket(request)


async def upload_status(request: web.Request) -> web.StreamResponse:
    """Return the durable offset of the upload, at which the client continues. Needs write."""
    seen_releases = request.app[NODE].locks.releases
    services, caller, record = await begin(request)
    if holder := elsewhere(services, record):
        with suppress(Unreachable):
            return await passed_on(request, holder)
        record = await begin_anew_if_lost(services, caller, record) or record
    else:
        record = await _settled(request, services, caller, record, seen_releases)
    return json_response(UploadOffset(offset=record.offset_bytes))


async def put_content(request: web.Request) -> web.StreamResponse:
    """Upload the whole content, or with `Content-Range` the next piece. Needs write on the file.

    A piece must begin at the upload's offset. `bytes */TOTAL` with an empty body repeats a failed completion.
    The request that completes the content returns when the file is available. Repeated, it returns the same
    response, or 412 if its own success has made `If-None-Match` false. A form that contains the content
    (`multipart/*`, `application/x-www-form-urlencoded`) is rejected.
    """
    return await write(request, put.put, put.require_content)


async def tus_head(request: web.Request) -> web.StreamResponse:
    """Return the offset and the length of the upload. Needs write on the file.

    If all bytes are durable, the upload is completed first, as the client sends no further request. A final
    upload has no offset before its completion.
    """
    with versioned():
        seen_releases = request.app[NODE].locks.releases
        services, caller, record = await begin(request)
        if "Tus-Resumable" in request.headers:
            require_version(request.headers)
        if holder := elsewhere(services, record):
            with suppress(Unreachable):
                return await passed_on(request, holder)
            record = await begin_anew_if_lost(services, caller, record) or record
        else:
            record = await _settled(request, services, caller, record, seen_releases)
        if tus.lacks_completion_only(record):
            return await write(request, tus.end)
        return tus.head(record, record.offset_bytes)


async def tus_patch(request: web.Request) -> web.StreamResponse:
    """Upload the next bytes. Needs write on the file.

    The request that completes the upload returns when the file is available. If the bytes do not match their
    checksum, none of them is kept. A final upload accepts no bytes.
    """
    with versioned():
        return await write(request, tus.patch, tus.require_takes_bytes)


async def tus_delete(request: web.Request) -> web.StreamResponse:
    """Delete an unfinished upload with its record and its bytes. Needs write on the file.

    Nodes that cannot be reached now delete the bytes when they are back.
    """
    with versioned():
        return await write(request, tus.delete, unreachable=tus.terminate)


async def tus_post(request: web.Request) -> web.StreamResponse:
    """Replace PATCH and DELETE for clients whose network blocks these methods. Needs write on the file.

    The header `X-HTTP-Method-Override` is the method (tus core).
    """
    await authenticate(request)
    method = (request.headers.get("X-HTTP-Method-Override") or "").upper()
    act = {"PATCH": tus_patch, "DELETE": tus_delete}.get(method)
    if act is None:
        raise MethodNotAllowed(
            "X-HTTP-Method-Override: must be PATCH or DELETE.", headers={"Allow": tus.ALLOW}
        )
    return await act(request)


async def write(
    request: web.Request,
    act: _Act,
    require: _Require = lambda _request, _record: None,
    *,
    unreachable: _ActAlone | None = None,
    onward: PassOn = pass_on,
    begun: Begun | None = None,
) -> web.StreamResponse:
    """The answer of `act`, which has the upload for itself on the holder; other nodes pass the request on.

    `require` looks at the request on the node that the client sent it to, before anything else. Where the
    holder cannot be reached, or its disk takes no more, another node takes the upload over; `unreachable`
    answers here in place of that. `begun`: the upload, if it is known already.
    """
    services, seen_releases = request.app[NODE], request.app[NODE].locks.releases
    seen_releases, caller, record = begun or (seen_releases, *(await begin(request))[1:])
    require_before_body(request.headers)
    require(request, record)
    _require_tags(request, record)  # the other checks come first (RFC 9110, section 13.2.1)
    if holder := elsewhere(services, record):
        with services.locks.writer(caller.subject, record.file_uuid):  # connections to peers are bounded too
            try:
                return await passed_on(request, holder, onward)
            except Unreachable:
                if unreachable is not None:
                    return await unreachable(request, services, caller, record)
                record = await take_over(services, caller, record)
            if holder := elsewhere(services, record):
                return await onward(request, holder)
    elif record.placement and services.disk.hangs():
        if unreachable is not None:
            return await unreachable(request, services, caller, record)
        return await hung(request, services, caller, record, onward)
    try:
        async with upload_session(request, services, caller, record, seen_releases=seen_releases) as session:
            _require_tags(request, session.record)  # another request may have ended the upload meanwhile
            return await act(session)
    except HandedOver as error:
        if not error.is_untouched:
            raise
        with services.locks.writer(caller.subject, record.file_uuid):
            return await onward(request, node_holding(services, error.successor))


async def hung(
    request: web.Request,
    services: NodeServices,
    caller: Caller,
    record: UploadRecord,
    onward: PassOn = pass_on,
) -> web.StreamResponse:
    """Let another node go on: the disk of this one, the holder, hangs. Raises Unavailable if none can."""
    with services.locks.writer(caller.subject, record.file_uuid):
        record = await take_over(services, caller, record)
        if holder := elsewhere(services, record):
            return await onward(request, holder)
    raise Unavailable("The disk of the node that holds this upload does not respond.", retry_after_s=2)


def _require_tags(request: web.Request, record: UploadRecord) -> None:
    """Raises PreconditionFailed. HEAD answers about the upload, whatever the content is."""
    if request.method != hdrs.METH_HEAD:
        require_content(request.headers, f'"{record.blob_sha256}"' if record.blob_sha256 else "")


async def begin(request: web.Request) -> tuple[NodeServices, Caller, UploadRecord]:
    """Return the caller, and the upload in the path. Raises the errors of the log."""
    services = request.app[NODE]
    caller = await authenticate(request)
    query = GetUpload(caller=caller, file_uuid=_file_uuid(request))
    record = await services.api.metadata.read(query, UploadRecord)
    moved()
    return services, caller, record


async def _settled(
    request: web.Request, services: NodeServices, caller: Caller, record: UploadRecord, seen_releases: int
) -> UploadRecord:
    """The upload whose holder this node is, with the bytes that it really has.

    An earlier request of a lost client has settled its bytes by then (see `node/uploads/write_locks.py`, also
    for one that may not be known to be lost yet), and the log knows what this disk has lost of them: no
    client may learn of bytes that are gone. `seen_releases`: `UploadLocks.releases` before `record` was read.
    """
    goes_on = request.method == hdrs.METH_HEAD  # from what it is told; others look on
    doubt_s = DOUBT_S if goes_on else POLL_DOUBT_S
    if record.placement and not services.disk.hangs():
        await services.locks.settled(record.file_uuid, doubt_s=bounded_s(doubt_s), ends_silent=goes_on)
    if services.locks.releases != seen_releases:
        seen_releases = services.locks.releases
        query = GetUpload(caller=caller, file_uuid=record.file_uuid)
        record = await services.api.metadata.read(query, UploadRecord)
    if not record.placement or not record.offset_bytes or elsewhere(services, record):
        return record
    if services.locks.is_locked(record.file_uuid) or not await _has_lost(services, record):
        return record
    with suppress(UploadLocked, RateLimited):  # whoever writes it now finds out as well
        async with upload_session(request, services, caller, record, seen_releases=seen_releases) as session:
            if not session.has_ended:
                await session.begin()
            record = session.record
    return record


async def _has_lost(services: NodeServices, record: UploadRecord) -> bool:
    """Whether this disk has fewer bytes than are acknowledged; false if it cannot say, or not soon."""
    if services.disk.hangs():
        return False
    has_fewer = services.uploads.has_fewer
    looking = asyncio.wrap_future(services.disk.begin(has_fewer, record.file_uuid, record.offset_bytes))
    looking.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # seen
    done, _ = await asyncio.wait({looking}, timeout=LOOK_S)
    return bool(done) and looking.exception() is None and looking.result()


async def passed_on(request: web.Request, to: HolderAddress, onward: PassOn = pass_on) -> web.StreamResponse:
    """The holder's answer. Raises Unreachable before anything of the request is used up."""
    look = to.is_reachable if PASSED_ON not in request.headers else None
    if look is not None and not await look():
        raise Unreachable
    return await onward(request, to)


def elsewhere(services: NodeServices, record: UploadRecord) -> HolderAddress | None:
    """The address of the holder, when that is another node or another worker of this one.

    None when it is this process, or when the upload has ended.
    """
    if not record.placement:
        return None
    if record.placement[0] != services.node_id:
        return node_holding(services, record.placement[0])
    return worker_holding(services, record.file_uuid)


def _file_uuid(request: web.Request) -> str:
    return path_uuid(request, "file_uuid")
