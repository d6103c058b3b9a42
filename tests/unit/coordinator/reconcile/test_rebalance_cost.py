"""What the reconcilers cost in a cluster that cannot be balanced: steps are counted, not seconds."""

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import uuid_utils

from coordinator.member.driver import Driver
from coordinator.member.member_clocks import MemberClocks
from coordinator.reconcile.context import ReconcileContext
from coordinator.reconcile.job_runs import StepProgress
from coordinator.reconcile.jobs import CoordinatorJobs
from coordinator.rpc.node_client import PullReport
from coordinator.rpc.state_view import StateView
from coordinator.storage.state_store import Store
from metadata.model.jobs import REBALANCE
from metadata.model.records import NodeRecord
from metadata.model.replica_records import NodeReplicas, ReplicaPage
from metadata.protocol import commands
from metadata.protocol.calls import HeartbeatCall
from metadata.protocol.queries import AnyQuery, FindBlob, GetNodeReplicas, ListReplicas
from metadata.rpc.node_health import NodeHealth
from tests.unit.coordinator.reconcile.test_job_runs import apply, member, trigger
from tests.unit.coordinator.reconcile.test_rounds import Disks
from tests.unit.snapshot_jobs import snapshot_job
from tests.unit.state import ADMIN, complete, create, join, join_token

GIB = 1 << 30
BLOBS = 120
RUNS_MAX = 20
DEADLINE_S = 60.0


class Nodes(Disks):
    """They copy and drop at once, and their disks are as full as what they hold, and `foreign` bytes, make
    them.
    """

    def __init__(self, foreign: Mapping[str, int]) -> None:
        super().__init__()
        self.foreign = foreign
        self.pulled = 0
        self.health = NodeHealth()

    async def holds(self, node: NodeRecord, sha256: str, size_bytes: int) -> bool:
        del node, sha256, size_bytes
        return True

    async def pull(
        self, node: NodeRecord, sha256: str, size_bytes: int, sources: Sequence[str], *, timeout_s: float
    ) -> PullReport:
        del node, sha256, size_bytes, sources, timeout_s
        self.pulled += 1
        return PullReport(is_here=True, moved=5, failed_sources=[])

    def beat(self) -> None:
        """What they would tell of their disks now."""
        assert self.context is not None
        for node_id, foreign_bytes in self.foreign.items():
            page = self.context.ask_applied(ListReplicas(node_id=node_id), ReplicaPage)
            used_bytes = foreign_bytes + sum(replica.size_bytes for replica in page.replicas)
            beat = HeartbeatCall(100 * GIB - used_bytes, 100 * GIB, 0)
            self.health.receive(node_id, beat, at_s=time.monotonic() + 3600)


class Costs:
    """Counts what is asked of the state and what goes into the log."""

    def __init__(self, context: ReconcileContext, monkeypatch: pytest.MonkeyPatch) -> None:
        self.queries: Counter[str] = Counter()
        self.commands = 0
        answer, propose = context.store.answer, context.driver.propose

        def counted(query: AnyQuery, *, at_ms: int) -> bytes:
            self.queries[type(query).__name__] += 1
            return answer(query, at_ms=at_ms)

        async def proposed(command: commands.AnyCommand) -> bytes:
            self.commands += 1
            return await propose(command)

        monkeypatch.setattr(context.store, "answer", counted)
        monkeypatch.setattr(context.driver, "propose", proposed)


async def uneven(
    driver: Driver, store: Store, nodes: Nodes, zones: Mapping[str, str], holders: Sequence[Sequence[str]]
) -> ReconcileContext:
    """Blobs of 500 MiB on these holders, in turn, where three replicas are wanted."""
    for node_id, zone in zones.items():
        await apply(driver, join_token(node_id), join(node_id, node_id))
        await apply(driver, commands.AnnounceNode(node_id=node_id, peer_port=1, zone=zone, weight=100))
    for number in range(BLOBS):
        await apply(driver, create(ADMIN, f"f{number}"))
        held_by = list(holders[number % len(holders)])
        await apply(driver, complete(ADMIN, f"f{number}", f"{number:064x}", held_by, size_bytes=GIB // 2))
    nodes.context = ReconcileContext(
        driver, store, StateView(store), nodes.health, nodes, clocks=MemberClocks(), grace_ms=0
    )
    nodes.beat()
    return nodes.context


async def run_while_due(
    context: ReconcileContext, reconcilers: CoordinatorJobs, nodes: Nodes
) -> list[dict[str, int | str]]:
    """What the runs came to that the schedule had begun, if it looked every moment."""
    results: list[dict[str, int | str]] = []
    while reconcilers.of(REBALANCE).is_due():
        assert len(results) < RUNS_MAX, "it never ends"
        await apply(context.driver, trigger(REBALANCE.name, str(uuid_utils.uuid7())))
        (record,) = context.store.running_runs()
        progress = StepProgress("c1", context.driver, record)
        await reconcilers.of(REBALANCE).work(progress)
        await progress.record("completed")
        results.append(progress.result)
        reconcilers._waits.clear()  # as after all of them
        nodes.beat()
    return results


async def test_imbalance_that_zones_keep_is_looked_at_once_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The full node is alone in its zone, so that nothing may leave it."""
    zones = {"n1": "a", "n2": "b", "n3": "c", "n4": "b", "n5": "c"}
    nodes = Nodes({"n1": 20 * GIB, "n2": 0, "n3": 0, "n4": 0, "n5": 0})
    async with asyncio.timeout(DEADLINE_S), member(tmp_path) as (driver, store):
        context = await uneven(driver, store, nodes, zones, [("n1", "n2", "n3"), ("n1", "n4", "n5")])
        reconcilers = CoordinatorJobs(context, snapshot_job(context, tmp_path))
        costs = Costs(context, monkeypatch)
        (result,) = await run_while_due(context, reconcilers, nodes)
        assert "n1 is 80% full" in str(result["imbalance"])
        assert (nodes.pulled, result.get("copied", 0)) == (0, 0)
        # Each replica of n1, and of what is fuller than others, once.
        assert costs.queries[FindBlob.__name__] <= 3 * BLOBS
        before = costs.queries.copy(), costs.commands
        for _ in range(1000):
            assert not reconcilers.of(REBALANCE).is_due()
        assert (costs.queries, costs.commands) == before
        nodes.foreign = dict(nodes.foreign, n2=1 * GIB)  # too little to tell another story
        nodes.beat()
        assert not reconcilers.of(REBALANCE).is_due()
        await apply(driver, join_token("n6"), join("n6", "n6"))
        await apply(driver, commands.AnnounceNode(node_id="n6", peer_port=1, zone="a", weight=100))
        nodes.foreign = dict(nodes.foreign, n6=0)
        nodes.beat()
        results = await run_while_due(context, reconcilers, nodes)
    assert sum(int(result.get("copied", 0)) for result in results) > 0
    assert nodes.pulled < BLOBS


async def test_where_every_node_has_everything_no_run_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = Nodes({"n1": 30 * GIB, "n2": 0, "n3": 0})
    async with asyncio.timeout(DEADLINE_S), member(tmp_path) as (driver, store):
        context = await uneven(driver, store, nodes, dict.fromkeys(nodes.foreign, ""), [("n1", "n2", "n3")])
        reconcilers = CoordinatorJobs(context, snapshot_job(context, tmp_path))
        context.facts()  # the view is kept from here on
        costs = Costs(context, monkeypatch)
        assert await run_while_due(context, reconcilers, nodes) == []
        assert (costs.queries, costs.commands) == (Counter(), 0)


async def test_nothing_moves_to_and_fro_beside_an_empty_node_that_may_have_nothing(tmp_path: Path) -> None:
    """n5 is empty, and its zone has a replica of everything. What n1 gave to n4 for its sake made n4 the
    fullest, which gave it back, and so on.
    """
    zones = {"n1": "a", "n2": "b", "n3": "c", "n4": "a", "n5": "b"}
    nodes = Nodes({"n1": 0, "n2": 0, "n3": 0, "n4": 40 * GIB, "n5": 0})
    async with asyncio.timeout(DEADLINE_S), member(tmp_path) as (driver, store):
        context = await uneven(driver, store, nodes, zones, [("n1", "n2", "n3")])
        reconcilers = CoordinatorJobs(context, snapshot_job(context, tmp_path))
        results = await run_while_due(context, reconcilers, nodes)
        held = {
            name: (await context.ask(GetNodeReplicas(node_id=name), NodeReplicas)).replicas for name in zones
        }
    assert sum(held.values()) == 3 * BLOBS
    assert nodes.pulled <= BLOBS
    assert str(results[-1].get("imbalance", "")) or len(results) == 1


async def test_node_that_can_give_nothing_does_not_keep_another_from_giving(tmp_path: Path) -> None:
    """The fullest is full of what is not ours."""
    nodes = Nodes({"n1": 85 * GIB, "n2": 0, "n3": 0, "n4": 0, "n5": 0})
    holders = [("n2", "n3", "n4")]
    async with asyncio.timeout(DEADLINE_S), member(tmp_path) as (driver, store):
        context = await uneven(driver, store, nodes, dict.fromkeys(nodes.foreign, ""), holders)
        reconcilers = CoordinatorJobs(context, snapshot_job(context, tmp_path))
        await run_while_due(context, reconcilers, nodes)
        counts = await context.ask(GetNodeReplicas(node_id="n5"), NodeReplicas)
    assert counts.replicas > 0
