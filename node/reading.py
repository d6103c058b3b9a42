"""Bytes of a blob on this node's disk, verified before they leave, read without stopping the loop.

While one segment goes out the next is checked in a thread, so a first download is not slower than the disk.
What lies in the page cache is read on the loop (a hop to a thread costs more than the copy); the rest by a
thread.
"""

import asyncio
import os
from collections.abc import AsyncGenerator

from node.blobs import BlobStore
from node.disk import DiskWorkers
from node.segments import SEGMENT_BYTES, OpenBlob

PIECE_BYTES = 256 * 1024  # measured best for writes into a TLS transport
_NOWAIT = getattr(os, "RWF_NOWAIT", 0)


async def read_blob(
    disk: DiskWorkers, blobs: BlobStore, sha256: str, start: int, stop: int
) -> AsyncGenerator[bytes | bytearray, None]:
    """Bytes `start` to `stop` (excluded) of a blob, every one from a verified segment.

    Pieces have at most PIECE_BYTES. The blob is open as long as this generator is: close it
    (`contextlib.aclosing`) when leaving early. Raises BlobMissing, BlobDamaged (also in the middle, at a
    piece boundary), FilestoreError when files cannot be opened.
    """
    blob = await disk.run(blobs.open, sha256)
    try:
        if stop > blob.size_bytes:
            raise blob.damaged(f"has {blob.size_bytes} bytes, not the {stop} that were asked for")
        async for piece in _read_segments(disk, blob, start, stop):
            yield piece
    finally:
        blob.close()


async def _read_segments(
    disk: DiskWorkers, blob: OpenBlob, start: int, stop: int
) -> AsyncGenerator[bytes | bytearray, None]:
    checking: asyncio.Task[None] | None = None
    try:
        while start < stop:
            checked_until = _segment_stop(start, stop)
            if checking is None:
                await disk.run(blob.verify_range, start, checked_until)
            else:
                await checking
            checking = None
            if checked_until < stop:
                ahead = disk.run(blob.verify_range, checked_until, _segment_stop(checked_until, stop))
                checking = asyncio.create_task(ahead)
            while start < checked_until:
                piece = await _read_piece(disk, blob, start, min(PIECE_BYTES, checked_until - start))
                start += len(piece)
                yield piece
    finally:
        if checking is not None:  # its thread must have let go of the descriptor before that is closed
            checking.cancel()
            await asyncio.wait({checking})
            _ = checking.cancelled() or checking.exception()


def _segment_stop(start: int, stop: int) -> int:
    return min((start // SEGMENT_BYTES + 1) * SEGMENT_BYTES, stop)


async def _read_piece(disk: DiskWorkers, blob: OpenBlob, start: int, size_bytes: int) -> bytes | bytearray:
    """One to `size_bytes` bytes from `start`."""
    piece: bytes | bytearray = _read_cached(blob.fd, start, size_bytes)
    if piece:
        return piece
    try:
        piece = await disk.run(os.pread, blob.fd, size_bytes, start)
    except OSError as error:
        raise blob.damaged(f"cannot be read: {os.strerror(error.errno or 0)}") from error
    if not piece:
        raise blob.damaged("is shorter than its sidecar says")
    return piece


def _read_cached(fd: int, start: int, size_bytes: int) -> bytearray:
    """What the page cache has of these bytes; nothing where it has none, or the file system cannot tell."""
    if not _NOWAIT:
        return bytearray()
    piece = bytearray(size_bytes)
    try:
        count = os.preadv(fd, [piece], start, _NOWAIT)
    except OSError:  # EAGAIN: not cached. EOPNOTSUPP: cannot tell. Anything worse the thread meets again.
        return bytearray()
    del piece[count:]
    return piece
