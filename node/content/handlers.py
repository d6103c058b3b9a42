"""The handlers of file content: who asks, where the bytes are, and whose turn it is to write them."""

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

LOOK_S: Final = 1.0  # at the sizes of two files, before an offset is told
PRIVATE_POLICY: Final[Mapping[str, str]] = {"Cache-Control": "private, no-cache"}


async def download_file(request: web.Request) -> web.StreamResponse:
    """Any node answers for any file: from its own replica, or streamed from a node that has one. Ranges,
    several of them too, and conditions are those of RFC 9110. Needs read on the file.
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
    # The replicas may have moved since the record was kept.
    content = await services.records.read(caller, file_uuid)
    return await serve_content(request, services, content, policy=PRIVATE_POLICY)


async def download_public(request: web.Request) -> web.StreamResponse:
    """Content for whoever has the link, as long as its token lives and whoever made it has admin permission
    on the file. An `Authorization` header is ignored.
    """
    with own_bounds():
        return await serve_public(request)


async def download_ticket(request: web.Request) -> web.StreamResponse:
    """Content for whoever has the ticket, until that ends, as long as the user that it was made for may read
    the file. An `Authorization` header is ignored.
    """
    with own_bounds():
        return await serve_ticket(request)


async def upload_status(request: web.Request) -> web.StreamResponse:
    """How many bytes of the upload survive the loss of the node that holds it: where to go on.

    Needs write.
    """
    return await _tell(await UploadRequest.begin(request), _offset)


async def put_content(request: web.Request) -> web.StreamResponse:
    """The whole content, or with `Content-Range` the piece that begins where the upload stands. `bytes
    */TOTAL` with an empty body asks again for a completion that failed. The request that completes the
    content returns when the file is available; repeated, it answers the same, but 412 under `If-None-Match`
    that its own success has made false. A form around the content (`multipart/*`,
    `application/x-www-form-urlencoded`) is refused. Needs write on the file.
    """
    return await write(request, put.put, put.require_content)


async def tus_head(request: web.Request) -> web.StreamResponse:
    """Offset and length of the upload. An upload of which all bytes are durable is completed before it says
    so: a client asks for no more then. A final upload has no offset before. Needs write on the file.
    """
    with versioned():
        asked = await UploadRequest.begin(request)
        if "Tus-Resumable" in request.headers:
            require_version(request.headers)
        return await _tell(asked, _tus_offset)


async def tus_patch(request: web.Request) -> web.StreamResponse:
    """The next bytes of the upload; those that complete it return when the file is available. Nothing of a
    request is kept whose bytes do not match its checksum. A final upload takes none. Needs write on the file.
    """
    with versioned():
        return await write(request, tus.patch, require_takes_bytes)


async def tus_delete(request: web.Request) -> web.StreamResponse:
    """Give an upload up that has not ended: its record goes, and its bytes, from nodes that cannot be reached
    when they are back. Needs write on the file.
    """
    with versioned():
        return await write(request, tus.delete, without_holder=tus.terminate)


async def tus_post(request: web.Request) -> web.StreamResponse:
    """For clients whose network lets neither PATCH nor DELETE through: the method is what the header
    `X-HTTP-Method-Override` says (tus core). Needs write on the file.
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
    """Return the answer of `act`, which has the upload for itself, from the node that holds it.

    `require` looks at the request on the node that the client sent it to, before anything else.
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
    """As `run_at_holder`, of an `act` that has the upload for itself. Raises PreconditionFailed."""

    async def alone(asked: UploadRequest) -> web.StreamResponse:
        async with upload_session(asked) as session:
            asked.require_tags()  # another request may have ended the upload meanwhile
            return await act(session)

    asked.require_tags()  # the other checks come first (RFC 9110, section 13.2.1)
    return await run_at_holder(asked, alone, forward=forward, without_holder=without_holder)


async def _tell(asked: UploadRequest, answer: Act) -> web.StreamResponse:
    """Return what `answer` says of the upload, which tells the bytes that its holder really has.

    If the holder cannot be asked, the log knows what survives its loss.
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
    """Let the record tell the bytes that this node, the holder, really has.

    An earlier request of a lost client has settled its bytes by then (see `node/uploads/write_locks.py`, also
    for one that may not be known to be lost yet), and the log knows what this disk has lost of them: no
    client may learn of bytes that are gone. Raises HolderChanged.
    """
    goes_on = asked.request.method == hdrs.METH_HEAD  # from what it is told; others look on
    services, doubt_s = asked.services, bounded_s(DOUBT_S if goes_on else POLL_DOUBT_S)
    if asked.record.placement:
        await services.locks.settled(asked.record.file_uuid, doubt_s=doubt_s, ends_silent=goes_on)
    if services.locks.releases != asked.seen_releases:
        await asked.look_again()
        if asked.other_holder is not None:
            raise HolderChanged(is_untouched=True)
    if not asked.record.placement or not asked.record.offset_bytes:
        return
    if services.locks.is_locked(asked.record.file_uuid) or not await _has_lost(services, asked.record):
        return
    with suppress(UploadLocked, RateLimited):  # whoever writes it now finds out as well
        async with upload_session(asked) as session:
            if not session.has_ended:
                await session.begin()
            asked.record = session.record


async def _has_lost(services: NodeServices, record: UploadRecord) -> bool:
    """Whether this disk has fewer bytes than are acknowledged; false if it cannot say, or not soon."""
    if services.disk.hangs():
        return False
    has_fewer = services.uploads.has_fewer
    looking = asyncio.wrap_future(services.disk.begin(has_fewer, record.file_uuid, record.offset_bytes))
    looking.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # seen
    done, _ = await asyncio.wait({looking}, timeout=LOOK_S)
    return bool(done) and looking.exception() is None and looking.result()
