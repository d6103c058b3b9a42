"""What the change of a node's state means for its blobs, worked in by small steps."""

import asyncio
import sys

from coordinator.member.driver import Driver
from coordinator.model.replica_records import Recounted
from coordinator.protocol.commands import RecountReplicas
from coordinator.reconcile.job_runs import applied

STEP_ROWS = 200
REST_S = 0.01  # after each step: most of the members' time for others


async def recount(driver: Driver, *, steps_max: int = sys.maxsize) -> int:
    """Until the list of short blobs is true for every node; how many replicas were looked at.

    Raises Interrupted, Refused.
    """
    count = 0
    for _ in range(steps_max):
        step = await applied(driver, RecountReplicas(rows_max=STEP_ROWS), Recounted)
        count += step.replicas
        if not step.more:
            break
        await asyncio.sleep(REST_S)
    return count
