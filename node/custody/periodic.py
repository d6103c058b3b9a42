"""Work that one node does on its replicas again and again, and at once when it is ordered.

Each kind has a loop of its own: what takes long in one holds up no other. Within a kind one pass follows the
other; one that nobody has ordered gives way to an order.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from ca.errors import FilestoreError, Unavailable
from node.base.metrics import CustodyStops
from node.custody.context import Pass, Stopped, Superseded
from node.custody.orders import Order, Orders, PassEvent
from runtime.logs import LastingTroubles

LOOK_S: Final = 1.0
TROUBLE_S: Final = 5.0  # before it goes on when the log or the disk refuses

_log = logging.getLogger(__name__)
_TROUBLES = LastingTroubles(_log)


async def keep_on(
    kind: str, look: Callable[[], Awaitable[None]], event: PassEvent, stops: CustodyStops
) -> None:
    """Look each LOOK_S, and when the event is set, until cancelled. Failures are counted and logged."""
    while True:
        try:
            await look()
        except (FilestoreError, OSError) as error:
            _TROUBLES.met("custody was interrupted", str(error), kind=kind)
            stops.note_trouble(kind, error)
            await asyncio.sleep(TROUBLE_S)
        else:
            stops.note_trouble(kind, None)
        await event.wait(LOOK_S)


class PeriodicWork:
    """`kind`: collect or compare. `work`: one pass; raises Stopped, FilestoreError, OSError."""

    def __init__(
        self, kind: str, work: Callable[[Pass], Awaitable[None]], period_s: float, stops: CustodyStops
    ) -> None:
        self.kind = kind
        self._work = work
        self._period_s = period_s
        self._stops = stops
        self._event = PassEvent()
        self.orders = Orders(self._event.set)
        self._due_at_s = float("-inf")

    async def run(self) -> None:
        """For ever."""
        await keep_on(self.kind, self.look, self._event, self._stops)

    async def look(self) -> None:
        """All that is to be done now. Raises FilestoreError, OSError: then it is tried again."""
        now_s = asyncio.get_running_loop().time()
        while (order := self.orders.next()) is not None:
            await self._carry_out(order)
        if now_s >= self._due_at_s:
            await self._by_itself()
            self._due_at_s = now_s + self._period_s

    async def _carry_out(self, order: Order) -> None:
        order.run.counts.clear()
        try:
            await self._work(order.run)
        except Unavailable:
            raise  # it runs still, and is begun anew
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
