"""Run gc early where room or privacy asks for it, and let the oldest files in the trash go for room.

Content that no file refers to stays for a day, in case a snapshot is restored. Two things do not wait for
that: the content of buckets with more bytes on the disks than their quota, as a quota limits the disks as
well; and what was deleted for good on purpose. The leader marks it for deletion, the longest released first,
in rounds that are small enough for nodes to delete without an operator's answer. The nodes are ordered to
delete it at once.

While the disks together have less free beyond their reserves than once the reserves, the oldest snapshots
lose their hold on content of deleted files. When no snapshot holds any, the oldest files in the trash are
deleted for good, as many as free the rest.
"""

import asyncio
import logging
from functools import partial
from typing import Final

import uuid_utils

from ca.errors import FilestoreError
from coordinator.machine import snapshots
from coordinator.machine.blobs import is_purged, purged_bytes
from coordinator.reconcile.context import ReconcileContext
from coordinator.reconcile.facts import Facts
from coordinator.reconcile.job_runs import Interrupted, apply_command
from coordinator.rpc.node_client import OrderFailed
from coordinator.rpc.server import Refused
from metadata.model.listed_records import Squeezed
from metadata.model.placement import PRESSED_RESERVES, lacking_bytes
from metadata.model.replica_records import Collected, ReplicaCounts
from metadata.model.snapshot_records import EndedHolds
from metadata.protocol.commands import CollectOverQuota, CollectPurged, EndHolds, SqueezeTrash
from metadata.protocol.queries import GetReplicaCounts
from runtime.background import Work

LOOK_S: Final = 10.0
EARLY_GRACE_MS: Final = 15 * 60_000  # longer than nodes keep an affirmed blob (PIN_S, node/storage/pins.py)
# Blobs and replicas: at most 90 of one node, which deletes that many without an operator.
ROUND_ROWS: Final = 180
PURGED_GRACE_MS: Final = 60_000  # what nodes spare, because it has just arrived, is tried again as often
EVICT_REST_S: Final = 0.02  # after each step, as in `expire`
MARKED_MAX: Final = 10  # earlier ones of one reachable node: with more, it has yet to delete the last round

_log = logging.getLogger(__name__)


class QuotaKeeper:
    """`run` on every coordinator; the leader acts."""

    def __init__(self, context: ReconcileContext) -> None:
        self._context = context
        self._grace_ms = min(context.grace_ms, EARLY_GRACE_MS)
        self._purged_grace_ms = min(context.grace_ms, PURGED_GRACE_MS)

    async def run(self) -> None:
        """Run until cancelled. Costs looks at indexes while nothing is due."""
        await Work(
            "quotas",
            self._look,
            every_s=LOOK_S,
            first_s=LOOK_S,
            fails=(Interrupted, Refused, FilestoreError),
            level=logging.INFO,
            trouble="content that should leave the disks early is not deleted now",
        ).run()

    async def _look(self) -> None:
        if not self._context.driver.is_leader:
            return
        await self._squeeze()
        for command in self._due():
            await self._collect(command)

    def _due(self) -> list[CollectOverQuota | CollectPurged]:
        """Return the commands that would find anything, unless the time is in doubt."""
        store, at_ms = self._context.store, self._context.clocks.ending_ms()
        due: list[CollectOverQuota | CollectPurged] = []
        if store.is_over_quota(at_ms=at_ms, grace_ms=self._grace_ms):
            due.append(CollectOverQuota(rows_max=ROUND_ROWS, grace_ms=self._grace_ms))
        if store.read_with(partial(is_purged, at_ms=at_ms, grace_ms=self._purged_grace_ms)):
            due.append(CollectPurged(rows_max=ROUND_ROWS, grace_ms=self._purged_grace_ms))
        return due if due and not self._context.clock_doubt() else []

    async def _squeeze(self) -> None:
        """Let the oldest files in the trash go if the disks lack room that nothing is about to free."""
        facts, store = self._context.facts(), self._context.store
        files, _ = store.trash()
        if not files and not store.read_with(snapshots.may_evict):
            return
        wanted_bytes = squeezed_bytes(facts, store.read_with(purged_bytes))
        if not wanted_bytes or any(count > MARKED_MAX for count in self._marked().values()):
            return
        if await self._evict() or not files:
            return
        done = await apply_command(self._context.driver, SqueezeTrash(wanted_bytes=wanted_bytes), Squeezed)
        _log.warning(
            "the disks are almost full: %d files of %d bytes left the trash early", done.files, done.bytes
        )

    async def _evict(self) -> bool:
        """End the hold of the oldest snapshot that holds any content; return whether there was one."""
        if not self._context.store.read_with(snapshots.may_evict):
            return False
        done = await apply_command(self._context.driver, EndHolds(evict=True), EndedHolds)
        if done.evicted:
            _log.warning(
                "the disks are almost full: content that only the snapshots up to %s refer to is deleted",
                done.evicted,
            )
        while done.more:
            done = await apply_command(self._context.driver, EndHolds(), EndedHolds)
            await asyncio.sleep(EVICT_REST_S)
        return True

    async def _collect(self, command: CollectOverQuota | CollectPurged) -> None:
        if any(count > MARKED_MAX for count in self._marked().values()):
            return
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


def squeezed_bytes(facts: Facts, pending_bytes: int) -> int:
    """Return how much content must leave the trash for room, without what is about to leave the disks.

    Nothing while a node that takes replicas has not told its room: it may have enough.
    """
    if any(node.takes_replicas and node.node_id not in facts.reachable for node in facts.nodes):
        return 0
    copies = max(min(facts.replicas, len(facts.candidates)), 1)
    lacking = -(-lacking_bytes(facts.candidates, PRESSED_RESERVES) // copies)
    return max(lacking - pending_bytes, 0)
