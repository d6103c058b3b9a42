"""The jobs of the reconcilers: what each does, and when the schedule has work for it."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from coordinator.model.jobs import COMPARE, DRAIN, GC, REBALANCE, REPAIR, SCRUB, TRIM
from coordinator.model.replica_records import ReplicaCounts
from coordinator.protocol.queries import GetReplicaCounts
from coordinator.reconcile import drain, passes, rebalance, repair, trim
from coordinator.reconcile.context import ReconcileContext
from coordinator.reconcile.facts import Facts
from coordinator.reconcile.job_runs import StepProgress, Work

WAIT_S_MIN = 5.0  # after a run that could do nothing; doubled each time
WAIT_S_MAX = 300.0
REST_S_PER_LOOK = 0.01  # after a run in vain, for each blob that it looked at: a twentieth of the leader
BUSY_WAIT_S_MAX = 20.0  # while uploads are written that a drain waits for


Reconciler = Callable[[ReconcileContext, StepProgress], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class _Wait:
    """Until when a job is not due, as long as the nodes stay as they are.

    For repair it holds until `soon_s` only when other blobs are short than then.
    """

    nodes: object
    wait_s: float
    until_s: float
    soon_s: float
    short: object = None


class Reconcilers:
    """The reconcilers of one coordinator as jobs."""

    def __init__(self, context: ReconcileContext) -> None:
        self._context = context
        self._trimmer = trim.Trimmer()
        self._waits: dict[str, _Wait] = {}
        self._uneven: Facts | None = None  # under which no move helps

    def works(self) -> Mapping[str, Work]:
        """What each job does, by its name."""
        context = self._context
        return {
            REPAIR: partial(self._patiently, REPAIR, repair.repair),
            DRAIN: partial(self._patiently, DRAIN, drain.drain),
            REBALANCE: partial(self._patiently, REBALANCE, self._rebalance),
            TRIM: partial(self._patiently, TRIM, self._trimmer.trim),
            GC: partial(passes.gc, context),
            SCRUB: partial(passes.scrub, context),
            COMPARE: partial(passes.compare, context),
        }

    def due(self) -> Mapping[str, Callable[[], bool]]:
        """Whether a job has something to do now, by its name."""
        return {
            REPAIR: lambda: not self._waits_still(REPAIR) and repair.is_due(self._context),
            DRAIN: lambda: not self._waits_still(DRAIN) and drain.is_due(self._context),
            REBALANCE: self._is_rebalance_due,
            TRIM: lambda: not self._waits_still(TRIM) and self._trimmer.is_due(self._context),
            GC: lambda: passes.is_gc_due(self._context),
        }

    def _is_rebalance_due(self) -> bool:
        if self._waits_still(REBALANCE):
            return False
        if self._uneven is not None and not rebalance.may_differ(self._uneven, self._context.facts()):
            return False
        return rebalance.is_due(self._context)

    async def _rebalance(self, context: ReconcileContext, progress: StepProgress) -> None:
        self._uneven = await rebalance.rebalance(context, progress)

    async def _patiently(self, name: str, work: Reconciler, progress: StepProgress) -> None:
        """Do it; when nothing could be done, the next run of the schedule waits, longer each time.

        A run that somebody has asked for tries everybody again.
        """
        if not progress.is_scheduled:
            self._context.failures.forget()
        before, looked_before = _done(progress), _looked(progress)
        try:
            await work(self._context, progress)
        except asyncio.CancelledError:
            if self._context.driver.is_leader:  # an admin has cancelled it: not to begin again at once
                self._wait(name, WAIT_S_MAX, looked=0)
            raise
        if _done(progress) > before:
            self._waits.pop(name, None)
            return
        earlier = self._waits.get(name)
        longest_s = BUSY_WAIT_S_MAX if progress.result.get("uploads_busy") else WAIT_S_MAX
        wait_s = WAIT_S_MIN if earlier is None else min(2 * earlier.wait_s, longest_s)
        self._wait(name, wait_s, looked=_looked(progress) - looked_before)

    def _wait(self, name: str, wait_s: float, *, looked: int) -> None:
        at_s = time.monotonic()
        rest_s = min(max(WAIT_S_MIN, REST_S_PER_LOOK * looked), WAIT_S_MAX)
        short = self._short() if name == REPAIR else None
        nodes, until_s = shape(self._context.facts()), at_s + max(wait_s, rest_s)
        self._waits[name] = _Wait(nodes, wait_s, until_s, at_s + rest_s, short)

    def _waits_still(self, name: str) -> bool:
        wait, at_s = self._waits.get(name), time.monotonic()
        if wait is None or at_s >= wait.until_s or wait.nodes != shape(self._context.facts()):
            return False
        return name != REPAIR or at_s < wait.soon_s or wait.short == self._short()

    def _short(self) -> object:
        """What changes when other blobs lack replicas: they need not wait for one that cannot be helped."""
        return self._context.look(GetReplicaCounts(), ReplicaCounts).short


def _looked(progress: StepProgress) -> int:
    return int(progress.result.get("looked_at", 0))


def _done(progress: StepProgress) -> int:
    """What a run came to: what was spared is as it was before."""
    names = ("copied", "released", "spared", "uploads_moved", "uploads_restarted")
    count = {name: int(progress.result.get(name, 0)) for name in names}
    return sum(count.values()) - 2 * count["spared"]


def shape(facts: Facts) -> object:
    """What must change before a run that could do nothing is worth another.

    It is who is there, and about how much room there is.
    """
    return facts.nodes, frozenset((c.node_id, c.free_bytes.bit_length()) for c in facts.candidates)
