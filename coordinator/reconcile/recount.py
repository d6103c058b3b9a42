"""Applies the change of a node's state to its blobs, step by step. Shared by keeper, repair and drain.

Tested by tests/unit/coordinator/reconcile/test_rounds.py.
"""

import asyncio
import sys

from coordinator.member.driver import Driver
from coordinator.reconcile.job_runs import apply_command
from metadata.model.replica_records import Recounted
from metadata.protocol.commands import RecountReplicas

STEP_ROWS = 200
REST_S = 0.01  # after each step: most of the members' time for others


async def recount(driver: Driver, *, steps_max: int = sys.maxsize) -> int:
    """Recount until the list of short blobs is right for every node; return how many replicas were counted.

    Raises Interrupted, Refused.
    """
    count = 0
    for _ in range(steps_max):
        step = await apply_command(driver, RecountReplicas(rows_max=STEP_ROWS), Recounted)
        count += step.replicas
        if not step.more:
            break
        await asyncio.sleep(REST_S)
    return count
