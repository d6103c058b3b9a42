"""Which replicas of this node turn cold, and which hot again; and the chunks that nothing needs any more.

The leader orders a pass of `freeze` at the interval of the job's schedule, and one of `thaw` when an admin
runs that job. The log says of each replica what its buckets want (`ListReplicaStorage`); this
node knows when it was read. Passes, and the collection of chunks, run one at a time.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

from ca.errors import FilestoreError
from metadata.model.replica_records import ReplicaStorage, StoragePage
from metadata.model.rules import REPLICAS_TURN_COLD, require
from metadata.protocol.queries import ListReplicaStorage
from node.cold.chunks import ChunkMissing
from node.cold.collection import CollectedChunks, DraftsChanged, collect
from node.custody.chunk_repair import ChunkRepair
from node.custody.context import PAGE_BLOBS, CustodyContext, Pass
from node.custody.freezing import NotFrozen, freeze, thaw
from node.custody.packing import Packing
from node.diskio.fs import DiskFull, storage_errors
from node.packs.store import BLOB_BYTES_MAX
from node.storage.cold_blobs import ProofFailed
from node.storage.damage import remove_from_service
from node.storage.pins import finished_blobs
from node.storage.segments import BlobDamaged, BlobMissing

COLLECT_S: Final = 600.0  # between two collections, if there may be something to collect
LOOK_S: Final = 30.0
REPAIRS_MAX: Final = 50  # pages of damaged chunks, one after the other: then the rest has a turn
OFTEN_HOURS: Final = 3  # a cold blob that was read in this many hours of WEEK_HOURS becomes hot
WEEK_HOURS: Final = 7 * 24
READS: Final = "reads"  # an area of `UnusablePaths`
FREEZES: Final = "freeze"

_log = logging.getLogger(__name__)


class ColdSizes(NamedTuple):
    """The bytes of cold replicas: of their content, and of their chunks."""

    content_bytes: int = 0
    stored_bytes: int = 0


class ColdStorage:
    """The cold replicas of one node. `marks` notes in the data directory whether it may have some."""

    def __init__(self, context: CustodyContext, repair: ChunkRepair, marks: Callable[[bool], None]) -> None:
        self._context, self._repair, self._marks = context, repair, marks
        self._turn = asyncio.Lock()
        self._marking = asyncio.Lock()  # from what `marks` notes until that is so
        self._packing = Packing(context, lambda: context.blobs.cold.chunks.packs, context.metrics.chunks)
        self._collected: object = None  # the state of the manifests before the last collection
        self._measured: object = None  # the same for `sizes`
        self._collected_at_s = float("-inf")
        self._first_at_s: float | None = None  # for the first collection: what an earlier process has left
        self.sizes = ColdSizes()

    async def freeze(self, run: Pass) -> None:
        """Give every replica the form that its buckets want.

        Counts looked; done, bytes (turned cold) and stored_bytes (of new chunks); thawed; failed (tried again
        by the next pass). Raises Superseded, FilestoreError, OSError.
        """
        context = self._context
        require(REPLICAS_TURN_COLD, context.metadata.rules_in_force)
        self._first_at_s = 0.0
        run.add(looked=0, done=0, bytes=0, stored_bytes=0, thawed=0, failed=0)
        reads = await context.disk.run(context.blobs.reads.all)
        cold = frozenset(await context.disk.run(self._cold_names))
        after, more = "", True
        while more:
            query = ListReplicaStorage(
                node_id=context.node_id, size_bytes_min=BLOB_BYTES_MAX, after=after, limit=PAGE_BLOBS
            )
            page = await context.metadata.read(query, StoragePage)
            finished = await context.disk.run(finished_blobs, context.blobs)
            for replica in page.replicas:
                run.require_current()
                run.add(looked=1)
                if replica.sha256 not in finished:
                    has_manifest, hours = replica.sha256 in cold, reads.get(replica.sha256, [])
                    await self._settle(replica, hours, run, has_manifest=has_manifest)
            after, more = page.last, page.more

    async def thaw(self, run: Pass) -> None:
        """Make every cold replica hot. Counts looked, done, bytes, failed. Raises FilestoreError, OSError."""
        context, self._first_at_s = self._context, 0.0
        run.add(looked=0, done=0, bytes=0, failed=0)
        for sha256 in await context.disk.run(self._cold_names):
            run.add(looked=1)
            await self._thaw(sha256, run, "done")
        async with self._turn, self._marking:
            if not run.counts["failed"] and not await context.disk.run(self._cold_names):
                await context.disk.run(self._marks, False)

    @asynccontextmanager
    async def mark_for_placing(self) -> AsyncIterator[None]:
        """Enter this around the placing of a manifest that was fetched, which waits for no freeze.

        The data directory says before that it may have some. Raises FilestoreError.
        """
        async with self._marking:
            with storage_errors():
                await self._context.disk.run(self._marks, True)
            yield

    async def do_due(self) -> None:
        """Repair damaged chunks, and collect those that nothing needs. Raises FilestoreError, OSError."""
        cold, run = self._context.blobs.cold, self._context.disk.run
        if not await run(cold.chunks.exists):
            return
        for _ in range(REPAIRS_MAX):
            if not await self._repair.repair_noted():
                break
        state, now_s = await run(cold.manifests.state), asyncio.get_running_loop().time()
        if self._first_at_s is None:  # until then a fetch that a crash has ended may use its chunks
            self._first_at_s = now_s + COLLECT_S
        is_due = state != self._collected and now_s >= self._first_at_s
        if is_due and now_s - self._collected_at_s >= COLLECT_S:
            await self.collect()
        await self._packing.do_due()
        if state != self._measured:
            self.sizes, self._measured = await run(self._measure), state

    async def collect(self) -> CollectedChunks:
        """Delete the chunks that nothing needs. Raises FilestoreError, OSError."""
        context = self._context
        async with self._turn:
            state = await context.disk.run(context.blobs.cold.manifests.state)
            try:
                with storage_errors():
                    found = await context.disk.run_long(
                        collect, context.blobs.cold.chunks, context.blobs.cold.manifests
                    )
            except DraftsChanged:
                return CollectedChunks()
        self._collected, self._collected_at_s = state, asyncio.get_running_loop().time()
        context.metrics.chunks_collected.inc(found.removed)
        for chunk_id in found.missing:
            await context.disk.run(context.blobs.cold.note_damaged, chunk_id)
        for sha256 in found.damaged:
            with context.blobs.poison.skipping(READS, sha256):
                await self._open_damaged(sha256)
        if found.removed:
            _log.info("deleted chunks that no replica needs", extra={"count": found.removed})
        return found

    async def _settle(
        self, replica: ReplicaStorage, hours: Sequence[int], run: Pass, *, has_manifest: bool
    ) -> None:
        """Give one replica its form. `hours`: when it was read."""
        context, now_h = self._context, self._context.clock_s() // 3600
        is_often_read = sum(now_h - hour < WEEK_HOURS for hour in hours) >= OFTEN_HOURS
        if has_manifest and (replica.hot or is_often_read):
            await self._thaw(replica.sha256, run, "thawed")
            return
        if has_manifest and await context.disk.run(self._is_cold, replica.sha256):
            return
        at_ms, read_at_ms = context.kept_s() * 1000, (hours[-1] + 1) * 3_600_000 if hours else 0
        is_idle = not replica.idle_ms or at_ms - read_at_ms >= replica.idle_ms
        if not replica.hot and not is_often_read and is_idle and at_ms >= replica.cold_at_ms:
            await self._freeze(replica.sha256, run)

    async def _freeze(self, sha256: str, run: Pass) -> None:
        context = self._context
        async with self._turn:
            async with self._marking:
                await context.disk.run(self._marks, True)
            try:
                with context.blobs.poison.skipping(FREEZES, sha256):
                    if await self._frozen(sha256, run):
                        return
            except BlobMissing:
                return  # it is packed, or was deleted meanwhile
            except BlobDamaged as damage:
                await remove_from_service(context.disk, context.blobs, context.metrics, damage)
            run.add(failed=1)

    async def _frozen(self, sha256: str, run: Pass) -> bool:
        """Turn a replica cold; return whether it was possible. Raises as `freeze` does."""
        context = self._context
        try:
            frozen = await freeze(context.disk, context.blobs, sha256, pace=context.budget.take)
        except (NotFrozen, ProofFailed, ChunkMissing, DiskFull) as reason:
            _log.info("a replica stays hot", extra={"sha256": sha256, "reason": str(reason)})
            return False
        run.add(done=1, bytes=frozen.size_bytes, stored_bytes=frozen.stored_bytes)
        context.metrics.frozen_bytes.inc(frozen.size_bytes)
        return True

    async def _thaw(self, sha256: str, run: Pass, count: str) -> None:
        context = self._context
        async with self._turn:
            try:
                size_bytes = await thaw(context.disk, context.blobs, sha256, pace=context.budget.take)
                run.add(**{count: 1})
                run.add(bytes=size_bytes if count == "done" else 0)
                return
            except BlobMissing:
                return
            except BlobDamaged as damage:
                await remove_from_service(context.disk, context.blobs, context.metrics, damage)
            except DiskFull as error:
                _log.warning("a replica stays cold", extra={"sha256": sha256, "reason": error.details})
            run.add(failed=1)

    async def _open_damaged(self, sha256: str) -> None:
        context = self._context
        try:
            (await context.disk.open(context.blobs.open, sha256)).close()
        except BlobDamaged as damage:
            await remove_from_service(context.disk, context.blobs, context.metrics, damage)
        except (BlobMissing, FilestoreError):
            return

    def _is_cold(self, sha256: str) -> bool:
        """Whether a replica is cold and nothing else. Blocks."""
        blobs = self._context.blobs
        return blobs.cold.has_name(sha256) and not blobs.has_file(sha256)

    def _cold_names(self) -> Sequence[str]:
        return list(self._context.blobs.cold.manifests.names())

    def _measure(self) -> ColdSizes:
        """Measure the cold replicas, and show that in metrics."""
        cold, metrics = self._context.blobs.cold, self._context.metrics
        sizes = [cold.content_bytes(sha256) for sha256 in cold.manifests.names()]
        metrics.cold_replicas.set(len(sizes))
        metrics.cold_bytes.set(sum(sizes))
        return ColdSizes(sum(sizes), cold.chunks.totals()[1])
