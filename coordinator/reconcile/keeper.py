"""Keeps the log's word on nodes true while this coordinator leads: down, returning, healthy again.

A node that was down is no source of truth until it has compared its disk with the log: what was released or
lost meanwhile must not come back. So it is marked returning when it is heard, told to compare, and marked
healthy when that has ended.
"""

import asyncio
import logging
import time

import uuid_utils

from ca.errors import FilestoreError
from coordinator.commands import MarkNode
from coordinator.job_runs import Interrupted, applied
from coordinator.node_orders import OrderFailed
from coordinator.reconcile.means import Means
from coordinator.reconcile.recounting import recount
from coordinator.reconcile.states import Attention
from coordinator.records import HEALTHY, RETURNING, NodeRecord
from coordinator.rpc import Refused

LOOK_S = 0.5
RECOUNT_STEPS_MAX = 20  # in one look: a million replicas take minutes, and other nodes must be listened to

_log = logging.getLogger(__name__)


class NodeKeeper:
    """`has_returned` is set when a node became healthy again: blobs may have more replicas than wanted."""

    def __init__(self, means: Means, *, down_after_s: float) -> None:
        self._means = means
        self._down_after_s = down_after_s
        self._attention = Attention()
        self._orders: dict[str, str] = {}  # by returning node: the order that it compares by
        self._told: dict[str, str] = {}  # by returning node: why it does not go on, as it was logged
        self.has_returned = False

    async def run(self) -> None:
        """Until cancelled. Followers listen too: one that begins to lead knows who was silent."""
        while True:
            await asyncio.sleep(LOOK_S)
            nodes = self._means.view().nodes
            self._attention.look(nodes, self._means.health, at_s=time.monotonic())
            if not self._means.driver.is_leader:
                self._orders.clear()
                continue
            try:
                await self._mark(nodes)
                await self._take_back(nodes)
                if self._means.store.is_recount_due():
                    await recount(self._means.driver, steps_max=RECOUNT_STEPS_MAX)
            except (Interrupted, Refused, FilestoreError) as reason:
                _log.info("the states of nodes are not recorded now: %s", reason)

    async def _mark(self, nodes: list[NodeRecord]) -> None:
        for node_id, state in self._attention.marks(nodes, down_after_s=self._down_after_s):
            await applied(self._means.driver, MarkNode(node_id=node_id, state=state), NodeRecord)
            _log.warning("the node %s is %s", node_id, state)

    async def _take_back(self, nodes: list[NodeRecord]) -> None:
        returning = [node for node in nodes if node.state == RETURNING and node.peer_port]
        gone = set(self._orders) - {node.node_id for node in returning}
        for node_id in gone:
            del self._orders[node_id]
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(self._has_compared(node)) for node in returning]
        for node, has_compared in zip(returning, asked, strict=True):
            if not has_compared.result():
                continue
            command = MarkNode(node_id=node.node_id, state=HEALTHY)
            await applied(self._means.driver, command, NodeRecord)
            self._orders.pop(node.node_id, None)
            self.has_returned = True
            _log.warning("the node %s is back: its replicas count again", node.node_id)

    async def _has_compared(self, node: NodeRecord) -> bool:
        order_id = self._orders.setdefault(node.node_id, str(uuid_utils.uuid7()))
        try:
            state = await self._means.orders.custody(node, "compare", order_id)
        except OrderFailed as failure:
            self._tell(node.node_id, failure.reason)
            return False
        if state.state == "stopped":
            self._tell(node.node_id, state.reason)
        return state.state == "completed"

    def _tell(self, node_id: str, reason: str) -> None:
        """Why a node is not taken back yet, once."""
        if self._told.get(node_id) != reason:
            self._told[node_id] = reason
            _log.warning("the node %s is not taken back yet: %s", node_id, reason)
