"""Whole blobs brought here from other nodes, by ranges from several of them at once (`node/gathering.py`).

Each node that has the blob is asked for the checksums of its segments first. Nodes that tell the same are
one party, and segments are verified against what the largest party says; the checksums themselves are proved
by the sha256 of the whole, before the blob is put into place. What was verified survives a crash of this node
(`node/partials.py`), so the next fetch of the blob goes on there.

Whoever wants the same blob meanwhile shares the fetch. It ends when nobody waits for it any more.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from ca.errors import ChecksumMismatch, InsufficientStorage, Internal, Unavailable
from node.blobs import BlobStore
from node.damage import verify_blob
from node.disk import DiskWorkers
from node.gathering import Means, Pace, gather
from node.metrics import NodeMetrics
from node.partial import Partial
from node.partials import PartialStore
from node.peers import PeerClient, PeerFailed, pieces
from node.segments import (
    BlobDamaged,
    BlobMissing,
    FinishedBlob,
    SegmentSums,
    SidecarInvalid,
    decode_sidecar,
    sidecar_bytes,
)

FETCHES_MAX = 2  # at once: with RANGES_AT_ONCE each, half of the disk's threads
WAITING_MAX = 64  # fetches that wait for their turn
SOURCES_MAX = 16  # that are asked; more would not be faster
JOINS_MAX = 3  # fetches of others that may fail before a caller is told so
SUMS_TIMEOUT_S = 5.0  # for a source to open two files, and without progress after that
SUMS_S_MAX = 30.0  # for all of its checksums: 2 MiB for a blob of 1 TiB

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Fetch:
    """One fetch under way and how many wait for it. `pace` is None once somebody is in a hurry."""

    pace: Pace | None
    task: "asyncio.Task[None] | None" = None
    callers: int = 0

    async def keep_pace(self, size_bytes: int) -> None:
        """Wait until so many bytes are paid for."""
        if self.pace is not None:
            await self.pace(size_bytes)


class Fetches:
    """The fetches of one node."""

    def __init__(
        self,
        *,
        node_id: str,
        blobs: BlobStore,
        partials: PartialStore,
        peers: PeerClient,
        disk: DiskWorkers,
        metrics: NodeMetrics,
    ) -> None:
        self._node_id = node_id
        self._blobs = blobs
        self._partials = partials
        self._means = Means(peers, disk, metrics)
        self._running: dict[FinishedBlob, _Fetch] = {}
        self._turns = asyncio.Semaphore(FETCHES_MAX)

    async def fetch_blob(
        self, sha256: str, size_bytes: int, sources: Sequence[str], *, pace: Pace | None = None
    ) -> None:
        """A whole replica lies here, verified and durable, when this returns.

        `sources`: nodes that may have it, the best first; this one is left out. `pace` is awaited for each
        piece that comes; a fetch that several share has none as soon as one of them has none. Raises
        Unavailable when no source can give it (what has come is kept for the next time),
        InsufficientStorage, Internal.
        """
        blob = FinishedBlob(sha256, size_bytes)
        others = [node_id for node_id in dict.fromkeys(sources) if node_id != self._node_id][:SOURCES_MAX]
        for _ in range(JOINS_MAX):
            joined = self._running.get(blob)
            if joined is None:
                break
            try:
                await self._share(joined, pace)
                return
            except Unavailable as failure:  # of the sources of whoever began it
                _log.info("a fetch that was joined failed", extra={"sha256": sha256, "reason": str(failure)})
        await self._share(self._running.get(blob) or self._begin(blob, others, pace), pace)

    async def clean(self) -> None:
        """Remove what fetches left here that nobody has gone on with for a day. Raises OSError."""
        removed = await self._means.disk.run(self._partials.clean)
        if removed:
            _log.info("removed partial replicas", extra={"count": removed})

    async def close(self) -> None:
        """End every fetch; what is verified stays for the next start."""
        tasks = [fetch.task for fetch in self._running.values() if fetch.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._partials.close()

    def _begin(self, blob: FinishedBlob, sources: Sequence[str], pace: Pace | None) -> _Fetch:
        if len(self._running) >= FETCHES_MAX + WAITING_MAX:
            raise Unavailable("Too many blobs are being fetched already.", retry_after_s=2)
        fetch = self._running[blob] = _Fetch(pace)
        fetch.task = asyncio.create_task(self._run(blob, sources, fetch), name="fetch")
        return fetch

    async def _share(self, fetch: _Fetch, pace: Pace | None) -> None:
        """Wait for a fetch with others; the last one who goes away ends it."""
        assert fetch.task is not None
        fetch.pace = fetch.pace and pace
        fetch.callers += 1
        try:
            await asyncio.shield(fetch.task)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if fetch.task.cancelled() and caller is not None and not caller.cancelling():
                raise Unavailable("The fetch was ended; this node may be stopping.") from None
            if fetch.callers == 1:
                fetch.task.cancel()
                await asyncio.wait({fetch.task})
            raise
        finally:
            fetch.callers -= 1

    async def _run(self, blob: FinishedBlob, sources: Sequence[str], fetch: _Fetch) -> None:
        try:
            async with self._turns:
                await self._bring(blob, sources, fetch)
        finally:
            del self._running[blob]

    async def _bring(self, blob: FinishedBlob, sources: Sequence[str], fetch: _Fetch) -> None:
        """The blob from the first party that can give it."""
        if await self._is_here(blob):
            return
        if blob.size_bytes > await self._means.disk.run(self._blobs.total_bytes):
            raise InsufficientStorage(
                "This node has no room for the replica."
            )  # nor memory for its checksums
        failure = Unavailable("No node that was named has this blob.", retry_after_s=2)
        for sums, party in await self._parties(blob, sources):
            try:
                await self._attempt(blob, sums, party, fetch)
                return
            except Unavailable as error:
                failure = error
            except ChecksumMismatch as error:
                facts = {"sha256": blob.sha256, "peers": party, "reason": error.details}
                _log.error("a blob that came was thrown away", extra=facts)
                failure = Unavailable("What came is not the blob.", retry_after_s=2)
        raise failure

    async def _is_here(self, blob: FinishedBlob) -> bool:
        means = self._means
        try:
            found_bytes = await verify_blob(means.disk, self._blobs, means.metrics, blob.sha256)
            return found_bytes == blob.size_bytes and await means.disk.run(self._blobs.affirm, blob.sha256)
        except (BlobMissing, BlobDamaged):
            return False

    async def _attempt(
        self, blob: FinishedBlob, sums: SegmentSums, party: Sequence[str], fetch: _Fetch
    ) -> None:
        """Raises ChecksumMismatch, InsufficientStorage or Internal when nothing can be kept; Unavailable."""
        run = self._means.disk.run
        partial: Partial = await self._means.disk.open(self._partials.open, blob, sums)
        try:
            hasher = await gather(self._means, partial, party, fetch.keep_pace)
            await run(partial.install, hasher)
        except (ChecksumMismatch, InsufficientStorage, Internal):
            await run(partial.discard)
            raise
        finally:
            await run(partial.close)

    async def _parties(
        self, blob: FinishedBlob, sources: Sequence[str]
    ) -> list[tuple[SegmentSums, list[str]]]:
        """Nodes that tell the same checksums, the largest party first; in each, in the order given."""
        answers = await asyncio.gather(*(self._sums(blob, source) for source in sources))
        parties: dict[SegmentSums, list[str]] = {}
        for source, sums in zip(sources, answers, strict=True):
            if sums is not None:
                parties.setdefault(sums, []).append(source)
        return sorted(parties.items(), key=lambda party: -len(party[1]))

    async def _sums(self, blob: FinishedBlob, source: str) -> SegmentSums | None:
        """What a node says of its replica's segments; None when it has none, or cannot say."""
        try:
            async with asyncio.timeout(SUMS_S_MAX):
                return await self._ask_sums(blob, source)
        except (PeerFailed, SidecarInvalid, TimeoutError) as failure:
            facts = {"sha256": blob.sha256, "peer": source, "reason": str(failure)}
            _log.warning("a source has no checksums", extra=facts)
            return None

    async def _ask_sums(self, blob: FinishedBlob, source: str) -> SegmentSums:
        asked = self._means.peers.request(
            source, "GET", f"/blobs/{blob.sha256}/sums", answer_timeout_s=SUMS_TIMEOUT_S
        )
        async with asked as answer:
            if answer.status != 200 or answer.content_length != sidecar_bytes(blob.size_bytes):
                raise PeerFailed(source, f"answered {answer.status}")
            raw = b"".join([piece async for piece in pieces(source, answer)])
            return decode_sidecar(raw, blob.size_bytes)
