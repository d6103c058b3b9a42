"""Trim blobs that have more replicas than wanted.

There are such blobs after a node came back, or after the same content was uploaded again.

Each upload makes its own replicas, on its own nodes, as its acknowledgement relies on them. So there may be
as many as there are nodes, and surplus ones are deleted afterwards. A replica is only released by a command
that fails while too few others count, and after the others were asked (`release` of a drain). A node deletes
only a limited part at once without an operator's answer, so each node releases a few, and deletes them before
it releases more.
"""

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from coordinator.reconcile.context import ReconcileContext
from coordinator.reconcile.drain import RELEASED_MAX, delete_marked, release
from coordinator.reconcile.facts import Facts
from coordinator.reconcile.job_runs import StepProgress
from metadata.model.records import BlobRecord
from metadata.model.replica_records import DeletionPage, SurplusPage
from metadata.protocol.queries import ListReplicasToDelete, ListSurplus

PAGE_ROWS: Final = 1000  # blobs per page: 3 ms of the leader
REST_S: Final = 0.02  # after each page: most of the leader's time for others
BLOBS_AT_ONCE: Final = 8
TRIED_S: Final = 660.0  # longer than a node keeps a blob that just arrived (node/storage/pins.py)
TRIED_MAX: Final = 100_000  # remembered blobs; further ones may be tried in vain
FULL_SHARE: Final = 1.0  # of a node without free space, independent of its disk's report


def count_surplus(blob: BlobRecord, facts: Facts) -> int:
    """Return how many replicas of a blob can go: those that count, beyond the wanted number."""
    return max(len(facts.counting_holders(blob.replicas)) - facts.wanted, 0)


def rank_surplus(blob: BlobRecord, facts: Facts, freed_bytes: Mapping[str, int] | None = None) -> list[str]:
    """Return the nodes that can release their replica of a blob, the best candidates first.

    The first are in the zone with most of them; among these, the node whose disk is fullest after it has
    deleted `freed_bytes`. The rest stays in as many zones as possible.
    """
    freed = freed_bytes or {}
    left, ranked = facts.counting_holders(blob.replicas), list[str]()
    used = {
        c.node_id: 1 - (c.free_bytes + freed.get(c.node_id, 0)) / c.total_bytes
        for c in facts.candidates
        if c.total_bytes
    }
    while left:
        crowd = Counter(facts.zone(node_id) for node_id in left)
        key = {node_id: (crowd[facts.zone(node_id)], used.get(node_id, FULL_SHARE)) for node_id in left}
        going = max(left, key=lambda node_id: (*key[node_id], node_id))
        left.remove(going)
        ranked.append(going)
    return ranked


class Trimmer:
    """The runs of one coordinator, and the time of the next one.

    For ten minutes, a node spares blobs that a process was just told of: a scheduled run does not retry a
    blob before.
    """

    def __init__(self, *, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._after = ""  # the last examined blob
        self._tried_at_s: OrderedDict[str, float] = OrderedDict()

    def is_due(self, context: ReconcileContext) -> bool:
        """Return whether the next blobs have replicas that can go.

        If not, the next call examines those behind them, and after the last ones the first.
        """
        page = context.ask_applied(ListSurplus(after=self._after, limit=PAGE_ROWS), SurplusPage)
        facts = context.facts()
        if any(count_surplus(blob, facts) and not self._is_tried(blob) for blob in page.blobs):
            return True
        self._after = page.after if page.more else ""
        return False

    async def trim(self, context: ReconcileContext, progress: StepProgress) -> None:
        """Do one pass over all blobs.

        The result: looked_at: blobs with too many replicas; released, spared; unconfirmed as of `drain`;
        left: blobs that still have too many, since others are missing, or nodes do not delete released
        replicas.
        """
        progress.result["left"] = 0
        run = _Trimming(context, progress)
        for page in _pages(context):
            async with asyncio.TaskGroup() as group:
                for blob in page:
                    if not (progress.is_scheduled and self._is_tried(blob)):
                        await run.begin(group, blob)
                        self._note_tried(blob)
            if page:
                await progress.note()
            await asyncio.sleep(REST_S)
        await run.end()

    def _is_tried(self, blob: BlobRecord) -> bool:
        return self._clock_s() - self._tried_at_s.get(blob.sha256, float("-inf")) < TRIED_S

    def _note_tried(self, blob: BlobRecord) -> None:
        self._tried_at_s.pop(blob.sha256, None)
        self._tried_at_s[blob.sha256] = self._clock_s()
        while len(self._tried_at_s) > TRIED_MAX:
            self._tried_at_s.popitem(last=False)


class _Trimming:
    """One run."""

    def __init__(self, context: ReconcileContext, progress: StepProgress) -> None:
        self._context, self._progress = context, progress
        self._turns = asyncio.Semaphore(BLOBS_AT_ONCE)
        self._dropping: dict[str, asyncio.Lock] = {}  # by node, like the following
        self._released: dict[str, int] = {}  # since its last deletion
        self._freed_bytes: Counter[str] = Counter()
        self._slow_to_drop: set[str] = set()  # does not delete released replicas

    async def begin(self, group: asyncio.TaskGroup, blob: BlobRecord) -> None:
        """Start when it is its turn."""
        await self._turns.acquire()
        task = group.create_task(self._trim(blob))
        task.add_done_callback(lambda _: self._turns.release())

    async def end(self) -> None:
        """Make the nodes delete the last released replicas."""
        waiting = [node_id for node_id, count in self._released.items() if count]
        await asyncio.gather(*(delete_marked(self._context, self._progress, name) for name in waiting))

    async def _trim(self, blob: BlobRecord) -> None:
        facts = self._context.facts()
        surplus = count_surplus(blob, facts)
        if not surplus:
            return
        self._progress.add(looked_at=1)
        for node_id in rank_surplus(blob, facts, self._freed_bytes):
            if not await self._may_release(node_id):
                continue
            if await release(self._context, self._progress, blob.sha256, node_id):
                self._released[node_id] += 1
                self._freed_bytes[node_id] += blob.size_bytes
                surplus -= 1
                if not surplus:
                    return
        self._progress.add(left=1)

    async def _may_release(self, node_id: str) -> bool:
        """Return whether the node deletes its released replicas; it must before the first of a round."""
        async with self._dropping.setdefault(node_id, asyncio.Lock()):
            if node_id in self._slow_to_drop:
                return False
            if node_id not in self._released:
                page = await self._context.ask(ListReplicasToDelete(node_id=node_id, limit=1), DeletionPage)
                self._released[node_id] = RELEASED_MAX if page.replicas else 0
            if self._released[node_id] >= RELEASED_MAX:
                self._released[node_id] = 0
                if not await delete_marked(self._context, self._progress, node_id):
                    self._slow_to_drop.add(node_id)
                    return False
            return True


def _pages(context: ReconcileContext) -> Iterator[list[BlobRecord]]:
    """Yield blobs with too many replicas in the applied state: the log decides again."""
    after, more = "", True
    while more:
        page = context.ask_applied(ListSurplus(after=after, limit=PAGE_ROWS), SurplusPage)
        yield page.blobs
        after, more = page.after, page.more
