"""The handlers of file content: they check the caller, find the bytes, and order concurrent writers.

Tested by tests/cluster/test_uploads.py.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Final

from aiohttp import hdrs, web

from api.access import authenticate
from api.bodies.checks import path_uuid
from ca.errors import MethodNotAllowed, RateLimited, UploadLocked
from metadata.model.records import Caller, UploadRecord
from node.content import put, tus
from node.content.download import serve_content
from node.content.incoming import require_takes_bytes
from node.content.links import serve_public, serve_ticket
from node.content.responses import UploadOffset
from node.content.sources import NoReplica
from node.content.upload_session import (
    Act,
    Forward,
    HolderChanged,
    UploadRequest,
    UploadSession,
    run_at_holder,
    upload_session,
)
from node.uploads.forwarding import pass_on
from node.uploads.services import NODE, NodeServices
from node.uploads.succession import begin_anew_if_lost
from node.uploads.write_locks import DOUBT_S, POLL_DOUBT_S
from runtime.time_limits import bounded_s, own_bounds
from web.app import json_response
from web.headers.digests import require_before_body
from web.headers.tus_fields import require_version, versioned

LOOK_S: Final = 1.0  # for the sizes of two files, before an offset is reported
PRIVATE_POLICY: Final[Mapping[str, str]] = {"Cache-Control": "private, no-cache"}


async def download_file(request: web.Request) -> web.StreamResponse:
    """Download the content of a file. Needs read on the file.

    Every node answers: from its own replica, or streamed from a node that has one. Ranges (also several) and
    preconditions follow RFC 9110.
    """
    with own_bounds():
        return await _download(request, await authenticate(request))


async def _download(request: web.Request, caller: Caller) -> web.StreamResponse:
    services, file_uuid = request.app[NODE], path_uuid(request, "file_uuid")
    content = await services.records.read(caller, file_uuid)
    try:
        return await serve_content(request, services, content, policy=PRIVATE_POLICY)
    except NoReplica:
        services.records.forget(file_uuid)
        if request.writer.output_size:
            raise
    # The replicas may have moved since the record was cached.
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
    """Return how many bytes of the upload survive the loss of its holder: the offset to resume from.

    Needs write.
    """
    return await _tell(await UploadRequest.begin(request), _offset)


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
        asked = await UploadRequest.begin(request)
        if "Tus-Resumable" in request.headers:
            require_version(request.headers)
        return await _tell(asked, _tus_offset)


async def tus_patch(request: web.Request) -> web.StreamResponse:
    """Upload the next bytes. Needs write on the file.

    The request that completes the upload returns when the file is available. If the bytes do not match their
    checksum, none of them is kept. A final upload accepts no bytes.
    """
    with versioned():
        return await write(request, tus.patch, require_takes_bytes)


async def tus_delete(request: web.Request) -> web.StreamResponse:
    """Delete an unfinished upload with its record and its bytes. Needs write on the file.

    Nodes that cannot be reached now delete the bytes when they are back.
    """
    with versioned():
        return await write(request, tus.delete, without_holder=tus.terminate)


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
    act: Callable[[UploadSession], Awaitable[web.StreamResponse]],
    require: Callable[[web.Request, UploadRecord], None] = lambda _request, _record: None,
    *,
    without_holder: Act | None = None,
) -> web.StreamResponse:
    """Return the response of `act`, which has the upload for itself, from the node that holds it.

    `require` checks the request on the node that received it from the client, before anything else.
    `without_holder`: as of `run_at_holder`.
    """
    asked = await UploadRequest.begin(request)
    require_before_body(request.headers)
    require(request, asked.record)
    return await write_alone(asked, act, without_holder=without_holder)


async def write_alone(
    asked: UploadRequest,
    act: Callable[[UploadSession], Awaitable[web.StreamResponse]],
    *,
    forward: Forward = pass_on,
    without_holder: Act | None = None,
) -> web.StreamResponse:
    """Run an `act` that has the upload for itself, as `run_at_holder`. Raises PreconditionFailed."""

    async def alone(asked: UploadRequest) -> web.StreamResponse:
        async with upload_session(asked) as session:
            asked.require_tags()  # another request may have ended the upload meanwhile
            return await act(session)

    asked.require_tags()  # the other checks come first (RFC 9110, section 13.2.1)
    return await run_at_holder(asked, alone, forward=forward, without_holder=without_holder)


async def _tell(asked: UploadRequest, answer: Act) -> web.StreamResponse:
    """Return the response of `answer` about the upload, with the bytes that its holder really has.

    If the holder cannot be reached, the log has the bytes that survive its loss.
    """

    async def by_holder(asked: UploadRequest) -> web.StreamResponse:
        await _settle(asked)
        return await answer(asked)

    async def by_log(asked: UploadRequest) -> web.StreamResponse:
        services, caller, record = asked.services, asked.caller, asked.record
        asked.record = await begin_anew_if_lost(services, caller, record) or record
        return await answer(asked)

    return await run_at_holder(asked, by_holder, without_holder=by_log)


async def _offset(asked: UploadRequest) -> web.StreamResponse:
    return json_response(UploadOffset(offset=asked.record.offset_bytes))


async def _tus_offset(asked: UploadRequest) -> web.StreamResponse:
    if tus.lacks_completion_only(asked.record):
        return await write_alone(asked, tus.end)
    return tus.head(asked.record, asked.record.offset_bytes)


async def _settle(asked: UploadRequest) -> None:
    """Let the record show the bytes that this node, the holder, really has.

    An earlier request of a lost client has settled its bytes by then (`node/uploads/write_locks.py`, also for
    a client whose loss is not known yet), and lost bytes are reported to the log: no client may learn an
    offset beyond the existing bytes. Raises HolderChanged.
    """
    goes_on = asked.request.method == hdrs.METH_HEAD  # HEAD precedes a resumption; other methods only look
    services, doubt_s = asked.services, bounded_s(DOUBT_S if goes_on else POLL_DOUBT_S)
    if asked.record.placement:
        await services.locks.wait_until_settled(asked.record.file_uuid, doubt_s=doubt_s, ends_silent=goes_on)
    if services.locks.releases != asked.seen_releases:
        await asked.refresh()
        if asked.other_holder is not None:
            raise HolderChanged(is_untouched=True)
    if not asked.record.placement or not asked.record.offset_bytes:
        return
    if services.locks.is_locked(asked.record.file_uuid) or not await _has_lost(services, asked.record):
        return
    with suppress(UploadLocked, RateLimited):  # a request that writes it now notices as well
        async with upload_session(asked) as session:
            if not session.has_ended:
                await session.begin()
            asked.record = session.record


async def _has_lost(services: NodeServices, record: UploadRecord) -> bool:
    """Return whether this disk has fewer bytes than are acknowledged; False if it does not answer soon."""
    if services.disk.hangs():
        return False
    has_fewer = services.uploads.has_fewer
    looking = asyncio.wrap_future(services.disk.begin(has_fewer, record.file_uuid, record.offset_bytes))
    looking.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # seen
    done, _ = await asyncio.wait({looking}, timeout=LOOK_S)
    return bool(done) and looking.exception() is None and looking.result()
