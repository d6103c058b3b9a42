"""Runs of `repair` over a real driver and log, with nodes that hang, refuse, stand still or give nothing."""

import asyncio
import ssl
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from coordinator.member.driver import Driver
from coordinator.member.member_clocks import MemberClocks
from coordinator.reconcile import copies, jobs
from coordinator.reconcile.context import ReconcileContext
from coordinator.reconcile.job_runs import StepProgress
from coordinator.reconcile.repair import repair
from coordinator.rpc.node_client import NodeOrders, OrderFailed, PullReport
from coordinator.rpc.state_view import StateView
from coordinator.storage.state_store import Store
from metadata.model.jobs import JOBS, REPAIR, JobKind
from metadata.model.records import NodeRecord
from metadata.model.replica_records import ReplicaCounts
from metadata.protocol import commands
from metadata.protocol.calls import HeartbeatCall
from metadata.protocol.queries import GetReplicaCounts
from metadata.rpc.node_health import NodeHealth
from tests.unit.coordinator.reconcile.test_job_runs import apply, member, trigger
from tests.unit.snapshot_jobs import snapshot_job
from tests.unit.state import ADMIN, complete, create, join, join_token

NODES = ("n1", "n2", "n3", "n4", "n5")
BLOBS = 120
DEADLINE_S = 30.0

Behaviour = Callable[[str, Sequence[str]], Awaitable[PullReport]]


class Targets(NodeOrders):
    """Nodes that fetch at once, but for those that behave otherwise; `asked`: how often each was told to."""

    def __init__(self, **others: Behaviour) -> None:
        super().__init__("test", ssl.create_default_context)
        self.others = others
        self.asked: Counter[str] = Counter()
        self.named: Counter[str] = Counter()
        self.made: Counter[str] = Counter()

    async def pull(
        self, node: NodeRecord, sha256: str, size_bytes: int, sources: Sequence[str], *, timeout_s: float
    ) -> PullReport:
        del size_bytes, timeout_s
        self.asked[node.node_id] += 1
        self.named.update(sources)
        if (behaviour := self.others.get(node.node_id)) is not None:
            state = await behaviour(sha256, sources)
        else:
            state = PullReport(is_here=True, moved=5, failed_sources=[])
        self.made[node.node_id] += state.is_here
        return state


async def short_of_one(
    driver: Driver, store: Store, orders: NodeOrders, nodes: Sequence[str] = NODES, sizes: Sequence[int] = ()
) -> ReconcileContext:
    """Every blob lies on n1 and n2 alone of these nodes, where three replicas are wanted."""
    health = NodeHealth()
    for node_id in nodes:
        await apply(driver, join_token(node_id), join(node_id, node_id))
        await apply(driver, commands.AnnounceNode(node_id=node_id, peer_port=1, zone="", weight=100))
        health.receive(node_id, HeartbeatCall(50 << 40, 100 << 40, 0), at_s=time.monotonic() + 3600)
    of_blobs = sizes or (5,) * BLOBS
    for number in range(len(of_blobs)):
        await apply(driver, create(ADMIN, f"f{number}"))
    completions = [
        complete(ADMIN, f"f{number}", f"{number:064x}", ["n1", "n2"], size_bytes=size_bytes)
        for number, size_bytes in enumerate(of_blobs)
    ]
    await asyncio.gather(*(apply(driver, completion) for completion in completions))
    return ReconcileContext(
        driver, store, StateView(store), health, orders, clocks=MemberClocks(), grace_ms=0
    )


async def run(context: ReconcileContext, run_id: str = "r1") -> dict[str, int | str]:
    """What a run of the job came to."""
    await apply(context.driver, trigger("repair", run_id))
    (record,) = context.store.running_runs()
    progress = StepProgress("c1", context.driver, record)
    await repair(context, progress)
    await progress.record("completed")
    return progress.result


async def short(context: ReconcileContext) -> dict[int, int]:
    return (await context.ask(GetReplicaCounts(), ReplicaCounts)).short


async def test_target_that_never_answers_holds_up_no_copy_to_another(tmp_path: Path) -> None:
    """Eight blobs at a time waited for it: 18 of 400 were made while 400 could be."""
    answers = asyncio.Event()

    async def hang(sha256: str, sources: Sequence[str]) -> PullReport:
        del sha256, sources
        await answers.wait()
        raise OrderFailed("n4", "TimeoutError")

    async with asyncio.timeout(DEADLINE_S), member(tmp_path) as (driver, store):
        targets = Targets(n4=hang)
        context = await short_of_one(driver, store, targets)
        running = asyncio.create_task(run(context))
        while targets.made["n3"] + targets.made["n5"] < BLOBS / 2:
            assert not running.done()
            await asyncio.sleep(0)
        assert targets.made["n4"] == 0
        answers.set()  # the others know now that it is not to be waited for
        result = await running
        assert await short(context) == {}
    assert (result["copied"], targets.made["n4"]) == (BLOBS, 0)
    assert targets.asked["n4"] <= 2 * copies.COPIES_PER_TARGET


async def test_target_that_refuses_everything_is_passed_over(tmp_path: Path) -> None:
    """A node whose directory for replicas on their way was gone was chosen again for ever."""

    async def refuse(sha256: str, sources: Sequence[str]) -> PullReport:
        del sha256, sources
        raise OrderFailed("n4", "answered 500 internal", has_answered=True)

    async with asyncio.timeout(DEADLINE_S), member(tmp_path) as (driver, store):
        targets = Targets(n4=refuse)
        context = await short_of_one(driver, store, targets)
        for number in range(3):  # blobs that it has refused alone rest for a moment
            await run(context, f"r{number}")
        assert await short(context) == {}
        assert targets.asked["n4"] <= 8


async def test_source_that_gives_nothing_is_soon_named_no_more(tmp_path: Path) -> None:
    async def from_n2(sha256: str, sources: Sequence[str]) -> PullReport:
        del sha256
        if list(sources) == ["n1"]:
            raise OrderFailed("n3", "answered 503", has_answered=True, failed_sources=["n1"])
        return PullReport(is_here=True, moved=5, failed_sources=[name for name in sources if name == "n1"])

    async with asyncio.timeout(DEADLINE_S), member(tmp_path) as (driver, store):
        targets = Targets(**dict.fromkeys(("n3", "n4", "n5"), from_n2))
        context = await short_of_one(driver, store, targets)
        await run(context)
        assert await short(context) == {}
    assert targets.named["n2"] == BLOBS
    assert targets.named["n1"] <= 12  # those that were under way at once


async def test_pull_is_given_up_when_it_stands_still_and_never_while_it_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, hours = 0.0, 12
    monkeypatch.setattr(copies, "time", SimpleNamespace(monotonic=lambda: now_s))
    monkeypatch.setattr(copies, "ASK_AGAIN_S", 0.0)

    async def stand_still(sha256: str, sources: Sequence[str]) -> PullReport:
        nonlocal now_s
        del sha256, sources
        now_s += copies.STILL_S / 2
        return PullReport(moved=7)

    async def move(sha256: str, sources: Sequence[str]) -> PullReport:
        nonlocal now_s
        del sha256, sources
        now_s += 3600.0
        return PullReport(is_here=now_s > hours * 3600.0, moved=int(now_s), failed_sources=[])

    async with asyncio.timeout(DEADLINE_S), member(tmp_path) as (driver, store):
        targets = Targets(n3=stand_still, n4=move)
        context = await short_of_one(driver, store, targets, NODES[:4], sizes=[5])
        result = await run(context)
        assert await short(context) == {}
    assert targets.made["n4"] == 1
    assert targets.asked["n4"] >= hours
    assert result.get("failed", 0) == (1 if targets.asked["n3"] else 0)


async def test_what_waits_long_for_a_slow_target_goes_to_one_that_has_nothing_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "TURN_S", 0.1)
    goes_on = asyncio.Event()

    async def crawl(sha256: str, sources: Sequence[str]) -> PullReport:
        del sha256, sources
        await goes_on.wait()
        return PullReport(is_here=True, moved=5, failed_sources=[])

    async with asyncio.timeout(DEADLINE_S), member(tmp_path) as (driver, store):
        targets = Targets(n4=crawl)
        context = await short_of_one(driver, store, targets)
        running = asyncio.create_task(run(context))
        while targets.made["n3"] + targets.made["n5"] < BLOBS - copies.COPIES_PER_TARGET:
            assert not running.done()
            await asyncio.sleep(0.01)
        assert targets.asked["n4"] == copies.COPIES_PER_TARGET
        goes_on.set()
        await running
        assert await short(context) == {}


async def test_small_blobs_do_not_wait_for_large_ones(tmp_path: Path) -> None:
    sizes = [1 << 40] * 6 + [5] * 6
    goes_on = asyncio.Event()

    async def by_size(sha256: str, sources: Sequence[str]) -> PullReport:
        del sources
        if int(sha256, 16) < 6:
            await goes_on.wait()
        return PullReport(is_here=True, moved=5, failed_sources=[])

    async with asyncio.timeout(DEADLINE_S), member(tmp_path) as (driver, store):
        targets = Targets(n3=by_size)
        context = await short_of_one(driver, store, targets, NODES[:3], sizes=sizes)
        running = asyncio.create_task(run(context))
        while targets.made["n3"] < 6:
            await asyncio.sleep(0)
        assert not running.done()
        goes_on.set()
        result = await running
        assert await short(context) == {}
    assert result["copied"] == len(sizes)


async def test_blob_that_comes_while_a_copy_lasts_does_not_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinator.reconcile.target_queues.READ_AGAIN_S", 0.0)
    monkeypatch.setattr("coordinator.reconcile.target_queues.READ_AGAIN_FACTOR", 0.0)
    goes_on = asyncio.Event()

    async def first_lasts(sha256: str, sources: Sequence[str]) -> PullReport:
        del sources
        if int(sha256, 16) == 0:
            await goes_on.wait()
        return PullReport(is_here=True, moved=5, failed_sources=[])

    async with asyncio.timeout(DEADLINE_S), member(tmp_path) as (driver, store):
        targets = Targets(n3=first_lasts)
        context = await short_of_one(driver, store, targets, NODES[:3], sizes=[5])
        running = asyncio.create_task(run(context))
        while not targets.asked["n3"]:
            await asyncio.sleep(0)
        await apply(driver, create(ADMIN, "late"), complete(ADMIN, "late", f"{1:064x}", ["n1", "n2"]))
        while not targets.made["n3"]:
            await asyncio.sleep(0)
        assert not running.done()
        goes_on.set()
        await running
        assert await short(context) == {}


async def test_blob_that_nobody_can_help_does_not_keep_the_next_one_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "WAIT_S_MIN", 3600.0)

    async def refuse_the_first(sha256: str, sources: Sequence[str]) -> PullReport:
        del sources
        if int(sha256, 16) == 0:
            raise OrderFailed("n3", "answered 500 internal", has_answered=True)
        return PullReport(is_here=True, moved=5, failed_sources=[])

    async with asyncio.timeout(DEADLINE_S), member(tmp_path) as (driver, store):
        targets = Targets(n3=refuse_the_first)
        context = await short_of_one(driver, store, targets, NODES[:3], sizes=[5])
        reconcilers = jobs.CoordinatorJobs(context, snapshot_job(context, tmp_path))
        await apply(driver, trigger(REPAIR.name, "r1"))
        (record,) = store.running_runs()
        await reconcilers.of(REPAIR).work(StepProgress("c1", driver, record))
        assert not reconcilers.of(REPAIR).is_due()
        assert targets.asked["n3"] == 1
        await reconcilers.of(REPAIR).work(StepProgress("c1", driver, record))
        assert targets.asked["n3"] == 2  # at once: the run was asked for by somebody
        wait = reconcilers._waits[REPAIR]
        reconcilers._waits[REPAIR] = replace(wait, soon_s=0.0)  # as five seconds later
        assert not reconcilers.of(REPAIR).is_due()
        await apply(driver, create(ADMIN, "late"), complete(ADMIN, "late", f"{1:064x}", ["n1", "n2"]))
        assert reconcilers.of(REPAIR).is_due()


async def test_coordinator_does_not_start_with_a_job_that_nobody_works_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names, descriptions and schedules are declared in one place, the work in another."""
    async with asyncio.timeout(DEADLINE_S), member(tmp_path) as (driver, store):
        context = await short_of_one(driver, store, Targets(), NODES[:3], sizes=[5])
        assert {job.kind for job in jobs.CoordinatorJobs(context, snapshot_job(context, tmp_path)).all} == {
            *JOBS
        }
        for declared in ((*JOBS, JobKind(name="count", description="")), JOBS[1:]):
            monkeypatch.setattr(jobs, "JOBS", declared)
            with pytest.raises(AssertionError, match="without work, or not declared"):
                jobs.CoordinatorJobs(context, snapshot_job(context, tmp_path))
