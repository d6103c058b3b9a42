"""Fetch a replica in its cold form: the chunks that this node lacks, from nodes that have the blob.

A source whose replica is cold lists its chunks. A draft names them first, so those that are here stay. The
others come as ranges of the blob, are compared with their SHA-256 and stored. At the end all chunks are read
back from the medium, and the whole is compared with the name of the blob, before the manifest is placed. So
a wrong list, and a source that changes meanwhile, cost time only.

If this fails, `node/peer/fetch.py` fetches the file: it knows damaged copies, and finds the node that sends
wrong bytes. Stored chunks survive a crash of this node. The next attempt finds them, unless a
collection has deleted them.
"""

import asyncio
import hashlib
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from itertools import islice
from typing import Final

from node.cold.chunks import ChunkDamaged, ChunkMissing
from node.cold.manifest import (
    CHUNK_ENTRY_BYTES,
    ColdManifest,
    ContentChunk,
    ManifestInvalid,
    chunks_max,
    decode_list,
)
from node.diskio.fs import storage_errors
from node.packs.store import BLOB_BYTES_MAX
from node.peer.chunk_lists import path_of
from node.peer.client import PeerClient, PeerFailed, pieces
from node.peer.range_fetch import (
    RANGES_AT_ONCE,
    STALL_S,
    STRIKES_MAX,
    Fetch,
    FetchContext,
    SourcesFailed,
    first_failure,
)
from node.peer.source_choice import REST_S_MIN, NodeChoice
from node.storage.blobs import BlobStore
from node.storage.cold_blobs import ColdWriter, ProofFailed
from node.storage.segments import FinishedBlob
from node.storage.unclaimed import note_unclaimed
from runtime.lifetime import end_tasks

COLD_BYTES_MAX: Final = 256 << 30  # the manifest of more would be too large to be kept in memory
LISTS_MAX: Final = 3  # sources that are asked for a list
LIST_GRACE_S: Final = 3.0  # after the first answer: a source that takes longer is not waited for
LIST_S_MAX: Final = 64.0  # for one, which has up to 42 MB
BATCH_CHUNKS: Final = 256  # that are named at once, 64 MiB on average
RANGE_BYTES: Final = 8 << 20  # of chunks that follow each other, in one request and under one sync
RANGE_S_MAX: Final = 32.0  # 256 KiB/s, below which another source or the next attempt is better
STEP_BYTES: Final = 8 << 20  # read back in one job for the disk's threads

Mark = Callable[[], AbstractAsyncContextManager[None]]
_log = logging.getLogger(__name__)


class WrongChunk(Exception):
    """A source has sent a chunk that differs from the list; the text is the source."""


class ColdFetches:
    """The cold fetches of one node. `mark`: entered around the placing of a manifest."""

    def __init__(self, blobs: BlobStore, context: FetchContext, mark: Mark) -> None:
        self._blobs, self._context, self._mark = blobs, context, mark

    async def fetch(self, blob: FinishedBlob, sources: Sequence[str], fetch: Fetch) -> bool:
        """Return whether the blob is here now, in its cold form, durable.

        Adds the sources that failed to those of `fetch`. Raises InsufficientStorage, Internal, Unavailable.
        """
        if not BLOB_BYTES_MAX < blob.size_bytes <= COLD_BYTES_MAX or not sources:
            return False
        manifest = await self._list(blob, sources, fetch)
        if manifest is None:
            return False
        run = self._context.disk.run
        writer = await self._context.disk.open(_new_writer, self._blobs, blob)
        try:
            await _Gathering(self._context, self._blobs, writer, manifest, sources, fetch).run()
            await self._prove(writer, fetch)
            return await self._place(writer, blob.sha256) or await run(self._blobs.has, blob.sha256)
        except ChunkMissing as error:
            if isinstance(error, ChunkDamaged):
                await run(self._blobs.cold.note_damaged, error.id)
            reason: Exception = error
        except (SourcesFailed, WrongChunk, ProofFailed) as error:
            reason = error
        finally:
            await run(writer.close)
        facts = {"sha256": blob.sha256, "reason": f"{type(reason).__name__}: {reason}"}
        _log.warning("a cold replica is fetched as a file", extra=facts)
        return False

    async def _list(self, blob: FinishedBlob, sources: Sequence[str], fetch: Fetch) -> ColdManifest | None:
        """Return the chunks of the blob from the first source that lists them; None if none does soon."""
        silent, loop = self._context.peers.silent, asyncio.get_running_loop()
        first = sorted(sources, key=silent.__contains__)[:LISTS_MAX]
        pending = {asyncio.create_task(self._list_of(source, blob)) for source in first}
        until_s: float | None = None
        try:
            while pending and (until_s is None or until_s > loop.time()):
                left_s = None if until_s is None else until_s - loop.time()
                done, pending = await asyncio.wait(
                    pending, timeout=left_s, return_when=asyncio.FIRST_COMPLETED
                )
                until_s = until_s or loop.time() + LIST_GRACE_S
                fetch.moved(len(done))
                if found := [manifest for task in done if (manifest := task.result()) is not None]:
                    return found[0]
        finally:
            await end_tasks(pending)
        return None

    async def _list_of(self, source: str, blob: FinishedBlob) -> ColdManifest | None:
        """Return the chunks of the blob; None if this source does not keep it cold, or cannot answer."""
        try:
            async with asyncio.timeout(LIST_S_MAX):
                raw = await _ask_list(self._context.peers, source, blob)
            if raw is None:
                return None
            return await self._context.disk.run(decode_list, raw, blob.sha256, blob.size_bytes)
        except (PeerFailed, ManifestInvalid, TimeoutError) as failure:
            facts = {"sha256": blob.sha256, "peer": source, "reason": str(failure)}
            _log.warning("a node does not list the chunks of a blob", extra=facts)
            return None

    async def _prove(self, writer: ColdWriter, fetch: Fetch) -> None:
        """Read all back. Raises ProofFailed, ChunkMissing, ChunkDamaged, FilestoreError."""
        proof, done_bytes = writer.prove(), 0
        while (read_bytes := await self._context.disk.run(_prove_step, proof, done_bytes)) > done_bytes:
            await fetch.count(read_bytes - done_bytes)
            done_bytes = read_bytes

    async def _place(self, writer: ColdWriter, sha256: str) -> bool:
        """Put the manifest into service, unless a file of the blob has come meanwhile."""

        def place() -> bool:
            note_unclaimed(self._blobs.unclaimed_directory, sha256)
            with storage_errors():
                return writer.place(unless=lambda: self._blobs.has_file(sha256)) is not None

        async with self._mark():
            is_placed = await self._context.disk.run(place)
        self._blobs.forget(sha256)
        return is_placed


class _Gathering:
    """The chunks of one blob on their way."""

    def __init__(
        self,
        context: FetchContext,
        blobs: BlobStore,
        writer: ColdWriter,
        manifest: ColdManifest,
        sources: Sequence[str],
        fetch: Fetch,
    ) -> None:
        self._context, self._blobs, self._writer = context, blobs, writer
        self._manifest, self._sources, self._fetch = manifest, sources, fetch
        self._choice, self._strikes = NodeChoice(sources), dict[str, int]()
        self._storing = asyncio.Lock()  # a writer is for one thread at a time

    async def run(self) -> None:
        """Store the chunks that are not here. Raises SourcesFailed, WrongChunk, FilestoreError."""
        chunks = self._manifest.chunks()
        while batch := list(islice(chunks, BATCH_CHUNKS)):
            wanted = await self._context.disk.run(self._add, batch)
            ranges = iter(ranges_of(batch, wanted))
            known_bytes = sum(chunk.size_bytes for chunk in batch if chunk.id not in wanted)
            await self._fetch.count(known_bytes)
            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(RANGES_AT_ONCE):
                        group.create_task(self._work(ranges))
            except BaseExceptionGroup as failures:
                raise first_failure(failures) from None

    def _add(self, batch: Sequence[ContentChunk]) -> set[bytes]:
        """Name the next chunks; return those to fetch. Raises InsufficientStorage, Internal."""
        with storage_errors():
            wanted = self._writer.add([(chunk.id, chunk.size_bytes) for chunk in batch])
        self._blobs.require_room(sum(chunk.size_bytes for chunk in batch if chunk.id in wanted))
        return wanted

    async def _work(self, ranges: Iterator[Sequence[ContentChunk]]) -> None:
        for chunks in ranges:
            content, source = await self._range(chunks)
            async with self._storing:
                if not await self._context.disk.run(self._store, chunks, content):
                    raise WrongChunk(source)

    async def _range(self, chunks: Sequence[ContentChunk]) -> tuple[bytes, str]:
        """Return the bytes of chunks that follow each other, and who sent them. Raises SourcesFailed."""
        start, stop = chunks[0].start, chunks[-1].stop
        while not self._choice.is_empty:
            if not self._choice.any_awake():
                await asyncio.sleep(REST_S_MIN)
                continue
            source = self._choice.take()
            try:
                async with asyncio.timeout(RANGE_S_MAX):
                    content = await self._receive(source.url, start, stop)
                self._choice.note_success(source)
                self._strikes.pop(source.url, None)
                return content, source.url
            except (PeerFailed, TimeoutError) as failure:
                facts = {"sha256": self._manifest.sha256, "peer": source.url, "reason": str(failure)}
                _log.warning("a source of a blob failed", extra=facts)
                self._fetch.failed.add(source.url)
                if not self._choice.is_resting(source):
                    self._choice.note_failure(source)
                    strikes = self._strikes[source.url] = self._strikes.get(source.url, 0) + 1
                    if strikes >= STRIKES_MAX:
                        self._choice.drop(source)
            finally:
                self._choice.release(source)
        raise SourcesFailed("No node that has this blob can send it now.", self._sources)

    async def _receive(self, source: str, start: int, stop: int) -> bytes:
        """Return a range of the blob. Raises PeerFailed."""
        sha256, size_bytes = self._manifest.sha256, self._manifest.size_bytes
        headers = {"Range": f"bytes={start}-{stop - 1}"}
        received_bytes = self._context.metrics.replica_bytes.labels("received")
        content = bytearray()
        asked = self._context.peers.request(
            source, "GET", f"/blobs/{sha256}", headers=headers, answer_timeout_s=STALL_S
        )
        async with asked as answer:
            found = answer.headers.get("Content-Range", "")
            if answer.status != 206 or found != f"bytes {start}-{stop - 1}/{size_bytes}":
                raise PeerFailed(source, f"answered {answer.status}")
            async for piece in pieces(source, answer):
                received_bytes.inc(len(piece))
                await self._fetch.keep_pace(len(piece))
                content += piece
        if len(content) != stop - start:
            raise PeerFailed(source, "ended early")
        return bytes(content)

    def _store(self, chunks: Sequence[ContentChunk], content: bytes) -> bool:
        """Store chunks, durable on return; False if one of them is another. Raises FilestoreError."""
        view, start = memoryview(content), chunks[0].start
        found = [(chunk.id, view[chunk.start - start : chunk.stop - start]) for chunk in chunks]
        if any(hashlib.sha256(piece).digest() != chunk_id for chunk_id, piece in found):
            return False
        with storage_errors():
            self._writer.put(found)
        return True


def ranges_of(batch: Sequence[ContentChunk], wanted: set[bytes]) -> list[list[ContentChunk]]:
    """Return the wanted chunks, each once, in groups that follow each other, up to RANGE_BYTES. Pure."""
    found, left = list[list[ContentChunk]](), set(wanted)
    for chunk in batch:
        if chunk.id not in left:
            continue
        left.remove(chunk.id)
        follows = bool(found) and found[-1][-1].stop == chunk.start
        if follows and chunk.stop - found[-1][0].start <= RANGE_BYTES:
            found[-1].append(chunk)
        else:
            found.append([chunk])
    return found


async def _ask_list(peers: PeerClient, source: str, blob: FinishedBlob) -> bytes | None:
    """Return the list of a source; None if its replica is not cold, or it is of an older release.

    Raises PeerFailed.
    """
    raw, bytes_max = bytearray(), chunks_max(blob.size_bytes) * CHUNK_ENTRY_BYTES
    async with peers.request(source, "GET", path_of(blob.sha256), answer_timeout_s=STALL_S) as answer:
        if answer.status == 404:
            return None
        if answer.status != 200:
            raise PeerFailed(source, f"answered {answer.status}")
        async for piece in pieces(source, answer):
            raw += piece
            if len(raw) > bytes_max:
                raise PeerFailed(source, "sends a list that is too long")
    return bytes(raw)


def _new_writer(blobs: BlobStore, blob: FinishedBlob) -> ColdWriter:
    with storage_errors():
        return blobs.cold.writer(blob)


def _prove_step(proof: Iterator[int], done_bytes: int) -> int:
    """Read back some chunks; return how many bytes of the content were read back by then."""
    read_bytes = done_bytes
    with storage_errors():
        for read_bytes in proof:
            if read_bytes - done_bytes >= STEP_BYTES:
                break
    return read_bytes
