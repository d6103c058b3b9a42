"""Whole content of known small length: received in memory, and stored at once (`small_content.py`).

What ends before its time, or cannot be completed now, is kept as that of any other upload is: its first bytes
go to a file then, and the client goes on from there.
"""

import hashlib
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from typing import Final

from aiohttp import web

from ca.errors import FilestoreError, Forbidden, Gone, InvalidRequest, NotFound, Unauthorized
from metadata.model.records import ContentRecord, UploadRecord
from node.content.upload_session import UploadSession
from node.diskio.fs import DiskFull, DiskRefused
from node.uploads.services import NodeServices
from node.uploads.small_content import SMALL_CONTENT_BYTES, complete_small
from runtime.time_limits import failing
from web.app import body_batches, keeps_in_memory
from web.headers.digests import Checksum, WrongContent, agreed_sha256
from web.request_body import Batch

# Of these nothing is to be kept, or another node goes on.
_FINAL: Final = (Forbidden, Unauthorized, NotFound, Gone, WrongContent, DiskFull, DiskRefused)


class CutOff(Exception):
    """The body ended before its time, with `error`; `received` came of it."""

    def __init__(self, received: bytes, error: Exception) -> None:
        super().__init__(str(error))
        self.received, self.error = received, error


def may_be_short(request: web.Request, record: UploadRecord, length_bytes: int | None) -> bool:
    """Whether a body of that length is small content as a whole, of which nothing has come before.

    And there is memory for it, which it then has until the request ends.
    """
    if length_bytes is None or length_bytes > SMALL_CONTENT_BYTES:
        return False
    is_whole = not record.offset_bytes and record.size_bytes in (None, length_bytes)
    return is_whole and keeps_in_memory(request, length_bytes)


async def put_short(
    session: UploadSession,
    length_bytes: int,
    *,
    expected_sha256: str,
    checksums: Sequence[Checksum],
    patch_offset: int = -1,
) -> ContentRecord:
    """Take the body in, and complete the upload with it. `expected_sha256`: of the content, "" for any.

    `patch_offset`: 0 for a PATCH, which brings all of the content then. Raises CutOff for a body that ends
    early, if bytes of it came; ChecksumMismatch, InvalidRequest and what the quota has no room for, of which
    nothing is kept; else as `complete_upload`.
    """
    holder, declared_bytes = session.holder, session.record.size_bytes
    if declared_bytes is None and length_bytes:
        await holder.reserve(length_bytes)
    with session.receiving():
        session.has_read = True
        content = await small_body(
            session.request, session.services, length_bytes, checksums, session.lock.touch
        )
    found = hashlib.sha256(content).hexdigest()
    sha256 = agreed_sha256(session.record.expected_sha256, expected_sha256, found=found)
    if declared_bytes is None:
        await holder.declare(length_bytes)
    try:
        return await complete_small(
            session.services,
            session.caller,
            session.record,
            content,
            sha256=sha256,
            patch_offset=patch_offset,
        )
    except _FINAL:
        raise
    except FilestoreError as error:
        failing(error)
        with suppress(FilestoreError):  # it is acknowledged nowhere yet
            await holder.open()
            await holder.stand_at(0)  # what an earlier request left there goes
            await holder.keep(content)
        raise


async def again(cut_off: CutOff) -> AsyncGenerator[Batch, None]:
    """The same body once more, for who takes it into a file."""
    yield [cut_off.received]
    raise cut_off.error


async def small_body(
    request: web.Request,
    services: NodeServices,
    length_bytes: int,
    checksums: Sequence[Checksum],
    moved: Callable[[], None] = lambda: None,
) -> bytes:
    """All of a body of this length, with these checksums. `moved` is called as it comes.

    Raises CutOff when it ends early, if bytes of it came; InvalidRequest, ChecksumMismatch.
    """
    pieces = list[bytes]()
    try:
        async with aclosing(body_batches(request)) as batches:
            async for batch in batches:
                pieces += map(bytes, batch)
                moved()
    except (FilestoreError, web.HTTPException, OSError) as error:
        if not pieces:
            raise
        raise CutOff(b"".join(pieces), error) from error
    content = b"".join(pieces)
    services.metrics.upload_bytes.inc(len(content))
    if len(content) != length_bytes:
        raise InvalidRequest(f"The body has {len(content)} bytes; {length_bytes} were announced.")
    for checksum in checksums:
        found = checksum.new()
        found.update(content)
        checksum.require(found)
    return content
