"""Periodic work of a node on its replicas, which can also be ordered.

Each kind has its own loop: slow work of one kind does not delay the others. Within a kind, passes run one
after another, and a scheduled pass gives way to an order.

Tested by tests/cluster/test_custody.py.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from ca.errors import FilestoreError, Unavailable
from node.base.metrics import CustodyStops
from node.custody.context import Pass, Stopped, Superseded
from node.custody.orders import Order, Orders
from runtime.background import Pause, Step, Work

LOOK_S: Final = 2.0
TROUBLE_S: Final = 5.0  # before the next attempt if the log or the disk refuses

_log = logging.getLogger(__name__)


def custody_work(
    kind: str,
    look: Step,
    stops: CustodyStops,
    *,
    event: asyncio.Event | None = None,
    every_s: float = LOOK_S,
) -> Work:
    """A look at this interval, and when the event is set. Failures are counted, logged and shown."""
    return Work(
        kind,
        look,
        every_s=every_s,
        event=event,
        retry_s=TROUBLE_S,
        trouble="custody was interrupted",
        level=logging.ERROR,
        outcome=partial(stops.note_trouble, kind),
    )


class PeriodicWork:
    """`kind`: collect or compare. `work`: one pass; raises Stopped, FilestoreError, OSError."""

    def __init__(
        self, kind: str, work: Callable[[Pass], Awaitable[None]], period_s: float, stops: CustodyStops
    ) -> None:
        self.kind = kind
        self._work = work
        self._period_s = period_s
        self._stops = stops
        event = asyncio.Event()
        self.orders = Orders(event.set)
        self.background = custody_work(kind, self.do_due, stops, event=event)
        self._due_at_s = float("-inf")

    async def do_due(self) -> Pause:
        """Do what is due now; return when the next work is due. Raises FilestoreError, OSError."""
        now_s = asyncio.get_running_loop().time()
        while (order := self.orders.next()) is not None:
            await self._carry_out(order)
        if now_s >= self._due_at_s:
            await self._by_itself()
            self._due_at_s = now_s + self._period_s
        return Pause(max(0.0, self._due_at_s - asyncio.get_running_loop().time()))

    async def _carry_out(self, order: Order) -> None:
        order.run.counts.clear()
        try:
            await self._work(order.run)
        except Unavailable:
            raise  # it is still running, and is started again
        except Stopped as stopped:
            order.end(str(stopped))
            return
        except (FilestoreError, OSError) as error:
            order.end(f"{type(error).__name__}: {error}")
            raise
        order.end()
        self._stops.note(self.kind, is_stopped=False)

    async def _by_itself(self) -> None:
        try:
            await self._work(Pass(is_superseded=lambda: self.orders.next() is not None))
        except Superseded:
            return
        except Stopped as reason:
            self._stops.note(self.kind, is_stopped=True)
            _log.error("a custody pass stopped itself", extra={"kind": self.kind, "reason": str(reason)})
        else:
            self._stops.note(self.kind, is_stopped=False)
