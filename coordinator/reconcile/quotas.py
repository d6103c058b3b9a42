"""Run gc early for buckets with more bytes on the disks than their quota.

Content that no file refers to stays for a day, in case a snapshot is restored; but a quota limits the disks
as well. So the leader marks the released content of such a bucket for deletion, the longest released first,
in rounds that are small enough for nodes to delete without an operator's answer. The nodes are ordered to
delete it at once.
"""

import asyncio
import logging
from typing import Final

import uuid_utils

from ca.errors import FilestoreError
from coordinator.reconcile.context import ReconcileContext
from coordinator.reconcile.job_runs import Interrupted, apply_command
from coordinator.rpc.node_client import OrderFailed
from coordinator.rpc.server import Refused
from metadata.model.replica_records import Collected, ReplicaCounts
from metadata.protocol.commands import CollectOverQuota
from metadata.protocol.queries import GetReplicaCounts
from runtime.background import Work

LOOK_S: Final = 10.0
EARLY_GRACE_MS: Final = 15 * 60_000  # longer than nodes keep an affirmed blob (PIN_S, node/storage/pins.py)
# Blobs and replicas: at most 90 of one node, which deletes that many without an operator.
ROUND_ROWS: Final = 180
MARKED_MAX: Final = 10  # earlier ones of one reachable node: with more, it has yet to delete the last round

_log = logging.getLogger(__name__)


class QuotaKeeper:
    """`run` on every coordinator; the leader acts."""

    def __init__(self, context: ReconcileContext) -> None:
        self._context = context
        self._grace_ms = min(context.grace_ms, EARLY_GRACE_MS)

    async def run(self) -> None:
        """Run until cancelled. Costs a look at an index while no bucket exceeds its quota."""
        await Work(
            "quotas",
            self._look,
            every_s=LOOK_S,
            first_s=LOOK_S,
            fails=(Interrupted, Refused, FilestoreError),
            level=logging.INFO,
            trouble="content that buckets released beyond their quota is not deleted now",
        ).run()

    async def _look(self) -> None:
        if self._context.driver.is_leader and self._is_due():
            await self._collect()

    def _is_due(self) -> bool:
        at_ms = self._context.clocks.ending_ms()
        due = self._context.store.is_over_quota(at_ms=at_ms, grace_ms=self._grace_ms)
        return due and not self._context.clock_doubt()

    async def _collect(self) -> None:
        if any(count > MARKED_MAX for count in self._marked().values()):
            return
        command = CollectOverQuota(rows_max=ROUND_ROWS, grace_ms=self._grace_ms)
        done = await apply_command(self._context.driver, command, Collected)
        if done.blobs:
            _log.info(
                "released content is marked for deletion early: %d blobs of %d bytes", done.blobs, done.bytes
            )
        async with asyncio.TaskGroup() as group:
            for node_id in self._marked():
                group.create_task(self._order_deletion(node_id))

    async def _order_deletion(self, node_id: str) -> None:
        """Make a node delete its marked replicas. Without an order it does so within a minute."""
        try:
            await self._context.orders.custody(
                self._context.node(node_id), "collect", str(uuid_utils.uuid7())
            )
        except (OrderFailed, FilestoreError) as failure:
            _log.debug("a node was not ordered to delete what is marked for deletion: %s", failure)

    def _marked(self) -> dict[str, int]:
        """Return how many replicas each reachable node has yet to delete."""
        counts, reachable = (
            self._context.ask_applied(GetReplicaCounts(), ReplicaCounts),
            self._context.facts().reachable,
        )
        return {node_id: count for node_id, count in counts.doomed.items() if node_id in reachable}
