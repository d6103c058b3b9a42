"""Rounds of releases over a real driver and log, with nodes that are as cautious as real ones: here those of
what is too much, node by node.
"""

import asyncio
import ssl
import time
from collections.abc import Iterable
from pathlib import Path

from coordinator.member.driver import Driver
from coordinator.member.member_clocks import MemberClocks
from coordinator.reconcile.context import ReconcileContext
from coordinator.reconcile.drain import RELEASED_MAX, RELEASES_AT_ONCE, Rounds
from coordinator.reconcile.job_runs import StepProgress, apply_command
from coordinator.reconcile.recount import STEP_ROWS, recount
from coordinator.reconcile.target_queues import RunningWork
from coordinator.reconcile.trim import count_surplus
from coordinator.rpc.node_client import Custody, NodeOrders, OrderFailed, PassState
from coordinator.rpc.state_view import StateView
from coordinator.storage.state_store import Store
from metadata.model.records import NodeRecord
from metadata.model.replica_records import DeletionPage, Dropped, HeldReplica, NodeReplicas, ReplicaCounts
from metadata.model.safety_limits import SAFETY_BLOBS_MAX
from metadata.protocol import commands
from metadata.protocol.calls import HeartbeatCall
from metadata.protocol.queries import GetNodeReplicas, GetReplicaCounts, ListReplicasToDelete
from metadata.rpc.node_health import NodeHealth
from node.custody.context import Pass, Stopped
from tests.unit.coordinator.reconcile.test_job_runs import apply, member, trigger
from tests.unit.state import ADMIN, complete, create, join, join_token

NODES = ("n1", "n2", "n3", "n4")
BLOBS = 3 * SAFETY_BLOBS_MAX


class Disks(NodeOrders):
    """What nodes do about what is doomed, as node/custody/collect.py decides it.

    Those in `dead` do not get to it; those in `empty` have lost their disk, and the log does not know it.
    With `is_young` all came a moment ago, and is spared.
    """

    def __init__(
        self, dead: Iterable[str] = (), empty: Iterable[str] = (), *, is_young: bool = False
    ) -> None:
        super().__init__("test", ssl.create_default_context)
        self.is_young = is_young
        self.context: ReconcileContext | None = None
        self.dead, self.empty = set(dead), set(empty)

    async def holds(self, node: NodeRecord, sha256: str, size_bytes: int) -> bool:
        return node.node_id not in self.empty and size_bytes == 5

    async def custody(
        self, node: NodeRecord, kind: Custody, order_id: str, *, yes_really: bool = False
    ) -> PassState:
        assert self.context is not None
        assert (kind, yes_really) == ("collect", False)
        if node.node_id in self.dead:
            raise OrderFailed(node.node_id, "is dead")
        page = await self.context.ask(ListReplicasToDelete(node_id=node.node_id), DeletionPage)
        held = await self.context.ask(GetNodeReplicas(node_id=node.node_id), NodeReplicas)
        try:
            Pass().require_few(held.doomed, held.doomed + held.replicas, "are to be deleted")
        except Stopped as stopped:
            return PassState(order_id=order_id, state="stopped", reason=str(stopped))
        named = [replica.sha256 for replica in page.replicas]
        gone, spared = ([], named) if self.is_young else (named, [])
        report = commands.ReportDropped(
            node_id=node.node_id, as_of=page.log_index, dropped=gone, spared=spared
        )
        await apply_command(self.context.driver, report, Dropped)
        counts = {"dropped": len(gone), "spared": len(spared)}
        return PassState(order_id=order_id, state="completed", counts=counts)


async def surplus(driver: Driver, store: Store, disks: Disks) -> ReconcileContext:
    """Four nodes of which each holds every blob, where three are wanted."""
    health = NodeHealth()
    for node_id in NODES:
        await apply(driver, join_token(node_id), join(node_id, node_id))
        await apply(driver, commands.AnnounceNode(node_id=node_id, peer_port=1, zone="", weight=100))
        health.receive(node_id, HeartbeatCall(50 << 30, 100 << 30, 0), at_s=time.monotonic() + 60)
    for number in range(BLOBS):
        await apply(driver, create(ADMIN, f"f{number}"))
    completions = [complete(ADMIN, f"f{number}", f"{number:064x}", list(NODES)) for number in range(BLOBS)]
    await asyncio.gather(*(apply(driver, completion) for completion in completions))
    disks.context = ReconcileContext(
        driver, store, StateView(store), health, disks, clocks=MemberClocks(), grace_ms=0
    )
    return disks.context


async def run(context: ReconcileContext, run_id: str) -> dict[str, int | str]:
    """What rounds over all nodes came to, one node after the other, as a run of a job."""
    await apply(context.driver, trigger("trim", run_id))
    (record,) = context.store.running_runs()
    progress = StepProgress("c1", context.driver, record)
    for node_id in NODES:
        await release_surplus(context, Rounds(context, progress, node_id))
    await progress.record("completed")
    return progress.result


async def release_surplus(context: ReconcileContext, rounds: Rounds) -> None:
    def begin(crew: RunningWork, replica: HeldReplica) -> bool:
        blob = context.blob(replica.sha256)
        if not crew.is_at(replica.sha256) and blob is not None and count_surplus(blob, context.facts()):
            crew.begin(replica.sha256, lambda: rounds.release(replica.sha256))
        return True

    await rounds.run(begin)


async def test_many_surplus_replicas_go_by_so_few_at_once_that_no_node_hesitates(tmp_path: Path) -> None:
    async with member(tmp_path) as (driver, store):
        context = await surplus(driver, store, Disks())
        result = await run(context, "r1")
        counts = await context.ask(GetReplicaCounts(), ReplicaCounts)
        held = [(await context.ask(GetNodeReplicas(node_id=name), NodeReplicas)).replicas for name in NODES]
    assert (result["released"], result["spared"]) == (BLOBS, 0)
    assert (counts.doomed, counts.short, sum(held)) == ({}, {}, 3 * BLOBS)


async def test_node_that_does_not_drop_what_was_released_is_asked_for_no_more(tmp_path: Path) -> None:
    async with member(tmp_path) as (driver, store):
        context = await surplus(driver, store, Disks(dead=NODES))
        await run(context, "r1")
        first = (await context.ask(GetReplicaCounts(), ReplicaCounts)).doomed
        await run(context, "r2")
        second = (await context.ask(GetReplicaCounts(), ReplicaCounts)).doomed
    assert RELEASED_MAX <= max(first.values()) < RELEASED_MAX + RELEASES_AT_ONCE <= SAFETY_BLOBS_MAX
    assert second == first


async def test_no_replica_is_released_for_the_sake_of_one_that_is_not_there(tmp_path: Path) -> None:
    async with member(tmp_path) as (driver, store):
        context = await surplus(driver, store, Disks(empty={"n2"}))
        result = await run(context, "r1")
        held = [(await context.ask(GetNodeReplicas(node_id=name), NodeReplicas)).replicas for name in NODES]
    assert (held, result["released"]) == (
        [BLOBS, 0, BLOBS, BLOBS],
        BLOBS,
    )  # three have it, and n2 is too many


async def test_recount_goes_no_further_than_it_is_told(tmp_path: Path) -> None:
    async with member(tmp_path) as (driver, store):
        await surplus(driver, store, Disks())
        await apply(driver, commands.MarkNode(node_id="n1", state="down"))
        assert await recount(driver, steps_max=1) == STEP_ROWS
        assert store.is_recount_due()
        assert await recount(driver) == BLOBS - STEP_ROWS
        assert not store.is_recount_due()
