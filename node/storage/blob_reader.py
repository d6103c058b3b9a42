"""Read the bytes of a blob on this node's disk, verified, without blocking the event loop.

While one segment is sent, a thread checks the next one, so a first download is as fast as the disk. The loop
itself reads bytes in the page cache, as a hop to a thread costs more than the copy. A thread reads the rest.

Tested by tests/unit/node/peer/test_peer_transfer.py.
"""

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import aclosing

from node.diskio.executor import DiskWorkers
from node.diskio.fs import storage_error
from node.storage.blobs import BlobStore
from node.storage.segments import SEGMENT_BYTES, OpenBlob
from runtime.lifetime import end_tasks
from web.internals.tls import SLICE_BYTES

PIECE_BYTES = 4 * SLICE_BYTES  # 252 KiB, which TLS sends in whole slices


async def open_blob(disk: DiskWorkers, blobs: BlobStore, sha256: str) -> OpenBlob:
    """Open a blob; the caller closes it. A blob that is kept open needs no thread.

    Raises BlobMissing, BlobDamaged, FilestoreError.
    """
    try:
        cached = blobs.opened.take(sha256)
    except OSError as error:
        raise storage_error(error) from error
    if cached is not None:
        return cached
    return await disk.open(blobs.open_and_cache, sha256)


async def read_blob(
    disk: DiskWorkers,
    blobs: BlobStore,
    sha256: str,
    start: int,
    stop: int,
    *,
    size_bytes: int | None = None,
) -> AsyncGenerator[bytes, None]:
    """Yield bytes `start` to `stop` (excluded) of a blob, each from a verified segment.

    `size_bytes`: the expected size, if known; a blob of another size is damaged.

    A piece has at most PIECE_BYTES. The blob is open as long as this generator: close it
    (`contextlib.aclosing`) when leaving early. Raises BlobMissing; BlobDamaged, also in the middle, between
    two pieces; FilestoreError if files cannot be opened.
    """
    blob = await open_blob(disk, blobs, sha256)
    try:
        if size_bytes is not None:
            blob.require_size(size_bytes)
        async with aclosing(sound_stops(disk, blob, start, stop)) as sound:
            async for checked_until in sound:
                while start < checked_until:
                    piece = await read_piece(disk, blob, start, min(PIECE_BYTES, checked_until - start))
                    start += len(piece)
                    yield piece
    finally:
        blob.close()


async def sound_stops(disk: DiskWorkers, blob: OpenBlob, start: int, stop: int) -> AsyncGenerator[int, None]:
    """Yield ascending positions: bytes from `start` to each may be sent. The last one is `stop`.

    Meanwhile the next segment is checked, unless it is trusted. Close this generator before the blob. Raises
    BlobDamaged.
    """
    if stop > blob.size_bytes:
        raise blob.damage_error(f"has {blob.size_bytes} bytes, but {stop} were requested")
    checking: asyncio.Task[None] | None = None
    try:
        while start < stop:
            until = _segment_stop(start, stop)
            if checking is not None:
                await checking
            elif not blob.is_trusted(start, until):
                await disk.run(blob.verify_range, start, until)
            checking = None
            after = _segment_stop(until, stop)
            if until < stop and not blob.is_trusted(until, after):
                checking = asyncio.create_task(disk.run(blob.verify_range, until, after))
            yield until
            start = until
    finally:
        if checking is not None:  # its thread must finish with the descriptor before that is closed
            await end_tasks([checking])
            _ = checking.cancelled() or checking.exception()


def _segment_stop(start: int, stop: int) -> int:
    return min((start // SEGMENT_BYTES + 1) * SEGMENT_BYTES, stop)


async def read_piece(disk: DiskWorkers, blob: OpenBlob, start: int, size_bytes: int) -> bytes:
    """Read one to `size_bytes` bytes from `start`. Raises BlobDamaged if there are none."""
    try:
        if blob.is_cached(start, start + size_bytes):
            piece = os.pread(blob.fd, size_bytes, start)
        else:
            piece = await disk.run(os.pread, blob.fd, size_bytes, start)
    except OSError as error:
        raise blob.damage_error(f"cannot be read: {os.strerror(error.errno or 0)}") from error
    if not piece:
        raise blob.damage_error("is shorter than its sidecar says")
    return piece
