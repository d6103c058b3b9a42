"""Fetch a replica in its cold form: the chunks that this node lacks, from nodes that have the blob.

A source whose replica is cold lists its chunks. A draft names them first, so those that are here stay. The
others come as ranges of the blob, are compared with their SHA-256 and stored. At the end all chunks are read
back from the medium, and the whole is compared with the name of the blob, before the manifest is placed. So
a wrong list, and a source that changes meanwhile, cost time only.

If this fails, `node/peer/fetch.py` fetches the file: it knows damaged copies, and finds the node that sends
wrong bytes. If sources are only slow, the whole file would be the wrong answer, as they would have to send
far more: the attempt fails, and the leader tries again. Stored chunks survive that, and a crash of this
node. The next attempt finds them, unless a collection has deleted them.

Two versions of an image are often fetched at the same time, as one node loses both. A chunk that one fetch
brings is not requested by the other (`_Arrivals`).
"""

import asyncio
import hashlib
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from enum import Enum
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
LIST_STALL_S: Final = 20.0  # for a busy source to read its manifest: a file would cost it far more
LIST_GRACE_S: Final = 10.0  # for the others, after a source has answered that its replica is not cold
LIST_S_MAX: Final = 64.0  # for one, which has up to 42 MB
BATCH_CHUNKS: Final = 256  # that are named at once, 64 MiB on average
RANGE_BYTES: Final = 8 << 20  # of chunks that follow each other, in one request and under one sync
RANGE_S_MAX: Final = 32.0  # 256 KiB/s, below which another source or the next attempt is better
STEP_BYTES: Final = 8 << 20  # read back in one job for the disk's threads

Mark = Callable[[], AbstractAsyncContextManager[None]]
_log = logging.getLogger(__name__)


class WrongChunk(Exception):
    """A source has sent a chunk that differs from the list; the text is the source."""


class _NoList(Enum):
    """Why a source has sent no list."""

    NOT_COLD = "it answers, and has no list, or a wrong one"
    NO_ANSWER = "it does not answer"


class ColdFetches:
    """The cold fetches of one node. `mark`: entered around the placing of a manifest."""

    def __init__(self, blobs: BlobStore, context: FetchContext, mark: Mark) -> None:
        self._blobs, self._context, self._mark = blobs, context, mark
        self._arrivals = _Arrivals()

    async def fetch(self, blob: FinishedBlob, sources: Sequence[str], fetch: Fetch) -> bool:
        """Return whether the blob is here now, in its cold form, durable; False if its file is to be fetched.

        Adds the sources that failed to those of `fetch`. Raises SourcesFailed if the sources are too slow,
        InsufficientStorage, Internal, Unavailable.
        """
        if not BLOB_BYTES_MAX < blob.size_bytes <= COLD_BYTES_MAX or not sources:
            return False
        manifest = await self._list(blob, sources, fetch)
        if manifest is None:
            return False
        run = self._context.disk.run
        writer = await self._context.disk.open(_new_writer, self._blobs, blob)
        gathering = _Gathering(self._context, self._blobs, writer, manifest, sources, fetch, self._arrivals)
        try:
            await gathering.run()
            await self._prove(writer, fetch)
            return await self._place(writer, blob.sha256) or await run(self._blobs.has, blob.sha256)
        except ChunkMissing as error:
            if isinstance(error, ChunkDamaged):
                await run(self._blobs.cold.note_damaged, error.id)
            reason: Exception = error
        except (SourcesFailed, WrongChunk, ProofFailed) as error:
            if isinstance(error, SourcesFailed) and gathering.met_only_silence:
                raise
            reason = error
        finally:
            await run(writer.close)
        facts = {"sha256": blob.sha256, "reason": f"{type(reason).__name__}: {reason}"}
        _log.warning("a cold replica is fetched as a file", extra=facts)
        return False

    async def _list(self, blob: FinishedBlob, sources: Sequence[str], fetch: Fetch) -> ColdManifest | None:
        """Return the chunks of the blob from the first source that lists them; None if none keeps it cold.

        Raises SourcesFailed if no source has answered in time: the blob may be cold there.
        """
        silent, loop = self._context.peers.silent, asyncio.get_running_loop()
        first = sorted(sources, key=silent.__contains__)[:LISTS_MAX]
        asked = {asyncio.create_task(self._list_of(source, blob)): source for source in first}
        pending, answers, until_s = set(asked), list[ColdManifest | _NoList](), float("inf")
        try:
            while pending and loop.time() < until_s:
                left_s = None if until_s == float("inf") else until_s - loop.time()
                done, pending = await asyncio.wait(
                    pending, timeout=left_s, return_when=asyncio.FIRST_COMPLETED
                )
                fetch.moved(len(done))
                answers += [task.result() for task in done]
                if found := [answer for answer in answers if isinstance(answer, ColdManifest)]:
                    return found[0]
                if _NoList.NOT_COLD in answers:
                    until_s = min(until_s, loop.time() + LIST_GRACE_S)
                    if all(asked[task] in silent for task in pending):
                        break  # sources that were silent before are not waited for
        finally:
            await end_tasks(pending)
        for task in pending:
            silent.note(asked[task])  # the next fetch does not wait for it, unless it answers meanwhile
        if _NoList.NOT_COLD not in answers:
            fetch.failed.update(first)
            raise SourcesFailed("No node that has this blob tells its chunks now.", first)
        return None

    async def _list_of(self, source: str, blob: FinishedBlob) -> ColdManifest | _NoList:
        """Return the chunks of the blob, as this source lists them."""
        try:
            async with asyncio.timeout(LIST_S_MAX):
                raw = await _ask_list(self._context.peers, source, blob)
            if raw is None:
                return _NoList.NOT_COLD
            return await self._context.disk.run(decode_list, raw, blob.sha256, blob.size_bytes)
        except (PeerFailed, ManifestInvalid, TimeoutError) as failure:
            facts = {"sha256": blob.sha256, "peer": source, "reason": str(failure)}
            _log.warning("a node does not list the chunks of a blob", extra=facts)
            return _NoList.NOT_COLD if isinstance(failure, ManifestInvalid) else _NoList.NO_ANSWER

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
        arrivals: "_Arrivals",
    ) -> None:
        self._context, self._blobs, self._writer = context, blobs, writer
        self._manifest, self._sources, self._fetch = manifest, sources, fetch
        self._arrivals = arrivals
        self._choice, self._strikes = NodeChoice(sources), dict[str, int]()
        self._storing = asyncio.Lock()  # a writer is for one thread at a time
        self.met_only_silence = True  # no source has failed in another way

    async def run(self) -> None:
        """Store the chunks that are not here. Raises SourcesFailed, WrongChunk, FilestoreError."""
        chunks = self._manifest.chunks()
        while batch := list(islice(chunks, BATCH_CHUNKS)):
            lacking = await self._context.disk.run(self._add, batch)
            await self._count(batch, {chunk.id for chunk in batch} - lacking)
            while lacking:
                lacking -= await self._complete(batch, lacking)

    async def _complete(self, batch: Sequence[ContentChunk], lacking: set[bytes]) -> set[bytes]:
        """Bring the chunks that no other fetch brings, or wait for the others; return what is here now.

        Raises as `run` does.
        """
        own = self._arrivals.claim(lacking)
        if not own:
            if await self._arrivals.wait(lacking, RANGE_S_MAX):
                return set()
            own = lacking  # the other fetch is stuck: these may come twice
        try:
            here = await self._context.disk.run(self._find, own)
            await self._count(batch, here)
            ranges = iter(ranges_of(batch, own - here))
            async with asyncio.TaskGroup() as group:
                for _ in range(RANGES_AT_ONCE):
                    group.create_task(self._work(ranges))
        except BaseExceptionGroup as failures:
            raise first_failure(failures) from None
        finally:
            self._arrivals.release(own)
        return own

    async def _count(self, batch: Sequence[ContentChunk], here: set[bytes]) -> None:
        """Count the chunks that are here as progress."""
        await self._fetch.count(sum(chunk.size_bytes for chunk in batch if chunk.id in here))

    def _add(self, batch: Sequence[ContentChunk]) -> set[bytes]:
        """Name the next chunks; return those to fetch. Raises InsufficientStorage, Internal."""
        with storage_errors():
            wanted = self._writer.add([(chunk.id, chunk.size_bytes) for chunk in batch])
        self._blobs.require_room(sum(chunk.size_bytes for chunk in batch if chunk.id in wanted))
        return wanted

    def _find(self, ids: set[bytes]) -> set[bytes]:
        """Return which of these are here now; they stay, as the draft names them. Raises FilestoreError."""
        with storage_errors():
            return self._blobs.cold.chunks.has(ids)

    async def _work(self, ranges: Iterator[Sequence[ContentChunk]]) -> None:
        for chunks in ranges:
            content, source = await self._range(chunks)
            async with self._storing:
                if not await self._context.disk.run(self._store, chunks, content):
                    raise WrongChunk(source)
            self._arrivals.release({chunk.id for chunk in chunks})

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
                self.met_only_silence &= _is_silence(failure)
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


class _Arrivals:
    """The chunks that fetches of this node are bringing now."""

    def __init__(self) -> None:
        self._ids = set[bytes]()
        self._released = asyncio.Event()

    def claim(self, ids: set[bytes]) -> set[bytes]:
        """Return those that no fetch brings; the caller does from now on, until it releases them."""
        claimed = ids - self._ids
        self._ids |= claimed
        return claimed

    def release(self, ids: set[bytes]) -> None:
        """Let others look for these chunks: they are stored, or their fetch has failed."""
        self._ids -= ids
        self._released.set()
        self._released = asyncio.Event()

    async def wait(self, ids: set[bytes], timeout_s: float) -> bool:
        """Wait until one of these is released; return False if none is within this time."""
        try:
            async with asyncio.timeout(timeout_s):
                while ids <= self._ids:
                    await self._released.wait()
        except TimeoutError:
            return False
        return True


def _is_silence(failure: Exception) -> bool:
    """Return whether a source was too slow, rather than unable to send what was requested."""
    return isinstance(failure, TimeoutError) or (isinstance(failure, PeerFailed) and failure.is_silent)


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

    Raises PeerFailed; ManifestInvalid if it answers anything else.
    """
    raw, bytes_max = bytearray(), chunks_max(blob.size_bytes) * CHUNK_ENTRY_BYTES
    path = path_of(blob.sha256)
    async with peers.request(source, "GET", path, answer_timeout_s=LIST_STALL_S) as answer:
        if answer.status == 404:
            return None
        if answer.status != 200:
            raise ManifestInvalid(f"was answered with {answer.status}")
        async for piece in pieces(source, answer):
            raw += piece
            if len(raw) > bytes_max:
                raise ManifestInvalid("is too long")
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
