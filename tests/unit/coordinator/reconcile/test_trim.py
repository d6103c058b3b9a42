"""Surplus replicas go, down to what is wanted and never below: plans, and runs over a real driver and log."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.reconcile import trim
from coordinator.reconcile.context import ReconcileContext
from coordinator.reconcile.drain import RELEASED_MAX
from coordinator.reconcile.facts import SOURCES_MAX
from coordinator.reconcile.job_runs import StepProgress
from coordinator.reconcile.recount import recount
from coordinator.reconcile.trim import BLOBS_AT_ONCE, TRIED_S, Trimmer, count_surplus, rank_surplus
from metadata.model.replica_records import NodeReplicas, ReplicaCounts
from metadata.model.safety_limits import SAFETY_BLOBS_MAX
from metadata.protocol import commands
from metadata.protocol.queries import GetNodeReplicas, GetReplicaCounts
from tests.unit.coordinator.reconcile.test_job_runs import apply, member, trigger
from tests.unit.coordinator.reconcile.test_reconcile_plans import GIB, blob, facts, node
from tests.unit.coordinator.reconcile.test_rounds import BLOBS, NODES, Disks, surplus

IDS = [f"n{number}" for number in range(1, 9)]
WANTED = 3  # of the facts of these tests


def test_replica_on_the_fullest_node_goes_first() -> None:
    cluster = facts(*(node(name) for name in IDS), free={"n2": 10, "n4": 20})
    assert rank_surplus(blob("n1", "n2", "n3", "n4", "n5"), cluster)[:2] == ["n2", "n4"]
    freed = {"n2": 45 * GIB}  # by this run
    assert rank_surplus(blob("n1", "n2", "n3", "n4", "n5"), cluster, freed)[:2] == ["n4", "n5"]


def test_replica_in_the_zone_that_has_most_goes_first() -> None:
    zones = {"n1": "a", "n2": "b", "n3": "b", "n4": "b", "n5": "c"}
    cluster = facts(*(node(name, zone=zone) for name, zone in zones.items()), free={"n1": 1})
    assert set(rank_surplus(blob(*zones), cluster)[:2]) < {"n2", "n3", "n4"}


def test_replica_on_a_node_that_drains_or_is_not_there_is_none_to_spare() -> None:
    others = (node("n4", "down"), node("n5", draining=True), node("n6", "returning"))
    cluster = facts(node("n1"), node("n2"), node("n3"), *others)
    assert count_surplus(blob("n1", "n2", "n3", "n4", "n5", "n6"), cluster) == 0


@given(
    states=st.lists(st.sampled_from(["healthy", "down", "returning", "draining"]), min_size=8, max_size=8),
    zones=st.lists(st.sampled_from(["", "a", "b"]), min_size=8, max_size=8),
    holders=st.sets(st.sampled_from(IDS)),
)
def test_what_is_left_is_what_is_wanted_in_as_many_zones_as_can_be(
    states: list[str], zones: list[str], holders: set[str]
) -> None:
    nodes = [
        node(name, "healthy" if state == "draining" else state, zone=zone, draining=state == "draining")
        for name, state, zone in zip(IDS, states, zones, strict=True)
    ]
    cluster, held = facts(*nodes), blob(*sorted(holders))
    going = rank_surplus(held, cluster)[: count_surplus(held, cluster)]
    good = cluster.counting_holders(held.replicas)
    left = [node_id for node_id in good if node_id not in going]
    assert set(going) <= set(good)
    assert len(left) == min(len(good), cluster.wanted)
    zones_before, zones_left = Counter(map(cluster.zone, good)), Counter(map(cluster.zone, left))
    assert len(zones_left) == min(len(zones_before), len(left))


def test_copy_names_no_more_sources_than_a_node_takes() -> None:
    names = [f"n{number:03}" for number in range(100)]
    cluster = facts(*(node(name) for name in names), node("n0", "down"))
    assert len(cluster.sources(names)) == SOURCES_MAX


async def run(context: ReconcileContext, run_id: str, trimmer: Trimmer | None = None) -> dict[str, int | str]:
    """What a run of the job came to; with `trimmer` one that the schedule has begun."""
    scheduled = commands.StartRun(run_id=run_id, job_name="trim", node_id="c1")
    await apply(context.driver, trigger("trim", run_id) if trimmer is None else scheduled)
    (record,) = context.store.running_runs()
    progress = StepProgress("c1", context.driver, record)
    await (trimmer or Trimmer()).trim(context, progress)
    await progress.record("completed")
    return progress.result


async def held_by_nodes(context: ReconcileContext) -> list[int]:
    return [(await context.ask(GetNodeReplicas(node_id=name), NodeReplicas)).replicas for name in NODES]


async def test_surplus_replicas_of_all_blobs_go_and_no_others(tmp_path: Path) -> None:
    async with member(tmp_path) as (driver, store):
        context = await surplus(driver, store, Disks())
        trimmer = Trimmer()
        assert trimmer.is_due(context)
        result = await run(context, "r1")
        counts = await context.ask(GetReplicaCounts(), ReplicaCounts)
        assert (result["looked_at"], result["released"], result["left"]) == (BLOBS, BLOBS, 0)
        assert (counts.doomed, counts.short) == ({}, {})
        held = await held_by_nodes(context)
        assert sum(held) == WANTED * BLOBS
        assert max(held) - min(held) <= BLOBS // 4  # not all from one node
        assert not trimmer.is_due(context)
        assert (await run(context, "r2"))["left"] == 0
        assert sum(await held_by_nodes(context)) == WANTED * BLOBS


async def test_blobs_are_all_looked_at_page_by_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trim, "PAGE_ROWS", 7)
    monkeypatch.setattr(trim, "REST_S", 0.0)
    async with member(tmp_path) as (driver, store):
        context = await surplus(driver, store, Disks())
        assert (await run(context, "r1"))["released"] == BLOBS
        trimmer = Trimmer()
        looks = [trimmer.is_due(context) for _ in range(2 * BLOBS // 7)]
        assert not any(looks)


async def test_node_that_does_not_drop_is_asked_for_no_more_and_what_is_left_is_told(tmp_path: Path) -> None:
    async with member(tmp_path) as (driver, store):
        context = await surplus(driver, store, Disks(dead=NODES))
        result = await run(context, "r1")
        first = (await context.ask(GetReplicaCounts(), ReplicaCounts)).doomed
        await run(context, "r2")
        second = (await context.ask(GetReplicaCounts(), ReplicaCounts)).doomed
        assert max(first.values()) < RELEASED_MAX + BLOBS_AT_ONCE <= SAFETY_BLOBS_MAX
        assert second == first
        assert int(result["released"]) + int(result["left"]) == BLOBS


async def test_no_replica_goes_for_the_sake_of_one_that_is_not_there(tmp_path: Path) -> None:
    async with member(tmp_path) as (driver, store):
        context = await surplus(driver, store, Disks(empty={"n2"}))
        result = await run(context, "r1")
        assert await held_by_nodes(context) == [BLOBS, 0, BLOBS, BLOBS]
        assert result["released"] == BLOBS


async def test_replica_that_its_node_needs_for_now_stays_and_goes_by_a_later_run(tmp_path: Path) -> None:
    disks = Disks(is_young=True)
    async with member(tmp_path) as (driver, store):
        context = await surplus(driver, store, disks)
        assert (await run(context, "r1"))["spared"] == BLOBS
        assert sum(await held_by_nodes(context)) == len(NODES) * BLOBS
        disks.is_young = False
        assert (await run(context, "r2"))["released"] == BLOBS
        assert sum(await held_by_nodes(context)) == WANTED * BLOBS


async def test_node_that_goes_down_meanwhile_leaves_no_blob_below_its_quorum(tmp_path: Path) -> None:
    async with member(tmp_path) as (driver, store):
        context = await surplus(driver, store, Disks())
        running = asyncio.create_task(run(context, "r1"))
        await apply(driver, commands.MarkNode(node_id="n1", state="down"))
        await running
        await recount(driver)
        counts = await context.ask(GetReplicaCounts(), ReplicaCounts)
        assert (counts.lost, set(counts.short) <= {1}) == (0, True)


async def test_what_was_spared_is_not_tried_again_by_the_schedule_while_it_would_be_in_vain(
    tmp_path: Path,
) -> None:
    now_s, disks = 1000.0, Disks(is_young=True)
    async with member(tmp_path) as (driver, store):
        context = await surplus(driver, store, disks)
        trimmer = Trimmer(clock_s=lambda: now_s)
        assert trimmer.is_due(context)
        assert (await run(context, "r1", trimmer))["spared"] == BLOBS
        assert not trimmer.is_due(context)
        assert "released" not in await run(context, "r2", trimmer)
        assert (await run(context, "r3"))["released"] == BLOBS  # somebody asks for it
        disks.is_young, now_s = False, now_s + TRIED_S
        assert trimmer.is_due(context)
        assert (await run(context, "r4", trimmer))["released"] == BLOBS
