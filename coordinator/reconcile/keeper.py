"""Record the states of nodes while this coordinator leads: down, returning, healthy again.

A node with a failing disk counts as down after the same time.

A node that was down is not reliable until it has compared its disk with the log: replicas that were released
or lost in the meantime must not come back. So it is marked returning at its first heartbeat, ordered to
compare, and marked healthy when that has ended.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from functools import partial

import uuid_utils

from ca.errors import FilestoreError
from coordinator.reconcile.context import ReconcileContext
from coordinator.reconcile.job_runs import Interrupted, apply_command
from coordinator.reconcile.recount import recount
from coordinator.reconcile.states import NodeObserver
from coordinator.rpc.node_client import NodeOrders, OrderFailed
from coordinator.rpc.server import Refused
from metadata.model.records import HEALTHY, RETURNING, NodeRecord
from metadata.protocol.commands import MarkNode
from runtime.background import Work

LOOK_S = 1.0
# In one round: a million replicas take minutes, and heartbeats of other nodes must be processed.
RECOUNT_STEPS_MAX = 20
STOPPED_REST_S = 60.0  # between two comparisons of one node that examines all its replicas

_log = logging.getLogger(__name__)


class NodeKeeper:
    """Marks nodes down, returning and healthy, and orders returning ones to compare first."""

    def __init__(self, context: ReconcileContext, *, down_after_s: float) -> None:
        self._context = context
        self._down_after_s = down_after_s
        self._attention = NodeObserver()
        self._comparisons = Comparisons(context.orders)
        self._asked: dict[str, asyncio.Task[bool]] = {}  # returning nodes, by id

    async def run(self) -> None:
        """Run until cancelled. Followers track too: a new leader knows the silent nodes."""
        async with asyncio.TaskGroup() as group:
            await Work(
                "states of nodes",
                partial(self._look, group),
                every_s=LOOK_S,
                first_s=LOOK_S,
                fails=(Interrupted, Refused, FilestoreError),
                level=logging.INFO,
                trouble="cannot record the states of nodes now",
            ).run()

    async def _look(self, group: asyncio.TaskGroup) -> None:
        nodes = self._context.view().nodes
        self._attention.observe(nodes, self._context.health, at_s=time.monotonic())
        if not self._context.driver.is_leader:
            self._keep([])
            return
        await self._mark(nodes)
        await self._take_back(nodes, group)
        if self._context.store.is_recount_due():
            await recount(self._context.driver, steps_max=RECOUNT_STEPS_MAX)

    async def _mark(self, nodes: list[NodeRecord]) -> None:
        for node_id, state in self._attention.marks(nodes, down_after_s=self._down_after_s):
            await apply_command(self._context.driver, MarkNode(node_id=node_id, state=state), NodeRecord)
            _log.warning("the node %s is %s", node_id, state)

    async def _take_back(self, nodes: list[NodeRecord], group: asyncio.TaskGroup) -> None:
        """Ask the returning nodes, and mark compared ones as healthy, without waiting for hanging ones."""
        # A comparison that was ordered while the disk failed proves nothing once it works again.
        returning = {
            node.node_id: node
            for node in nodes
            if node.state == RETURNING
            and node.peer_port
            and node.node_id not in self._attention.failing_nodes
        }
        self._keep(returning)
        for node_id, asked in list(self._asked.items()):
            if asked.done():
                del self._asked[node_id]
                if asked.result():
                    await self._mark_healthy(returning.pop(node_id))
        for node_id, node in returning.items():
            if node_id not in self._asked:
                self._asked[node_id] = group.create_task(self._comparisons.is_made(node))

    def _keep(self, node_ids: Collection[str]) -> None:
        """Forget all nodes but these: if one is down again, its earlier comparison does not count."""
        self._comparisons.keep(node_ids)
        for node_id in set(self._asked) - set(node_ids):
            self._asked.pop(node_id).cancel()

    async def _mark_healthy(self, node: NodeRecord) -> None:
        await apply_command(self._context.driver, MarkNode(node_id=node.node_id, state=HEALTHY), NodeRecord)
        self._context.failures.forget_node(node.node_id)
        _log.warning("the node %s is back: its replicas count again", node.node_id)


class Comparisons:
    """The comparisons ordered from returning nodes. `clock_s` is any monotonic clock.

    A comparison that stopped at the safety limit is not continued: an operator overrides it, and then the
    next one, STOPPED_REST_S later, does not stop.
    """

    def __init__(self, orders: NodeOrders, *, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._orders = orders
        self._clock_s = clock_s
        self._order_ids: dict[str, str] = {}
        self._rests_until_s: dict[str, float] = {}
        self._logged: dict[str, str] = {}  # the logged reason why a node is not healthy yet

    def keep(self, node_ids: Collection[str]) -> None:
        """Forget all nodes but these."""
        for known in (self._order_ids, self._rests_until_s, self._logged):
            for node_id in set(known) - set(node_ids):
                del known[node_id]

    async def is_made(self, node: NodeRecord) -> bool:
        """Return whether a node has compared its disk with the log; order it to, if it has not.

        It may read its other blobs for hours, which is not awaited.
        """
        if self._clock_s() < self._rests_until_s.get(node.node_id, 0.0):
            return False
        order_id = self._order_ids.setdefault(node.node_id, str(uuid_utils.uuid7()))
        try:
            state = await self._orders.custody(node, "compare", order_id)
        except OrderFailed as failure:
            self._log_once(node.node_id, failure.reason)
            return False
        if state.state == "stopped":
            self._log_once(node.node_id, state.reason)
            self._order_ids.pop(node.node_id, None)
            self._rests_until_s[node.node_id] = self._clock_s() + STOPPED_REST_S
        has_compared = state.state == "running" and state.counts.get("compared", 0) > 0
        return has_compared or state.state == "completed"

    def _log_once(self, node_id: str, reason: str) -> None:
        """Log a reason once."""
        if self._logged.get(node_id) != reason:
            self._logged[node_id] = reason
            _log.warning("the node %s is not back in service yet: %s", node_id, reason)
