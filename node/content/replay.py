"""A request that is repeated after the file became available. Shared by PUT, tus and creation.

A client that lost the answer repeats its last step, and is told the same. With other bytes it is refused,
since content never changes. A PATCH has to be the one that completed the upload: `node/content/tus.py` knows
where that began.
"""

import hashlib
from collections.abc import Sequence
from contextlib import aclosing

from metadata.model.records import ContentRecord
from metadata.protocol.queries import GetContent
from node.content.sources import read_pieces
from node.content.upload_session import UploadSession
from web.app import body_chunks
from web.headers.digests import Checksum, agreed_sha256


async def is_repeated(
    session: UploadSession, start: int, checksums: Sequence[Checksum], *, whole_sha256: str
) -> bool:
    """Whether the body is what the content has from `start` to its end.

    Takes the body in, unless its length alone says no. Raises ChecksumMismatch, for the whole too unless
    `whole_sha256` is ""; Unavailable when no replica can be read to compare with.
    """
    size_bytes = session.record.size_bytes
    length_bytes = session.request.content_length
    assert size_bytes is not None
    if start > size_bytes or length_bytes not in (None, size_bytes - start):
        return False
    agreed_sha256(whole_sha256, found=session.record.blob_sha256)
    received_bytes = 0
    hashes = [hashlib.sha256(), *(checksum.new() for checksum in checksums)]
    with session.receiving():
        async for chunk in body_chunks(session.request):
            session.lock.touch()
            received_bytes += len(chunk)
            if start + received_bytes > size_bytes:
                return False
            for found in hashes:
                await session.services.disk.run(found.update, chunk)
    for checksum, found in zip(checksums, hashes[1:], strict=True):
        checksum.require(found)
    return start + received_bytes == size_bytes and hashes[0].hexdigest() == await _stored_sha256(
        session, start
    )


async def _stored_sha256(session: UploadSession, start: int) -> str:
    """Of the content from `start` on. Of all of it that is known; for less it is read."""
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
