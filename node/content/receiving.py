"""Write the body of a request to the upload that this node holds: one way for PUT, PATCH and creations.

Small content of known length is received in memory, and stored at once (`node/uploads/completion.py`). Other
content goes to a file. Threads hash and write the bytes that have arrived, while more are read from the
socket into a bounded number of buffers (`web/buffer_ring.py`). Other nodes receive at the same time
(`node/uploads/chain.py`). At the end of the request, also an early one, its bytes are made durable on the
write quorum and reported: only the offset in the log is acknowledged.

Tested by tests/cluster/test_uploads.py.
"""

import hashlib
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from typing import Final

from aiohttp import web
from msgspec.structs import replace

from ca.errors import (
    ChecksumMismatch,
    Conflict,
    FilestoreError,
    Forbidden,
    Gone,
    InvalidRequest,
    NotFound,
    Unauthorized,
)
from metadata.model.records import PARTIAL, ContentRecord, UploadRecord
from node.content.incoming import IncomingBytes
from node.content.replay import is_repeated
from node.content.upload_session import UploadSession
from node.diskio.executor import write_overlapped
from node.diskio.fs import DiskFull, DiskRefused
from node.uploads.completion import SMALL_CONTENT_BYTES, complete_small, complete_upload
from node.uploads.holder import EMPTY_SHA256, UploadHolder
from node.uploads.progress import NO_ROOM, SMALL_BYTES, Overtaken
from node.uploads.services import NodeServices
from runtime.time_limits import note_failure, note_progress
from web.app import body_batches, keeps_in_memory
from web.headers.digests import WrongContent, agreed_sha256
from web.request_body import Batch

# After these errors no byte of the request is kept, or another node continues.
_FINAL: Final = (Forbidden, Unauthorized, NotFound, Gone, WrongContent, DiskFull, DiskRefused)


async def write_incoming(session: UploadSession, incoming: IncomingBytes) -> UploadRecord:
    """Write the bytes of the request. Return the upload, which has ended if they completed its content.

    A partial upload that is complete has all bytes durable, and does not end. Raises OffsetMismatch with the
    right offset; PayloadTooLarge, InvalidRequest; what `receive` and `complete_upload` raise; Conflict for
    another size than was declared, and for an upload that has ended, unless this repeats the request that
    completed it.
    """
    record, holder = session.record, session.holder
    if record.size_bytes is not None and incoming.size_bytes not in (None, record.size_bytes):
        raise Conflict(f"This upload was declared with {record.size_bytes} bytes.")
    if session.has_ended:
        if not await is_repeated(session, incoming):
            raise Conflict("This upload is complete: the file is available with other content.")
        return replace(record, offset_bytes=record.size_bytes or 0)
    if _is_short(session, incoming):
        await session.begin(opens=False)
        content = await _write_short(session, incoming)
        return completed_record(session.record, content)
    await session.begin()
    if incoming.start is None:
        if incoming.size_bytes is not None and session.file.offset <= incoming.size_bytes:
            await _declare(session, incoming.size_bytes)
    else:
        await _write_file(session, incoming, incoming.start)
    if not holder.is_complete:
        return session.record
    if session.record.kind == PARTIAL:
        await holder.settle()
        return session.record
    return await complete(session, incoming.whole_sha256, patch_offset=incoming.patch_offset)


async def complete(session: UploadSession, sha256: str = "", *, patch_offset: int = -1) -> UploadRecord:
    """Complete the upload, whose bytes are all here; return its final record.

    Raises what `complete_upload` raises.
    """
    content = await complete_upload(session.holder, sha256, patch_offset=patch_offset)
    return completed_record(session.record, content)


def completed_record(record: UploadRecord, content: ContentRecord | None = None) -> UploadRecord:
    """Return the record of an upload that this request completed: it was read before, and never expires.

    `content`: the file, if this node completed it.
    """
    return replace(
        record,
        status="available",
        placement=[],
        expires_at_ms=0,
        offset_bytes=record.size_bytes or 0,
        blob_sha256=content.file.blob_sha256 if content is not None else record.blob_sha256,
    )


def _is_short(session: UploadSession, incoming: IncomingBytes) -> bool:
    """Return whether the bytes are all of small content, and memory is free until the request ends."""
    length_bytes, services = incoming.length_bytes, session.services
    if length_bytes is None or length_bytes > SMALL_CONTENT_BYTES or not incoming.is_all_of(session.record):
        return False
    return services.blobs.packed.takes_new() and keeps_in_memory(session.request, length_bytes)


async def _write_short(session: UploadSession, incoming: IncomingBytes) -> ContentRecord:
    """Receive the body, and complete the upload with it.

    If the body ends early, the bytes that came are kept; if it cannot be completed now, all are. No byte is
    kept with ChecksumMismatch, InvalidRequest or NO_ROOM. Raises what `small_body` and `complete_upload`
    raise.
    """
    holder, length_bytes, received = session.holder, incoming.length_bytes, list[bytes]()
    assert length_bytes is not None, "short content has a known length"
    if session.record.size_bytes is None:
        await (holder.declare if incoming.size_bytes is not None else holder.reserve)(length_bytes)
    try:
        with session.expect_client():
            session.has_read = True
            content = await small_body(
                session.request, session.services, incoming, received, session.lock.touch
            )
    except (FilestoreError, web.HTTPException, OSError) as error:
        if received and not incoming.checksums:
            await _keep(holder, b"".join(received), error)
        raise
    found = hashlib.sha256(content).hexdigest()
    sha256 = agreed_sha256(session.record.expected_sha256, incoming.whole_sha256, found=found)
    if session.record.size_bytes is None:
        await holder.declare(length_bytes)
    try:
        return await complete_small(
            session.services,
            session.caller,
            session.record,
            content,
            sha256=sha256,
            patch_offset=incoming.patch_offset,
        )
    except _FINAL:
        raise
    except FilestoreError as error:
        await _keep(holder, content, error)
        raise


async def _keep(holder: UploadHolder, content: bytes, error: Exception) -> None:
    """Keep the first bytes of the upload in its file, after an error; they are acknowledged nowhere yet."""
    note_failure(error)
    with suppress(FilestoreError):
        await holder.open()
        await holder.settle_at(0)  # drops bytes of an earlier request
        await holder.keep(content)


async def _write_file(session: UploadSession, incoming: IncomingBytes, start: int) -> None:
    """Write the bytes into the file of the upload, from `start` on."""
    holder = session.holder
    if not incoming.is_whole:
        await holder.settle_at(start)
    incoming.require_fit(session.record)
    if incoming.size_bytes is not None:
        await _declare(session, incoming.size_bytes)
    if incoming.length_bytes:
        await holder.reserve(incoming.stop)
        if incoming.is_whole:
            await session.require_room(incoming.length_bytes)
    async with aclosing(_request_batches(session)) as batches:
        rest = await _replaced(session, batches) if incoming.is_whole else batches
        await receive(session, incoming, rest)
    if incoming.is_whole and session.record.size_bytes is None:
        await holder.declare_received()


async def _declare(session: UploadSession, size_bytes: int) -> None:
    if session.record.size_bytes is None:
        await session.holder.declare(size_bytes)


async def receive(
    session: UploadSession,
    incoming: IncomingBytes,
    batches: AsyncGenerator[Batch, None],
    *,
    check: Callable[[], None] = lambda: None,
) -> None:
    """Append a body to the file and make it durable; `complete` does so with small content.

    The bytes that may complete the content are withheld until they were compared with the `whole_sha256`
    of the request.

    If the client vanished or stalled, its bytes are kept unless there are `checksums`, and the reason is
    raised. No byte of this request is kept after NO_ROOM (more than were declared, or the quota is full),
    ChecksumMismatch, InvalidRequest (a malformed body, or another length), Forbidden, Unauthorized (the
    caller lost the permission), and errors of `check`. No byte of the upload is kept after WrongContent.
    """
    holder, file, declared_sha256 = session.holder, session.file, incoming.whole_sha256
    start, start_sha256 = file.offset, file.sha256
    hashes = [checksum.new() for checksum in incoming.checksums]
    if hashes and file.finished is None:
        file.withhold()

    def write(batch: Batch) -> None:  # in a worker thread
        for found in hashes:
            for piece in batch:
                found.update(piece)
        if declared_sha256 and not hashes:
            file.withhold()
        file.append(*batch)
        holder.note_written()

    try:
        with session.expect_client():
            await write_overlapped(session.services.disk, batches, write)
        for checksum, found in zip(incoming.checksums, hashes, strict=True):
            checksum.require(found)
        incoming.require_length(file.offset - start, session.record)
        check()
        is_all = incoming.is_whole or holder.is_complete
        if declared_sha256 and is_all:
            _require_whole(session, declared_sha256)
        file.release()
        if file.offset > SMALL_BYTES or not is_all:
            await holder.settle()
    except Overtaken:
        raise
    except WrongContent:
        await holder.roll_back(0, EMPTY_SHA256)
        raise
    except (*NO_ROOM, ChecksumMismatch, InvalidRequest, Forbidden, Unauthorized):
        await holder.roll_back(start, start_sha256)
        raise
    except BaseException as error:
        note_failure(error)
        with suppress(FilestoreError):
            await (holder.roll_back(start, start_sha256) if hashes else holder.settle_received())
        raise


async def _replaced(
    session: UploadSession, batches: AsyncGenerator[Batch, None]
) -> AsyncGenerator[Batch, None]:
    """Drop earlier bytes when the first byte is here, not for a body that never arrives; return the body.

    Raises InvalidRequest for an empty body if bytes were declared.
    """
    with session.expect_client():
        first: Batch = await anext(batches, [])
    if not first and session.record.size_bytes:
        raise InvalidRequest(f"The body is empty, but {session.record.size_bytes} bytes were declared.")
    if session.file.offset or session.record.offset_bytes:
        await session.holder.rewind(0, EMPTY_SHA256)
    return _joined(first, batches)


async def _joined(first: Batch, rest: AsyncGenerator[Batch, None]) -> AsyncGenerator[Batch, None]:
    async with aclosing(rest):
        if first:
            yield first
        async for batch in rest:
            yield batch


def _require_whole(session: UploadSession, sha256: str) -> None:
    """Raise WrongContent if the content, which is here completely, does not hash to `sha256`.

    Once the log knows of all bytes, any client that asks for the offset completes the upload. If its creator
    declared another digest, which the log knows, `complete_upload` raises the error.
    """
    if session.record.expected_sha256 in ("", sha256):
        agreed_sha256(sha256, found=session.file.sha256)


async def _request_batches(session: UploadSession) -> AsyncGenerator[Batch, None]:
    """Yield the request's body; keep the lock alive and the log informed while it flows."""
    session.has_read = True
    async with aclosing(body_batches(session.request)) as batches:
        async for batch in batches:
            session.lock.receiving = False  # the client waits for this node now
            session.services.metrics.upload_bytes.inc(sum(map(len, batch)))
            yield batch
            note_progress()  # this disk has written it
            await session.holder.keep_up()
            session.lock.touch()
            session.lock.receiving = True
    session.lock.receiving = False  # all has come


async def small_body(
    request: web.Request,
    services: NodeServices,
    incoming: IncomingBytes,
    received: list[bytes],
    touch: Callable[[], None] = lambda: None,
) -> bytes:
    """Return all of a small body. After an error, `received` has the earlier bytes.

    `touch` is called as bytes arrive.
    """
    async with aclosing(body_batches(request)) as batches:
        async for batch in batches:
            received += map(bytes, batch)
            touch()
    content = b"".join(received)
    received.clear()
    services.metrics.upload_bytes.inc(len(content))
    for checksum in incoming.checksums:
        found = checksum.new()
        found.update(content)
        checksum.require(found)
    return content
