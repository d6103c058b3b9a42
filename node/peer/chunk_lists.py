"""The list of the chunks of a blob, encoded as in a manifest. Shared by clients' lists and cold fetches.

An entry has the SHA-256 of a chunk, and the place where it ends. A cold replica has the list. The content
of a hot one is cut for it, which costs a pass over its bytes. `node/cold/manifest.py` has the format.

Tested by tests/cluster/test_delta_uploads.py.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from aiohttp import web

from node.cold.cutting import ChunkCutter
from node.cold.manifest import ContentChunk, encode_chunks
from node.diskio.executor import DiskWorkers
from node.diskio.fs import storage_errors
from node.storage.cold_blobs import OpenColdBlob
from node.storage.segments import OpenBlob
from web.app import ClientGone

LIST_TYPE: Final = "application/vnd.filestore.chunks"
CUT_BYTES: Final = 2 << 20  # in one job: a thread of the disk keeps memory for several copies


async def send_list(request: web.Request, parts: AsyncGenerator[bytes, None]) -> web.StreamResponse:
    """Send a list as its parts come. Raises what they raise, before the first one only as an answer."""
    response = web.StreamResponse(headers={"Content-Type": LIST_TYPE, "Cache-Control": "private, no-cache"})
    async with aclosing(parts):
        first = await anext(parts, b"")
        try:
            await response.prepare(request)
            if first:
                await response.write(first)
            async for part in parts:
                await response.write(part)
            await response.write_eof()
        except ConnectionResetError as error:
            raise ClientGone("the client disconnected while a list was sent") from error
    return response


def path_of(sha256: str, *, cuts: bool) -> str:
    """Return the path of a list on a peer port. `cuts`: also of a hot replica."""
    return f"/blobs/{sha256}/chunks{'?cut=1' * cuts}"


async def list_chunks(
    disk: DiskWorkers, blob: OpenBlob, cuttings: asyncio.Semaphore
) -> AsyncGenerator[bytes, None]:
    """Yield the list of an open blob in parts. Close it before the blob.

    A hot blob is cut in its turn, one of `cuttings`; the list of a cold one is there, and waits for nothing.

    The ids of a hot blob are those of its bytes as they are read, unverified: another content has others.
    Raises BlobDamaged if the blob is shorter than its sidecar says; FilestoreError.
    """
    if isinstance(blob, OpenColdBlob):
        yield blob.manifest.entries
        return
    async with cuttings:
        cutting = _Cutting(blob)
        while cutting.offset < blob.size_bytes:
            yield await disk.run(cutting.step)


class _Cutting:
    """A hot blob that is cut. For one thread at a time."""

    def __init__(self, blob: OpenBlob) -> None:
        self._blob, self._cutter = blob, ChunkCutter()
        self._stop = 0  # of the last chunk
        self.offset = 0

    def step(self) -> bytes:
        """Read the next bytes; return the chunks that they complete."""
        with storage_errors():
            content = self._blob.pread(CUT_BYTES, self.offset)
        if not content:
            raise self._blob.damage_error("is shorter than its sidecar says")
        self.offset += len(content)
        found = []
        for chunk_id, piece in self._cutter.cut(content, is_last=self.offset == self._blob.size_bytes):
            found.append(ContentChunk(chunk_id, self._stop, self._stop + len(piece)))
            self._stop += len(piece)
        return encode_chunks(found)
