"""Turn one replica cold, or hot again (docs/cold.md). Each step is a job for the disk's threads.

The order of the steps is what makes a crash harmless: the file goes last, after its chunks and its manifest
are durable and were read back. A step that fails leaves the file, and chunks that the next collection
deletes.

Tested by tests/unit/node/cold/test_cold_store.py.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from node.cold.cutting import ChunkCutter
from node.cold.manifest import ContentChunk
from node.diskio.executor import DiskWorkers
from node.diskio.fs import storage_errors
from node.storage.blobs import BlobStore
from node.storage.cold_blobs import ColdWriter, ProofFailed
from node.storage.damage import read_whole
from node.storage.segments import FinishedBlob, OpenBlob

STEP_BYTES: Final = 8 << 20  # in one job for the disk's threads, and under one sync
COLD_BYTES_MAX: Final = 256 << 30  # the manifest of more would be too large to be kept in memory

Cut = Sequence[tuple[bytes, memoryview]]  # chunks with their SHA-256
Pace = Callable[[int], Awaitable[None]]  # is called with the number of bytes that are read or written next
_T = TypeVar("_T")


class NotFrozen(Exception):
    """The replica stays a file for now; the text says why."""


@dataclass(frozen=True, slots=True)
class Frozen:
    """A replica that turned cold: its size, and the bytes that its new chunks take."""

    size_bytes: int
    stored_bytes: int


async def freeze(disk: DiskWorkers, blobs: BlobStore, sha256: str, *, pace: Pace) -> Frozen:
    """Replace the file of a blob by chunks and a manifest.

    Raises NotFrozen; BlobMissing; BlobDamaged if the file is not the blob; ProofFailed; FilestoreError.
    """
    blob = await disk.open(blobs.open_file, sha256)
    try:
        if blob.size_bytes > COLD_BYTES_MAX:
            raise NotFrozen("it is too large")
        await disk.run(blobs.require_room, 2 * STEP_BYTES + blob.size_bytes)
        writer = await disk.open(_writer, blobs, FinishedBlob(sha256, blob.size_bytes))
        try:
            return await _freeze(disk, blobs, blob, writer, pace)
        finally:
            await disk.run(writer.close)
    finally:
        blob.close()


async def thaw(disk: DiskWorkers, blobs: BlobStore, sha256: str, *, pace: Pace) -> int:
    """Replace manifest and chunks of a blob by a file; return its size.

    Raises BlobMissing if it is not cold; BlobDamaged; InsufficientStorage, FilestoreError.
    """
    with storage_errors():
        blob = await disk.open(blobs.cold.open, sha256)
    try:
        await disk.run(blobs.require_room, blob.size_bytes)
        writer = await disk.run(blobs.receive, sha256, blob.size_bytes)
        try:
            pieces, is_more = blob.pieces(), True
            while is_more:
                await pace(min(STEP_BYTES, blob.size_bytes - writer.offset))
                is_more = await disk.run(_copy_step, pieces, writer.write)
            await disk.run(writer.finish)
        finally:
            await disk.run(writer.abort)
        return blob.size_bytes
    finally:
        blob.close()


async def _freeze(
    disk: DiskWorkers, blobs: BlobStore, blob: OpenBlob, writer: ColdWriter, pace: Pace
) -> Frozen:
    file, content = blob.identity(), _Content(blob, writer)
    cut: Cut = []
    while cut or content.offset < blob.size_bytes:
        await pace(min(STEP_BYTES, blob.size_bytes - content.offset))
        cut = await _both(disk.run(content.cut_step), disk.run(content.store, cut))
    proof, is_more = writer.prove(again=content.read_again), True
    try:
        while is_more:
            await pace(min(STEP_BYTES, blob.size_bytes))
            is_more = await disk.run(_prove_step, proof)
    except ProofFailed:
        await read_whole(disk, blob, pace=pace)  # raises BlobDamaged if it is the file that is wrong
        raise

    def is_another() -> bool:
        return not blobs.has_file(blob.sha256) or blobs.identity(blob.sha256)[0] != file

    with storage_errors():
        manifest = await disk.run(writer.place, unless=is_another)
    if manifest is None:
        raise NotFrozen("it arrived again, or was deleted, meanwhile")
    if not await disk.run(blobs.replace_by_cold, blob.sha256, file=file, manifest=manifest):
        raise NotFrozen("it arrived again meanwhile")
    return Frozen(blob.size_bytes, content.stored_bytes)


async def _both(first: Awaitable[_T], second: Awaitable[object]) -> _T:
    """Wait until both have ended, also if one raises; return the result of the first."""
    given, other = await asyncio.gather(first, second, return_exceptions=True)
    if isinstance(given, BaseException):
        raise given
    if isinstance(other, BaseException):
        raise other
    return given


class _Content:
    """The content of a file that turns cold, in steps: one thread cuts the next while another stores one."""

    def __init__(self, blob: OpenBlob, writer: ColdWriter) -> None:
        self.offset = 0
        self.stored_bytes = 0
        self._blob, self._writer = blob, writer
        self._cutter = ChunkCutter()

    def cut_step(self) -> Cut:
        """Return the next chunks; none at the end. Raises BlobDamaged, FilestoreError."""
        blob = self._blob
        if self.offset == blob.size_bytes:
            return []
        with storage_errors():
            content = blob.pread(STEP_BYTES, self.offset)
        if not content:
            raise blob.damage_error("is shorter than its sidecar says")
        self.offset += len(content)
        return list(self._cutter.cut(content, is_last=self.offset == blob.size_bytes))

    def store(self, cut: Cut) -> None:
        """Store those of the chunks that are not here. Raises FilestoreError."""
        with storage_errors():
            wanted = self._writer.add([(chunk_id, len(piece)) for chunk_id, piece in cut])
            new = {chunk_id: piece for chunk_id, piece in cut if chunk_id in wanted}
            if new:
                self.stored_bytes += self._writer.put(list(new.items()))

    def read_again(self, chunk: ContentChunk) -> bytes:
        """Return a chunk of the file, unverified. Raises OSError."""
        return self._blob.pread(chunk.size_bytes, chunk.start)


def _writer(blobs: BlobStore, blob: FinishedBlob) -> ColdWriter:
    with storage_errors():
        return blobs.cold.writer(blob)


def _prove_step(proof: Iterator[int]) -> bool:
    """Read back some chunks; return whether more follow. Raises ProofFailed, ChunkMissing, FilestoreError."""
    with storage_errors():
        first_bytes = next(proof, None)
        if first_bytes is not None:
            for read_bytes in proof:
                if read_bytes - first_bytes >= STEP_BYTES:
                    return True
    return False


def _copy_step(pieces: Iterator[bytes], write: Callable[[bytes], object]) -> bool:
    """Copy some chunks; return whether more may follow."""
    copied_bytes = 0
    while copied_bytes < STEP_BYTES:
        piece = next(pieces, b"")
        if not piece:
            return False
        write(piece)
        copied_bytes += len(piece)
    return True
