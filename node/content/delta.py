"""Uploads that send what a base lacks: the chunks of the base for clients, and the content of their deltas.

The base is a file that the caller may read: one that may not be read is answered as one that does not exist.
What the caller learns, and what a delta refers to, is the content of this file and nothing else. The holder
of the upload reads the spans of the base as a download does, verified, and writes them as if the client had
sent them. So chain, quorum, offset and digests are those of any upload.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from aiohttp import web

from api.access import authenticate
from api.bodies.checks import path_uuid
from api.pages import query_flag
from ca.errors import Conflict, FilestoreError, Forbidden, Gone, InvalidRequest, NotFound, Unavailable
from metadata.model.identifiers import is_uuid
from metadata.model.records import Caller, ContentRecord
from node.cold.delta import DeltaDecoder
from node.content.sources import ANSWER_TIMEOUT_S, note_failure, read_pieces, source_order
from node.content.upload_session import UploadSession
from node.peer.chunk_lists import CUT, SAMPLE, list_chunks, path_of, send_list
from node.peer.client import PeerFailed, pieces
from node.storage.segments import BlobDamaged, BlobMissing
from node.uploads.services import NODE, NodeServices
from runtime.time_limits import note_progress, own_bounds
from web.headers.conditions import field_of
from web.request_body import Batch

BASE_FIELD: Final = "Delta-Base"
_BATCH_BYTES: Final = 1 << 20  # of the base, in one job for the disk's threads


async def file_chunks(request: web.Request) -> web.StreamResponse:
    """List the chunks of the content, to send less of a similar one. Needs read on the file.

    40 bytes for each chunk, in order: its SHA-256, and where it ends in the content (8 bytes, little-endian).
    Chunks have 64 to 960 KiB, the last one may be shorter. They are cut by FastCDC, as the Python client
    does. A list whose last end is not the size of the content was cut off. `sample` saves a pass over large
    content that has nothing in common with what is to be sent: it may answer only the chunks of the first and
    the last 4 MiB, and of 4 MiB in the middle, with 0 for their ends.
    """
    with own_bounds():
        caller, services = await authenticate(request), request.app[NODE]
        content = await find_base(services, caller, path_uuid(request, "file_uuid"))
        return await send_list(request, _listed(services, content, query_flag(request, "sample")))


async def find_base(services: NodeServices, caller: Caller, file_uuid: str) -> ContentRecord:
    """Return the content that a caller may use as a base. Raises NotFound in all other cases."""
    try:
        return await services.records.read(caller, file_uuid)
    except (NotFound, Forbidden, Gone, Conflict) as error:
        raise NotFound("There is no available file with this id that you may read.") from error


def base_field(request: web.Request) -> str:
    """Return the file_uuid of the base of a delta. Raises InvalidRequest."""
    file_uuid = (field_of(request.headers, BASE_FIELD) or "").strip().lower()
    if not is_uuid(file_uuid):
        raise InvalidRequest(f"{BASE_FIELD}: must be the file_uuid of the file that the delta refers to.")
    return file_uuid


async def expand(
    session: UploadSession, base: ContentRecord, batches: AsyncGenerator[Batch, None]
) -> AsyncGenerator[Batch, None]:
    """Yield the content of a delta, whose bytes arrive in `batches`.

    Raises InvalidRequest, PayloadTooLarge; NoReplica if no node can send a span of the base.
    """
    decoder = DeltaDecoder(base.file.size_bytes)
    async with aclosing(batches) as arriving:
        async for batch in arriving:
            waiting = list[bytes]()
            for item in (item for piece in batch for item in decoder.feed(piece)):
                if isinstance(item, memoryview):
                    waiting.append(bytes(item))  # the memory of the batch is needed for the next one
                    continue
                if waiting:
                    yield waiting
                    waiting = []
                async with aclosing(_span(session, base, *item)) as reading:
                    async for content in reading:
                        yield content
            if waiting:
                yield waiting
    decoder.finish()


async def _span(
    session: UploadSession, base: ContentRecord, start: int, stop: int
) -> AsyncGenerator[Batch, None]:
    """Yield verified bytes of the base, and keep the log informed meanwhile."""
    file, waiting, waiting_bytes = base.file, list[bytes](), 0
    reading = read_pieces(
        session.services, file.blob_sha256, base.replicas, start, stop, size_bytes=file.size_bytes
    )
    async with aclosing(reading) as arriving:
        async for piece in arriving:
            waiting.append(bytes(piece))
            waiting_bytes += len(piece)
            if waiting_bytes >= _BATCH_BYTES:
                yield waiting
                waiting, waiting_bytes = [], 0
                note_progress()  # this disk has written it
                await session.holder.keep_up()
                session.lock.touch()
    note_progress()  # a span may take as long as a client waits
    if waiting:
        yield waiting


async def _listed(
    services: NodeServices, content: ContentRecord, is_sample: bool
) -> AsyncGenerator[bytes, None]:
    """Yield the list of the first source that sends one. Raises Unavailable, also if it breaks off."""
    sha256, is_begun = content.file.blob_sha256, False
    for source in source_order(services, content.replicas):
        try:
            async with aclosing(_listed_by(services, source, sha256, is_sample)) as parts:
                async for part in parts:
                    is_begun = True
                    yield part
            return
        except (BlobMissing, BlobDamaged, PeerFailed, FilestoreError) as failure:
            await note_failure(services, sha256, source, failure)
            if is_begun:
                break
    raise Unavailable("No replica of this content can be read now.", retry_after_s=2)


async def _listed_by(
    services: NodeServices, source: str, sha256: str, is_sample: bool
) -> AsyncGenerator[bytes, None]:
    """Yield the list of one source. Raises BlobMissing, BlobDamaged, PeerFailed, FilestoreError."""
    if source == services.node_id:
        with await services.disk.open(services.blobs.open, sha256) as blob:
            own = list_chunks(services.disk, blob, services.cuttings, is_sample=is_sample)
            async with aclosing(own):
                async for part in own:
                    yield part
        return
    path = path_of(sha256, SAMPLE if is_sample else CUT)
    async with services.peers.request(source, "GET", path, answer_timeout_s=ANSWER_TIMEOUT_S) as answer:
        if answer.status != 200:
            raise PeerFailed(source, f"answered {answer.status}")
        async for part in pieces(source, answer):
            yield part
