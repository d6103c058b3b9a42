"""A request that is repeated after the file became available. Apart from writing: it only compares.

A client that lost the answer repeats its last step, and gets the same answer. A request with other bytes is
rejected, since content never changes; and so is a PATCH that begins elsewhere than the one that completed it.

Tested by tests/cluster/test_again.py.
"""

import hashlib
from contextlib import aclosing

from msgspec import UNSET

from metadata.model.records import ContentRecord
from metadata.protocol.queries import GetContent
from node.content.incoming import IncomingBytes
from node.content.sources import read_pieces
from node.content.upload_session import UploadSession
from web.app import body_chunks
from web.headers.digests import agreed_sha256


async def is_repeated(session: UploadSession, incoming: IncomingBytes) -> bool:
    """Return whether the body equals the content from the body's start to the end.

    Reads the body, unless its length alone says no. Raises ChecksumMismatch; Unavailable if no replica can be
    read to compare with.
    """
    size_bytes, completed_from = session.record.size_bytes, session.record.patch_offset
    assert size_bytes is not None, "content that is available has a size"
    start = size_bytes if incoming.start is None else incoming.start
    is_other_patch = incoming.patch_offset >= 0 and completed_from not in (UNSET, start)
    if is_other_patch or start > size_bytes or incoming.length_bytes not in (None, size_bytes - start):
        return False
    agreed_sha256(incoming.whole_sha256, found=session.record.blob_sha256)
    received_bytes = 0
    hashes = [hashlib.sha256(), *(checksum.new() for checksum in incoming.checksums)]
    with session.expect_client():
        async for chunk in body_chunks(session.request):
            session.lock.touch()
            received_bytes += len(chunk)
            if start + received_bytes > size_bytes:
                return False
            for found in hashes:
                await session.services.disk.run(found.update, chunk)
    for checksum, found in zip(incoming.checksums, hashes[1:], strict=True):
        checksum.require(found)
    return start + received_bytes == size_bytes and hashes[0].hexdigest() == await _stored_sha256(
        session, start
    )


async def _stored_sha256(session: UploadSession, start: int) -> str:
    """Return the sha256 of the content from `start` on: recorded for all of it, otherwise computed."""
    services, record = session.services, session.record
    if start == 0:
        return record.blob_sha256
    query = GetContent(caller=session.caller, file_uuid=record.file_uuid)
    content = await services.api.metadata.read(query, ContentRecord)
    found = hashlib.sha256()
    stop = content.file.size_bytes
    if start == stop:
        return found.hexdigest()
    reading = read_pieces(services, record.blob_sha256, content.replicas, start, stop, size_bytes=stop)
    async with aclosing(reading):
        async for piece in reading:
            await services.disk.run(found.update, piece)
    return found.hexdigest()
