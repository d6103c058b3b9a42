"""The list of the chunks of a blob, encoded as in a manifest. Shared by clients' lists and cold fetches.

An entry has the SHA-256 of a chunk, and the place where it ends. A cold replica has the list. The content
of a hot one is cut for it, which costs a pass over its bytes. A sample tells for less whether content is
similar at all: it has the chunks of a few parts. Their ends are 0, so it cannot pass as a list.
`node/cold/manifest.py` has the format.

Tested by tests/cluster/test_delta_uploads.py.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Final

from aiohttp import web

from node.cold.cutting import ChunkCutter, sample_spans
from node.cold.manifest import ContentChunk, encode_chunks
from node.diskio.executor import DiskWorkers
from node.diskio.fs import storage_errors
from node.storage.cold_blobs import OpenColdBlob
from node.storage.segments import OpenBlob
from web.app import ClientGone

LIST_TYPE: Final = "application/vnd.filestore.chunks"
CUT: Final = "1"  # a hot replica is cut
SAMPLE: Final = "sample"  # a few parts of it are
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


def path_of(sha256: str, query: str = "") -> str:
    """Return the path of a list on a peer port. `query`: `CUT` or `SAMPLE`, else only of a cold replica."""
    return f"/blobs/{sha256}/chunks{query and '?cut='}{query}"


async def list_chunks(
    disk: DiskWorkers, blob: OpenBlob, cuttings: asyncio.Semaphore, *, is_sample: bool = False
) -> AsyncGenerator[bytes, None]:
    """Yield the list of an open blob in parts; of a hot one only a sample, if that is wanted.

    Close it before the blob. A hot blob is cut in its turn, one of `cuttings`; the list of a cold one is
    there, and waits for nothing.

    The ids of a hot blob are those of its bytes as they are read, unverified: another content has others.
    Raises BlobDamaged if the blob is shorter than its sidecar says; FilestoreError.
    """
    if isinstance(blob, OpenColdBlob):
        yield blob.manifest.entries
        return
    spans = sample_spans(blob.size_bytes) if is_sample else []
    async with cuttings:
        for start, stop in spans or [(0, blob.size_bytes)]:
            cutting = _Cutting(blob, start, stop)
            while cutting.offset < stop:
                chunks = await disk.run(cutting.step)
                yield encode_chunks([replace(chunk, stop=0) for chunk in chunks] if spans else chunks)


class _Cutting:
    """A part of a hot blob that is cut. For one thread at a time."""

    def __init__(self, blob: OpenBlob, start: int, stop: int) -> None:
        self._blob, self._cutter = blob, ChunkCutter()
        self._chunk_stop = start  # of the last chunk
        self._stop = stop
        self.offset = start

    def step(self) -> list[ContentChunk]:
        """Read the next bytes; return the chunks that they complete."""
        with storage_errors():
            content = self._blob.pread(min(CUT_BYTES, self._stop - self.offset), self.offset)
        if not content:
            raise self._blob.damage_error("is shorter than its sidecar says")
        self.offset += len(content)
        found = []
        for chunk_id, piece in self._cutter.cut(content, is_last=self.offset == self._stop):
            found.append(ContentChunk(chunk_id, self._chunk_stop, self._chunk_stop + len(piece)))
            self._chunk_stop += len(piece)
        return found
