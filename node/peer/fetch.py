"""Fetch whole blobs from other nodes, by ranges from several of them at once.

The ranges come from `node/peer/range_fetch.py`.

Each node that has the blob is asked for the checksums of its segments first. Nodes with equal checksums form
a party, and segments are verified against the checksums of the largest party. The checksums themselves are
proved by the sha256 of the whole, before the blob is put into place. Verified segments survive a crash of
this node (`node/storage/partial_store.py`), so the next fetch of the blob continues there. Intact segments of
a damaged copy here are not fetched at all. If no node has a complete replica, damaged copies of others are
sources too (`node/peer/salvage.py`).

`node/peer/pulls.py` makes sure that a blob is fetched only once at a time.

No fetch waits for the slowest part: small blobs have their own turns, separate from large ones that take
hours, and sources that send their checksums much later than another are left out.

Tested by tests/unit/node/peer/test_blob_fetching.py.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from ca.errors import ChecksumMismatch, InsufficientStorage, Internal
from node.base.metrics import NodeMetrics
from node.diskio.executor import DiskWorkers
from node.peer.client import PeerClient
from node.peer.range_fetch import RANGE_SEGMENTS, Fetch, FetchContext, Pace, SourcesFailed, gather
from node.peer.salvage import Party, Salvager, ask_sums, fill, group_answers
from node.storage.blobs import BlobStore
from node.storage.damage import affirm_sound
from node.storage.partial_blob import Partial
from node.storage.partial_store import PartialStore
from node.storage.segments import (
    SEGMENT_BYTES,
    FinishedBlob,
    SegmentHasher,
    SegmentSums,
)
from runtime.lifetime import end_tasks

FETCHES_MAX = 2  # at once: with RANGES_AT_ONCE each, half of the disk's threads
SMALL_BYTES = RANGE_SEGMENTS * SEGMENT_BYTES  # one range: such a fetch takes one thread
SMALL_MAX = 2  # of small ones at once, in addition to FETCHES_MAX larger ones
SOURCES_MAX = 16  # that are asked; more would not be faster
SUMS_GRACE_S = 1.0  # after the first answer: a source that takes longer is left out of this fetch

_log = logging.getLogger(__name__)


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
        self._context = FetchContext(peers, disk, metrics)
        self._salvager = Salvager(node_id, blobs, peers, disk, metrics)
        self._turns = asyncio.Semaphore(FETCHES_MAX)
        self._small_turns = asyncio.Semaphore(SMALL_MAX)

    async def fetch_blob(
        self,
        sha256: str,
        size_bytes: int,
        sources: Sequence[str],
        *,
        pace: Pace | None = None,
        moved: Callable[[int], None] = lambda _bytes: None,
    ) -> list[str]:
        """A whole replica lies here, verified and durable, when this returns.

        Returns the sources that failed on the way.

        `sources`: nodes that may have it, the best first; this one is left out. `pace` is awaited for each
        piece that comes. `moved` is called with 0 when its turn has come, then with the bytes that were read,
        received or hashed. Raises SourcesFailed when no source can give it (what has come is kept for the
        next time), Unavailable for another reason here, InsufficientStorage, Internal.
        """
        blob = FinishedBlob(sha256, size_bytes)
        others = [node_id for node_id in dict.fromkeys(sources) if node_id != self._node_id][:SOURCES_MAX]
        fetch = Fetch(pace, moved)
        async with self._small_turns if size_bytes <= SMALL_BYTES else self._turns:
            moved(0)
            await self._bring(blob, others, fetch)
        return sorted(fetch.failed)

    async def clean(self) -> None:
        """Remove partial blobs that were not continued for a day."""
        removed = await self._context.disk.run(self._partials.clean)
        if removed:
            _log.info("removed partial replicas", extra={"count": removed})

    async def _bring(self, blob: FinishedBlob, sources: Sequence[str], fetch: Fetch) -> None:
        """The blob from the first party that can give it."""
        context = self._context
        if blob.size_bytes == await affirm_sound(
            context.disk, self._blobs, context.metrics, blob.sha256, pace=fetch.count
        ):
            return
        if blob.size_bytes > await context.disk.run(self._blobs.total_bytes):
            raise InsufficientStorage(
                "This node has no room for the replica."
            )  # nor memory for its checksums
        failure = SourcesFailed("None of the given nodes has this blob.", sources)
        whole = await self._parties(blob, sources, fetch)
        for sums, party in whole or await self._damaged_parties(blob, sources, fetch):
            try:
                await self._attempt(blob, sums, party if whole else [], sources, fetch)
                return
            except SourcesFailed as error:
                failure = error
            except ChecksumMismatch as error:
                facts = {"sha256": blob.sha256, "peers": party, "reason": error.details}
                _log.error("a received blob was discarded", extra=facts)
                failure = SourcesFailed("The received content differs from the blob.", party)
        raise failure

    async def _attempt(
        self,
        blob: FinishedBlob,
        sums: SegmentSums,
        party: Sequence[str],
        sources: Sequence[str],
        fetch: Fetch,
    ) -> None:
        """`party`: those who hold it whole, of all `sources`.

        Raises ChecksumMismatch, InsufficientStorage or Internal when nothing can be kept; SourcesFailed,
        Unavailable.
        """
        run = self._context.disk.run
        partial: Partial = await self._context.disk.open(self._partials.open, blob, sums)
        try:
            hasher = await self._gathered(partial, party, sources, fetch)
            await run(partial.install, hasher)
        except (ChecksumMismatch, InsufficientStorage, Internal):
            await run(partial.discard)
            raise
        finally:
            await run(partial.close)

    async def _gathered(
        self, partial: Partial, party: Sequence[str], sources: Sequence[str], fetch: Fetch
    ) -> SegmentHasher:
        """Collect a blob from the partial copy here, from complete replicas, and from damaged copies.

        Raises SourcesFailed if some of it is unavailable, InsufficientStorage, Internal.
        """
        disk = self._context.disk
        own = self._salvager.copies(partial.blob, partial.sums, [self._node_id])
        await fill(disk, partial, own, fetch.count)
        if party:
            try:
                return await gather(self._context, partial, party, fetch)
            except SourcesFailed as failure:
                facts = {"sha256": partial.blob.sha256, "reason": failure.details}
                _log.info("no node with a complete replica can send all of it", extra=facts)
        others = self._salvager.copies(partial.blob, partial.sums, sources)
        await fill(disk, partial, others, fetch.keep_pace)
        if lacking := partial.missing_segments():
            count = sum(stop - first for first, stop in lacking)
            raise SourcesFailed(f"{count} segments of this blob are in no copy that can be reached.", sources)
        # no other node is asked: it is hashed
        return await gather(self._context, partial, [self._node_id], fetch)

    async def _damaged_parties(self, blob: FinishedBlob, sources: Sequence[str], fetch: Fetch) -> list[Party]:
        """Return the groups of damaged copies, including the one here. Being incomplete is no failure."""
        parties = await self._salvager.group_sources(blob, [self._node_id, *sources])
        fetch.failed.difference_update(source for _, party in parties for source in party)
        return parties

    async def _parties(self, blob: FinishedBlob, sources: Sequence[str], fetch: Fetch) -> list[Party]:
        """Nodes that tell the same checksums, the largest party first; in each, in the order given."""
        answers = await self._answers(blob, sources)
        fetch.failed.update(source for source in sources if answers.get(source) is None)
        return group_answers((source, answers.get(source)) for source in sources)

    async def _answers(self, blob: FinishedBlob, sources: Sequence[str]) -> dict[str, SegmentSums | None]:
        """Return each node's answer, without nodes that answer SUMS_GRACE_S later than the first one."""
        path, peers = f"/blobs/{blob.sha256}/sums", self._context.peers
        asked = {
            asyncio.create_task(ask_sums(peers, source, path, blob, log_level=logging.WARNING)): source
            for source in sources
        }
        loop, until_s, pending = asyncio.get_running_loop(), None, set(asked)
        try:
            while pending and (until_s is None or until_s > loop.time()):
                left_s = None if until_s is None else until_s - loop.time()
                done, pending = await asyncio.wait(
                    pending, timeout=left_s, return_when=asyncio.FIRST_COMPLETED
                )
                if until_s is None and any(task.result() is not None for task in done):
                    until_s = loop.time() + SUMS_GRACE_S
        finally:
            await end_tasks(pending)
        return {source: task.result() for task, source in asked.items() if task not in pending}
