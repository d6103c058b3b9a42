"""Sends one span of content to a client, from a source of its choice. Shared by downloads and fast path.

This node's own disk is first. If its replica turns out damaged or gone, at the first byte or in the middle,
the others continue at the byte where it stopped. Only verified segments are sent.

Tested by tests/unit/node/content/test_local_downloads.py.
"""

from contextlib import aclosing, closing

from ca.errors import FilestoreError
from metadata.model.records import ContentRecord
from node.content.sources import note_failure, read_anywhere
from node.sending.body_writer import SMALL_BYTES, BodyWriter
from node.storage.blob_reader import open_blob
from node.storage.segments import BlobDamaged, BlobMissing
from node.uploads.services import NodeServices


async def send_span(
    out: BodyWriter, services: NodeServices, content: ContentRecord, start: int, stop: int
) -> None:
    """Send bytes `start` to `stop` (excluded, not empty) of the content.

    Raises ConnectionError; NoReplica or BytesGone when no replica is left, maybe after some of the bytes.
    """
    sha256, replicas = content.file.blob_sha256, content.replicas
    if services.node_id in replicas and not services.disk.hangs():
        if stop - start <= SMALL_BYTES and (piece := _hot_piece(services, content, start, stop)):
            await out.write(piece)
            services.metrics.download_bytes.labels("local").inc(len(piece))
            return
        with services.disk.waited_for(out.transport):
            start += await _send_own(out, services, content, start, stop)
        if start == stop:
            return
        replicas = [replica for replica in replicas if replica != services.node_id]
    size_bytes = content.file.size_bytes
    async with aclosing(
        read_anywhere(services, sha256, replicas, start, stop, size_bytes=size_bytes)
    ) as reading:
        await out.send(reading)


async def _send_own(
    out: BodyWriter, services: NodeServices, content: ContentRecord, start: int, stop: int
) -> int:
    """Send the bytes of this disk; return how many, fewer than all if the replica is at fault."""
    sha256, sent_before_bytes = content.file.blob_sha256, out.sent_bytes
    try:
        with closing(await open_blob(services.disk, services.blobs, sha256)) as blob:
            blob.require_size(content.file.size_bytes)
            await out.send_file(services.disk, blob, start, stop)
    except (BlobMissing, BlobDamaged, FilestoreError) as failure:
        await note_failure(services, sha256, services.node_id, failure)
    finally:
        sent_bytes = out.sent_bytes - sent_before_bytes
        services.metrics.download_bytes.labels("local").inc(sent_bytes)
    return sent_bytes


def _hot_piece(services: NodeServices, content: ContentRecord, start: int, stop: int) -> bytes:
    file = content.file
    try:
        return services.blobs.opened.read_cached(file.blob_sha256, start, stop, size_bytes=file.size_bytes)
    except OSError:
        return b""  # the next reader of the file gets this error as well
