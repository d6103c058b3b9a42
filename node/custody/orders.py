"""Orders of one kind, in the order of their arrival. Shared by the peer API and the passes that orders start.

No I/O here: `node/peerapi/custody.py` receives them, `node/custody/custody.py` and `node/custody/scrub.py`
carry them out.

Tested by tests/unit/coordinator/rpc/test_node_client.py.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal

from msgspec import Struct

from node.custody.context import Pass

REMEMBERED_MAX: Final = 8  # the giver of an order asks each second

State = Literal["running", "completed", "stopped"]


class PassReport(Struct, frozen=True, kw_only=True):
    """How an order stands. `stopped`: nothing more is done, `reason` says to an operator why."""

    order_id: str
    state: State
    reason: str
    counts: dict[str, int]


@dataclass(slots=True)
class Order:
    """An order and its state, which is set by its executor. Several orders may share a `run`."""

    order_id: str
    run: Pass
    state: State = "running"
    reason: str = ""
    has_begun: bool = field(default=False)

    def pass_state(self) -> PassReport:
        """How it stands."""
        return PassReport(
            order_id=self.order_id, state=self.state, reason=self.reason, counts=dict(self.run.counts)
        )

    def end(self, reason: str = "") -> None:
        """It is carried out, or was stopped for this reason."""
        self.state, self.reason = ("stopped" if reason else "completed"), reason


class Orders:
    """The last REMEMBERED_MAX orders of one kind. For one event loop."""

    def __init__(self, wake: Callable[[], None]) -> None:
        """`wake` is called when there is one more to carry out."""
        self._wake = wake
        self._orders: OrderedDict[str, Order] = OrderedDict()

    def give(self, order_id: str, *, yes_really: bool) -> PassReport:
        """Queue it, unless it is known; how it stands."""
        order = self._orders.get(order_id)
        if order is None:
            order = self._orders[order_id] = Order(order_id, Pass(yes_really))
            while len(self._orders) > REMEMBERED_MAX:
                self._orders.popitem(last=False)
            self._wake()
        return order.pass_state()

    def next(self) -> Order | None:
        """The oldest that runs still."""
        return next((order for order in self._orders.values() if order.state == "running"), None)

    def waiting(self) -> list[Order]:
        """Return the orders that were not started."""
        return [order for order in self._orders.values() if not order.has_begun]
