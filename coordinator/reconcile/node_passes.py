"""Order passes of nodes over their own replicas, and wait for them.

An order has an id. Repeating the id only asks for the state of its pass: so a new leader continues to wait
for the passes that the previous one has ordered.

Tested by tests/cluster/test_jobs.py.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from ca.errors import Conflict, NotFound
from coordinator.reconcile.context import ReconcileContext
from coordinator.reconcile.job_runs import StepProgress
from coordinator.rpc.node_client import Custody, OrderFailed, PassState

POLL_S = 1.0
QUIET_S_MAX = 60.0  # a node without an answer for this long is left out of the run
STILL_S_MAX = 3600.0  # and so is one whose pass makes no progress
STILL_S_MAX_COLLECT = 60.0  # for a pass that a node does every minute anyway: gc need not wait for it
HOW_TO_GO_ON = 'Find out why. To override the limit, run the job with the parameters {"yes_really": true}.'

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PassOrder:
    """One pass of each ordered node."""

    kind: Custody
    order_id: str
    yes_really: bool = False


async def order_all(
    context: ReconcileContext, progress: StepProgress, order: PassOrder, node_ids: Sequence[str]
) -> None:
    """Order these nodes to do a pass, and wait for all of them. Add their counts to the result.

    `unheard` counts nodes that did not reach the end. Raises Conflict, once all have ended, if one has
    stopped at the safety limit: with its reason, and how to continue.
    """
    states: dict[str, PassState] = {}

    async def wait_for(node_id: str) -> bool:
        async for state in _states(context, order, node_id):
            states[node_id] = state
            progress.result.update(sums_of(list(states.values())))
            await progress.note()
            if state.state != "running":
                return True
        return False

    async with asyncio.TaskGroup() as group:
        waits = [group.create_task(wait_for(node_id)) for node_id in node_ids]
    progress.result["unheard"] = sum(not wait.result() for wait in waits)
    stopped = sorted(node_id for node_id, state in states.items() if state.state == "stopped")
    if stopped:
        raise Conflict(f"{stopped[0]}: {states[stopped[0]].reason} {HOW_TO_GO_ON}")


def sums_of(states: Sequence[PassState]) -> dict[str, int]:
    """Return the total counts of the passes, by name."""
    sums: dict[str, int] = {}
    for state in states:
        for name, count in state.counts.items():
            sums[name] = sums.get(name, 0) + count
    return sums


async def _states(context: ReconcileContext, order: PassOrder, node_id: str) -> AsyncIterator[PassState]:
    """Yield the states of the node's pass, until it is abandoned."""
    answered_at_s = moved_at_s = time.monotonic()
    last: PassState | None = None
    still_s_max = STILL_S_MAX_COLLECT if order.kind == "collect" else STILL_S_MAX
    while True:
        try:
            state = await context.orders.custody(
                context.node(node_id), order.kind, order.order_id, yes_really=order.yes_really
            )
        except (OrderFailed, NotFound) as failure:
            _log.info("a node does not report the progress of its pass: %s", failure)
            if time.monotonic() - answered_at_s >= QUIET_S_MAX:
                return
        else:
            answered_at_s = time.monotonic()
            if state != last:
                moved_at_s, last = answered_at_s, state
                yield state
            if answered_at_s - moved_at_s >= still_s_max:
                return
        await asyncio.sleep(POLL_S)
