"""Custody: the node's own work on the replicas that it holds. The log decides, the node acts.

Only the first process of a node does this. It reports damaged or missing replicas each second, deletes those
that the log has marked for deletion each minute, and compares the disk with the log every few hours; the
latter two also when the leading coordinator orders them (`node/custody/orders.py`), as it orders which
replicas turn cold (`node/custody/cold_storage.py`). Each is a separate loop,
as is reading everything to find damage (`node/custody/scrub.py`), so that none waits for the reads of
another. The reports of a node to the log are nevertheless sent in order (`node/custody/reporter.py`).

A pass that would remove a large part of the node's blobs at once stops and reports that: an operator decides.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

from node.custody.chunk_repair import ChunkRepair
from node.custody.cold_storage import LOOK_S as CHUNKS_S
from node.custody.cold_storage import ColdStorage
from node.custody.collect import Dropping
from node.custody.compare import Comparison
from node.custody.context import CustodyContext, Pass
from node.custody.damaged_copies import DamagedCopies
from node.custody.loss_repair import LossRepair
from node.custody.orphans import Orphans
from node.custody.packing import LOOK_S as PACKS_S
from node.custody.packing import Packing
from node.custody.periodic import PeriodicWork, custody_work
from node.custody.reporter import Reporter
from node.custody.scrub import Scrubber
from node.peer.client import PeerClient
from runtime.background import run_all

COLLECT_S: Final = 60.0
COMPARE_S: Final = 6 * 3600.0


class Custody:
    """The replicas of one node. `run`, `scrubber.run` and `orphans.run` keep them until cancelled."""

    def __init__(
        self,
        context: CustodyContext,
        state: Path,
        peers: PeerClient,
        marks_cold: Callable[[bool], None] = lambda _may_be: None,
    ) -> None:
        """`state`: the file with the progress of scrubbing. `marks_cold`: see `ColdStorage`."""
        self._context = context
        self._reporter = Reporter(context.node_id, context.metadata)
        self._copies = DamagedCopies(context, self._reporter)
        self._losses = LossRepair(context, self._reporter, self._copies)
        self._dropping = Dropping(context, self._reporter)
        self._comparison = Comparison(context, self._reporter, self._losses)
        self.scrubber = Scrubber(context, self._losses, state)
        self.orphans = Orphans(context)
        self.packing = Packing(context, lambda: context.blobs.packed.store, context.metrics.packs)
        self.cold = ColdStorage(context, ChunkRepair(context, peers), marks_cold)
        stops = context.metrics.custody_stops
        self.works = (
            PeriodicWork("compare", self.compare, COMPARE_S, stops),
            PeriodicWork("collect", self.collect, COLLECT_S, stops),
            PeriodicWork("freeze", self.cold.freeze, None, stops),
            PeriodicWork("thaw", self.cold.thaw, None, stops),
        )
        self.orders = {work.kind: work.orders for work in self.works} | {"scrub": self.scrubber.orders}

    async def run(self) -> None:
        """Keep them for ever."""
        context = self._context
        await context.view.wait_until_fresh()
        stops = context.metrics.custody_stops
        beside = (
            custody_work("custody", self.settle_losses, stops),
            custody_work("copies", self._copies.report_new, stops),
            custody_work("packs", self.packing.do_due, stops, every_s=PACKS_S),
            custody_work("chunks", self.cold.do_due, stops, every_s=CHUNKS_S),
        )
        try:
            await run_all(*beside, *(work.background for work in self.works))
        finally:
            await self.close()

    async def close(self) -> None:
        """Stop the background reads."""
        await self._losses.close()
        await self._dropping.close()

    async def settle_losses(self) -> None:
        """Put back or report what processes of this node have missed. Raises FilestoreError."""
        self._context.budget.observe(asyncio.get_running_loop().time())
        self._context.metrics.custody_rate.set(self._context.budget.rate)
        await self._losses.settle_notes()

    async def restore(self, sha256: str, moved: Callable[[int], None]) -> bool:
        """Restore a blob from quarantine; False if it is missing or damaged. Raises FilestoreError.

        `moved` is called for each piece that was read.
        """
        return await self._losses.restore(sha256, moved=moved)

    async def retain(self, sha256: str) -> bool:
        """Keep what is marked for deletion, if it is here; whether it is here, and is not marked any more.

        Raises FilestoreError, OSError.
        """
        return await self._dropping.retain(sha256)

    async def collect(self, run: Pass) -> None:
        """Delete what is marked for deletion. Raises Stopped, FilestoreError, OSError."""
        await self._dropping.drop_marked(run)

    async def compare(self, run: Pass) -> None:
        """Hold the disk against the log. Raises Stopped, Superseded, FilestoreError, OSError."""
        await self._comparison.compare(run)
