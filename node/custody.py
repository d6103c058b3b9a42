"""Custody: what one node does by itself about the replicas that it holds. The log decides, the node acts.

One process of a node, the first, keeps them: it reports what was found damaged or missing each second, drops
what the log has doomed each minute, and holds the disk against the log every few hours; all of it also when
the leading coordinator says so (`node/orders.py`). One thing is done after the other. Reading everything for
damage goes on beside it (`node/scrub.py`).

A pass that would give up a large part of the node's blobs at once stops and says so: an operator goes on.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from ca.errors import FilestoreError, Unavailable
from node.comparing import Comparison
from node.dropping import drop_doomed
from node.keeping import Means, Pass, Stopped
from node.losses import Losses
from node.orders import Bell, Order, Orders
from node.reporting import Reporter
from node.scrub import Scrubber

LOOK_S: Final = 1.0
COLLECT_S: Final = 60.0
COMPARE_S: Final = 6 * 3600.0
TROUBLE_S: Final = 5.0  # before it goes on when the log or the disk refuses

_log = logging.getLogger(__name__)


class Custody:
    """The replicas of one node. `run` and `scrubber.run` keep them until they are cancelled."""

    def __init__(self, means: Means, state: Path) -> None:
        """`state`: the file that tells how far scrubbing has come."""
        self._means = means
        self._bell = Bell()
        self._reporter = Reporter(means.node_id, means.metadata)
        self._losses = Losses(means, self._reporter)
        self._comparison = Comparison(means, self._reporter, self._losses)
        self.scrubber = Scrubber(means, self._losses, state)
        self._collects, self._compares = Orders(self._bell.ring), Orders(self._bell.ring)
        self.orders = {
            "collect": self._collects,
            "compare": self._compares,
            "scrub": self.scrubber.orders,
        }
        self._collect_at_s = self._compare_at_s = float("-inf")

    async def run(self) -> None:
        """Keep them for ever."""
        await self._means.view.wait_until_fresh()
        while True:
            try:
                await self.look()
            except (FilestoreError, OSError) as error:
                _log.warning("custody was broken off", extra={"reason": str(error)})
                self._means.metrics.custody_stops.note_trouble("custody", error)
                await asyncio.sleep(TROUBLE_S)
            else:
                self._means.metrics.custody_stops.note_trouble("custody", None)
            await self._bell.wait(LOOK_S)

    async def look(self) -> None:
        """All that is to be done now. Raises FilestoreError, OSError: then it is tried again."""
        now_s = asyncio.get_running_loop().time()
        self._means.budget.look(now_s)
        self._means.metrics.custody_rate.set(self._means.budget.rate)
        await self._losses.settle_notes()
        await self._carry_out("compare", self._compares, self.compare)
        await self._carry_out("collect", self._collects, self.collect)
        if now_s - self._compare_at_s >= COMPARE_S:
            await self._by_itself("compare", self.compare)
            self._compare_at_s = now_s
        if now_s - self._collect_at_s >= COLLECT_S:
            await self._by_itself("collect", self.collect)
            self._collect_at_s = now_s

    async def restore(self, sha256: str, *, moved: Callable[[int], None] | None = None) -> bool:
        """Put a blob back from quarantine; False if it is not there or not sound. Raises FilestoreError.

        `moved` is told of each piece that was read.
        """
        return await self._losses.restore(sha256, moved=moved)

    async def collect(self, run: Pass) -> None:
        """Drop what is doomed. Raises Stopped, FilestoreError, OSError."""
        await drop_doomed(self._means, self._reporter, run)

    async def compare(self, run: Pass) -> None:
        """Hold the disk against the log. Raises Stopped, FilestoreError, OSError."""
        await self._comparison.compare(run)

    async def _carry_out(self, kind: str, orders: Orders, work: Callable[[Pass], Awaitable[None]]) -> None:
        while (order := orders.next()) is not None:
            await self._carry_out_one(kind, order, work)

    async def _carry_out_one(self, kind: str, order: Order, work: Callable[[Pass], Awaitable[None]]) -> None:
        order.run.counts.clear()
        try:
            await work(order.run)
        except Unavailable:
            raise  # it runs still, and is begun anew
        except Stopped as stopped:
            order.end(str(stopped))
            return
        except (FilestoreError, OSError) as error:
            order.end(f"{type(error).__name__}: {error}")
            raise
        order.end()
        self._means.metrics.custody_stops.note(kind, is_stopped=False)

    async def _by_itself(self, kind: str, work: Callable[[Pass], Awaitable[None]]) -> None:
        stops = self._means.metrics.custody_stops
        try:
            await work(Pass())
        except Stopped as reason:
            stops.note(kind, is_stopped=True)
            _log.error("custody stopped itself", extra={"kind": kind, "reason": str(reason)})
        else:
            stops.note(kind, is_stopped=False)
