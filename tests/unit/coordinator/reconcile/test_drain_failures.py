"""Runs of `drain` over a real driver and log: a node that hangs holds up nothing that does not need it."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from coordinator.member.driver import Driver
from coordinator.reconcile.context import ReconcileContext
from coordinator.reconcile.drain import drain
from coordinator.reconcile.job_runs import StepProgress
from coordinator.reconcile.upload_moves import UPLOADS_AT_ONCE
from coordinator.rpc.node_client import CopyReport, Custody, OrderFailed, PassState
from coordinator.storage.state_store import Store
from metadata.model.records import NodeRecord, PlacedUpload
from metadata.model.replica_records import NodeReplicas
from metadata.protocol import commands
from metadata.protocol.queries import GetNodeReplicas
from tests.unit.coordinator.reconcile.test_job_runs import apply, member, trigger
from tests.unit.coordinator.reconcile.test_repair_failures import DEADLINE_S, Targets, short_of_one
from tests.unit.coordinator.reconcile.test_rounds import Disks
from tests.unit.state import ADMIN, complete, create

BLOBS = 60


class Answers(Disks):
    """Nodes of which some do not answer, until `over`; `asked`: how often each was asked for a blob."""

    def __init__(self, *hung: str) -> None:
        super().__init__()
        self.hung, self.over = set(hung), asyncio.Event()
        self.asked: Counter[str] = Counter()

    async def holds(self, node: NodeRecord, sha256: str, size_bytes: int) -> bool:
        self.asked[node.node_id] += 1
        await self._hang(node)
        return await super().holds(node, sha256, size_bytes)

    async def custody(
        self, node: NodeRecord, kind: Custody, order_id: str, *, yes_really: bool = False
    ) -> PassState:
        await self._hang(node)
        return await super().custody(node, kind, order_id, yes_really=yes_really)

    async def _hang(self, node: NodeRecord) -> None:
        if node.node_id in self.hung:
            await self.over.wait()
            raise OrderFailed(node.node_id, "TimeoutError")


async def on_five(driver: Driver, store: Store, orders: Answers, *draining: str) -> ReconcileContext:
    """Every blob lies on all of five nodes, some of which drain, where three replicas are wanted."""
    nodes = [f"n{number}" for number in range(1, 6)]
    context = await short_of_one(driver, store, orders, nodes, sizes=[1])
    for number in range(BLOBS):
        await apply(driver, create(ADMIN, f"g{number}"))
    completions = [complete(ADMIN, f"g{number}", f"{number + 1:064x}", nodes) for number in range(BLOBS)]
    await asyncio.gather(*(apply(driver, completion) for completion in completions))
    await apply(driver, commands.AddReplica(sha256=f"{0:064x}", node_id="n3", as_of=driver.applied_index))
    for node_id in draining:
        await apply(driver, commands.DrainNode(caller=ADMIN, node_id=node_id, draining=True))
    orders.context = context
    return context


async def held(context: ReconcileContext, node_id: str) -> int:
    return (await context.ask(GetNodeReplicas(node_id=node_id), NodeReplicas)).replicas


async def run(context: ReconcileContext, run_id: str = "r1") -> dict[str, int | str]:
    await apply(context.driver, trigger("drain", run_id))
    (record,) = context.store.running_runs()
    progress = StepProgress("c1", context.driver, record)
    await drain(context, progress)
    await progress.record("completed")
    return progress.result


async def test_draining_node_that_hangs_does_not_hold_up_another_one(tmp_path: Path) -> None:
    async with asyncio.timeout(DEADLINE_S), member(tmp_path) as (driver, store):
        orders = Answers("n4")
        context = await on_five(driver, store, orders, "n4", "n5")
        running = asyncio.create_task(run(context))
        while await held(context, "n5"):
            assert not running.done()
            await asyncio.sleep(0.01)
        assert not running.done()  # n4 is told to drop what it was released from
        orders.over.set()
        await running
        assert await held(context, "n5") == 0


async def test_holder_that_hangs_is_not_waited_for_where_others_are_enough(tmp_path: Path) -> None:
    async with asyncio.timeout(DEADLINE_S), member(tmp_path) as (driver, store):
        orders = Answers("n4")
        context = await on_five(driver, store, orders, "n5")
        await run(context)
        assert await held(context, "n5") == 0


async def test_holder_that_does_not_answer_is_not_asked_for_each_blob(tmp_path: Path) -> None:
    async with asyncio.timeout(DEADLINE_S), member(tmp_path) as (driver, store):
        orders = Answers("n3", "n4")
        orders.over.set()
        context = await on_five(driver, store, orders, "n5")
        result = await run(context)
        assert await held(context, "n5") == BLOBS  # nothing is released for the sake of those
    assert int(result["unconfirmed"]) >= BLOBS
    assert max(orders.asked["n3"], orders.asked["n4"]) < BLOBS


class Silent(Targets):
    """Nodes that do not answer when they are asked about uploads; `questions`: how many were asked."""

    def __init__(self) -> None:
        super().__init__()
        self.questions = 0

    async def copy_upload(
        self, node: NodeRecord, upload: PlacedUpload, sources: Sequence[str], *, timeout_s: float
    ) -> CopyReport:
        self.questions += 1
        raise OrderFailed(node.node_id, "TimeoutError")


async def test_node_that_does_not_answer_is_not_asked_about_each_upload(tmp_path: Path) -> None:
    async with asyncio.timeout(DEADLINE_S), member(tmp_path) as (driver, store):
        orders = Silent()
        context = await short_of_one(driver, store, orders, sizes=[1])
        await apply(driver, *(create(ADMIN, f"u{number}", placement=["n5"]) for number in range(20)))
        await apply(driver, commands.DrainNode(caller=ADMIN, node_id="n5", draining=True))
        result = await run(context)
    assert int(result["uploads_kept"]) == 20
    assert 1 <= orders.questions <= UPLOADS_AT_ONCE
