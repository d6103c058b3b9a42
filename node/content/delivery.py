"""One span of content to a client: straight from this node's file, what is left of it from elsewhere.

Only verified segments leave. A replica here that turns out damaged or gone, at the first byte or in the
middle, is followed by the others from the byte where it stopped.
"""

from contextlib import aclosing

from aiohttp import web

from ca.errors import FilestoreError
from coordinator.model.records import ContentRecord
from node.content.context import ContentContext
from node.content.sources import note_failure, read_anywhere
from node.sending.body_writer import SMALL_BYTES, FileRange, send_body, send_piece
from node.storage.blob_reader import open_blob, sound_stops
from node.storage.segments import BlobDamaged, BlobMissing


async def send_range(
    request: web.Request,
    response: web.StreamResponse,
    services: ContentContext,
    content: ContentRecord,
    start: int,
    stop: int,
) -> None:
    """Send head and bytes `start` to `stop` (excluded, not empty) of the content.

    Raises Unavailable when no replica is left; some bytes may have gone out before.
    """
    sha256, replicas = content.file.blob_sha256, content.replicas
    if services.node_id in replicas and not services.disk.hangs():
        if stop - start <= SMALL_BYTES and (piece := _hot_piece(services, sha256, start, stop)):
            await send_piece(request, response, piece)
            services.metrics.download_bytes.labels("local").inc(len(piece))
            return
        with services.disk.waited_for(request.transport):
            start = await _send_own(request, response, services, sha256, start, stop)
        if start == stop:
            return
        replicas = [replica for replica in replicas if replica != services.node_id]
    async with aclosing(read_anywhere(services, sha256, replicas, start, stop)) as reading:
        await send_body(request, response, reading)


def _hot_piece(services: ContentContext, sha256: str, start: int, stop: int) -> bytes:
    try:
        return services.blobs.opened.read_cached(sha256, start, stop)
    except OSError:
        return b""  # whoever reads it in earnest meets this again


async def _send_own(
    request: web.Request,
    response: web.StreamResponse,
    services: ContentContext,
    sha256: str,
    start: int,
    stop: int,
) -> int:
    """Send what this disk has of it; where that ended: `stop`, or before it when the replica is at fault.

    Nothing has gone out when it is `start`. Raises ConnectionError.
    """
    at = start
    try:
        blob = await open_blob(services.disk, services.blobs, sha256)
        try:
            async with aclosing(sound_stops(services.disk, blob, start, stop)) as sound:
                first = await anext(sound)
                with FileRange(request, response, services.disk, start, stop) as body:
                    try:
                        await body.begin()
                        await body.send(blob, first)
                        async for until in sound:
                            await body.send(blob, until)
                        await body.end()
                    finally:
                        at = body.at
        finally:
            blob.close()
            services.metrics.download_bytes.labels("local").inc(at - start)
    except (BlobMissing, BlobDamaged, FilestoreError) as failure:
        await note_failure(services, sha256, services.node_id, failure)
    return at
