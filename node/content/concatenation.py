"""Final uploads (tus concatenation): the node that holds one reads its parts, in order, and writes them.

Any node accepts the creation of a final upload, and passes it on to the upload's holder, at its address.

Each part is complete and durable on the nodes of its own placement. The bytes of a part are hashed as they
are read, and must match the sha256 in the log; otherwise they are dropped, and read from another node. So the
final upload has a chain, progress in the log and a quorum like an upload of a client. After a lost
connection, or on another node, it resumes at the offset in the log.
"""

import asyncio
import hashlib
import logging
import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, closing
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from aiohttp import web

from api.access import authenticate
from ca.errors import ChecksumMismatch, Conflict, FilestoreError, Unavailable
from metadata.model.records import Caller, UploadPart, UploadRecord
from metadata.protocol.queries import GetParts
from node.content import handlers, tus
from node.content.incoming import IncomingBytes
from node.content.receiving import complete, completed_record, receive
from node.content.upload_session import UploadRequest, UploadSession, run_at_holder, upload_session
from node.peer.client import PeerFailed
from node.uploads.forwarding import pass_on
from node.uploads.holder import EMPTY_SHA256
from node.uploads.services import NODE
from node.uploads.upload_copies import bytes_of_peer
from runtime.time_limits import PATIENCE_S, note_progress
from web.headers.tus_fields import parts_field, versioned
from web.request_body import Batch

# The holder shows that it is alive; the time depends on the size of the file.
GATHERING_S: Final = 24 * 3600.0
READ_BYTES: Final = 1 << 20
SOURCE_S: Final = PATIENCE_S / 2  # for the next bytes of one node: after it the client waits for another

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Reading:
    """A part that is being read. `used`: the nodes that sent bytes; `found` hashes all of them."""

    part: UploadPart
    used: set[str] = field(default_factory=set)
    found: "hashlib._Hash" = field(default_factory=hashlib.sha256)

    def check(self) -> None:
        """Raise ChecksumMismatch if the content does not match the hash in the log."""
        if self.part.prefix_sha256 not in ("", self.found.hexdigest()):
            raise ChecksumMismatch(
                f"The received bytes of the part {self.part.file_uuid} differ from the recorded ones."
            )


async def tus_post(request: web.Request) -> web.StreamResponse:
    """Replace PATCH and DELETE for clients whose network blocks these methods.

    The method is the value of the header `X-HTTP-Method-Override` (tus core). Needs write on the file.
    """
    await authenticate(request)
    parts = parts_field(request.headers)
    if not parts:
        return await handlers.tus_post(request)
    with versioned():  # a final upload, from the node that was asked to create it
        asked = await UploadRequest.begin(request)
        if asked.record.parts != parts:
            raise Conflict("Upload-Concat: this upload is not put together from these.")
        return await concatenate(request, asked.caller, asked.record)


async def concatenate(request: web.Request, caller: Caller, record: UploadRecord) -> web.StreamResponse:
    """Assemble a final upload on the node that holds it: 201 when the file is available, or was already.

    All requests share the work, which continues without them. As for any upload, another node takes over if
    the holder cannot be reached, or its disk accepts no more. It resumes at the offset of the upload.
    """
    asked = UploadRequest(request, request.app[NODE], caller, record, seen_releases=-1)
    forward = partial(pass_on, path=tus.address(record.file_uuid), answer_timeout_s=GATHERING_S)
    return await run_at_holder(asked, _joined, forward=forward)


async def _joined(asked: UploadRequest) -> web.StreamResponse:
    work = partial(_concatenated, asked)
    found = await asked.services.concatenations.join(asked.record.file_uuid, work)
    return tus.final_response(asked.request, asked.services, found)


async def _concatenated(asked: UploadRequest) -> UploadRecord:
    """Return the upload once it has ended well; a request that needs its place may interrupt this."""
    task = asyncio.current_task()
    assert task is not None
    async with upload_session(asked, connection=(lambda: True, task.cancel)) as session:
        if session.has_ended:
            return completed_record(session.record)
        await session.begin()
        await gather(session)
        return await complete(session)


async def gather(session: UploadSession) -> None:
    """Append the bytes of all parts to the upload, from its offset on; durable on the write quorum.

    Raises Conflict if a part has lost bytes, which its owner can send again; Unavailable if no node returns
    the bytes of one; what `receive` raises.
    """
    record, holder = session.record, session.holder
    assert record.parts, "an upload that is put together from parts"
    assert record.size_bytes is not None, "the log knows the sizes of the parts"
    if session.file.finished is not None:
        return  # all parts before it were verified
    await holder.settle_at(session.file.offset)  # settles the bytes of an earlier request
    await session.require_room(record.size_bytes)
    query = GetParts(caller=session.caller, file_uuids=record.parts)
    parts = await session.services.api.metadata.read(query, list[UploadPart])
    for part in parts:
        if not part.is_complete:
            raise Conflict(f"The part {part.file_uuid} has lost bytes. Send them again, from its offset on.")
    start, resumed_at = 0, session.file.offset
    for part in parts:
        stop = start + part.offset_bytes
        if session.file.offset < stop:
            await _take(session, part, start)
        elif start < stop == resumed_at:  # the request that wrote its end may not have verified it
            await _check_own(session, part, start)
        start = stop


async def _take(session: UploadSession, part: UploadPart, start: int) -> None:
    """Append the rest of a part, which begins at `start` of the content."""
    began_at, refused = session.file.offset, set[str]()
    while sources := [name for name in _sources(session, part) if name not in refused]:
        reading = _Reading(part)
        await _hash_own(session, start, session.file.offset, reading)
        coming = _pieces(session, reading, sources, session.file.offset - start)
        try:
            batches = _batches(session, reading, coming)
            await receive(session, IncomingBytes(start=session.file.offset), batches, check=reading.check)
            return
        except ChecksumMismatch:
            facts = {"file_uuid": part.file_uuid, "peers": sorted(reading.used)}
            _log.error("a part of an upload differs from its acknowledged bytes", extra=facts)
            refused |= reading.used
    if began_at > start:  # the earlier bytes of this part may be the wrong ones
        await session.holder.roll_back(0, EMPTY_SHA256)
    raise Unavailable(f"No node has the acknowledged bytes of the part {part.file_uuid}.", retry_after_s=2)


async def _check_own(session: UploadSession, part: UploadPart, start: int) -> None:
    """Drop the bytes of this part that an earlier request wrote, unless they are complete and right."""
    reading = _Reading(part)
    await _hash_own(session, start, session.file.offset, reading)
    try:
        reading.check()
    except ChecksumMismatch as error:
        await session.holder.roll_back(0, EMPTY_SHA256)
        raise Unavailable(
            "The received bytes of a part differ from the recorded ones. Ask again.", retry_after_s=1
        ) from error


def _sources(session: UploadSession, part: UploadPart) -> Sequence[str]:
    """Return this node, which may have the part, then its placement, silent nodes last."""
    own_id, silent = session.services.node_id, session.services.peers.silent
    others = [name for name in part.placement if name != own_id]
    return [own_id, *sorted(others, key=lambda name: name in silent)]


async def _batches(
    session: UploadSession, reading: _Reading, coming: AsyncGenerator[bytes, None]
) -> AsyncGenerator[Batch, None]:
    """Yield the arriving bytes of a part, hashed, and keep the log informed meanwhile."""
    disk = session.services.disk
    session.lock.receiving = False  # no client has to send: another request for the upload waits for the end
    async with aclosing(coming):
        async for piece in coming:
            await disk.run(reading.found.update, piece)
            yield [piece]
            note_progress()  # this disk has written it
            await session.holder.keep_up()


async def _pieces(
    session: UploadSession, reading: _Reading, sources: Sequence[str], position: int
) -> AsyncGenerator[bytes, None]:
    """Yield the bytes of a part from `position` on: if one source fails, the next one continues.

    Raises Unavailable if all have failed.
    """
    part, services = reading.part, session.services
    for source in sources:
        is_own = source == services.node_id
        coming = (
            _own_pieces(session, part.file_uuid, position, part.offset_bytes)
            if is_own
            else bytes_of_peer(
                services.peers,
                services.metrics.replica_bytes.labels("received"),
                source,
                part.file_uuid,
                position,
                part.offset_bytes,
                answer_timeout_s=SOURCE_S,
            )
        )
        try:
            async with aclosing(coming):
                async for piece in coming:
                    reading.used.add(source)
                    position += len(piece)
                    yield piece
            return
        except (PeerFailed, FilestoreError, OSError) as error:
            facts = {"file_uuid": part.file_uuid, "peer": source, "reason": str(error)}
            (_log.debug if is_own else _log.warning)("cannot read a part of an upload", extra=facts)
    raise Unavailable(f"No node can send the bytes of the part {part.file_uuid} now.", retry_after_s=2)


async def _own_pieces(
    session: UploadSession, file_uuid: str, start: int, stop: int
) -> AsyncGenerator[bytes, None]:
    """Yield bytes of an upload on this disk. Raises NotFound if they are not here, Unavailable, OSError."""
    disk, uploads = session.services.disk, session.services.uploads
    with closing(await disk.open(uploads.open_prefix, file_uuid, stop)) as prefix:
        while start < stop:
            piece = await disk.run(os.pread, prefix.fileno(), min(READ_BYTES, stop - start), start)
            if not piece:
                raise Unavailable("The upload lost bytes that were received.")
            start += len(piece)
            yield piece


async def _hash_own(session: UploadSession, start: int, stop: int, reading: _Reading) -> None:
    """Hash the bytes of the part that an earlier request wrote, from `start` to `stop` of the content.

    Raises as `_own_pieces`.
    """
    if start < stop:
        async with aclosing(_own_pieces(session, session.record.file_uuid, start, stop)) as own:
            async for piece in own:
                await session.services.disk.run(reading.found.update, piece)
                note_progress()
