"""The keeper of the nodes' states, over a real driver and log."""

import asyncio
import contextlib
import time
from pathlib import Path

import pytest

from coordinator.reconcile import keeper
from coordinator.reconcile.context import ReconcileContext
from coordinator.reconcile.keeper import NodeKeeper
from coordinator.rpc.node_client import Custody, NodeOrders, OrderFailed, PassState
from metadata.model.records import NodeRecord
from metadata.protocol import commands
from metadata.protocol.calls import HeartbeatCall
from tests.unit.coordinator.reconcile.test_job_runs import apply, member
from tests.unit.coordinator.reconcile.test_repair_failures import DEADLINE_S, Targets, short_of_one


class Returning(Targets):
    """Nodes that have compared as soon as they are told, but for one that does not answer."""

    def __init__(self, hung: str) -> None:
        super().__init__()
        self.hung, self.over = hung, asyncio.Event()

    async def custody(
        self, node: NodeRecord, kind: Custody, order_id: str, *, yes_really: bool = False
    ) -> PassState:
        del kind, yes_really
        if node.node_id == self.hung:
            await self.over.wait()
            raise OrderFailed(node.node_id, "TimeoutError")
        return PassState(order_id=order_id, state="completed")


def states(context: ReconcileContext) -> dict[str, str]:
    return {node.node_id: node.state for node in context.view().nodes}


async def test_node_that_returns_and_hangs_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "LOOK_S", 0.01)
    async with asyncio.timeout(DEADLINE_S), member(tmp_path) as (driver, store):
        orders: NodeOrders = Returning("n3")
        context = await short_of_one(driver, store, orders, sizes=[5])
        for node_id in ("n3", "n4"):
            await apply(driver, commands.MarkNode(node_id=node_id, state="down"))
            await apply(driver, commands.MarkNode(node_id=node_id, state="returning"))
        keeping = asyncio.create_task(NodeKeeper(context, down_after_s=600.0).run())
        while states(context)["n4"] != "healthy":
            await asyncio.sleep(0.01)
        await apply(driver, commands.MarkNode(node_id="n5", state="down"))
        while states(context)["n5"] != "healthy":  # as it is heard: down, returning, compared
            context.health.receive("n5", HeartbeatCall(1 << 40, 2 << 40, 0), at_s=time.monotonic() + 60)
            await asyncio.sleep(0.01)
        assert states(context)["n3"] == "returning"
        keeping.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await keeping
