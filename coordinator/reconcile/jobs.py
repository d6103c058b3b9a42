"""The work of every job, and when the schedule has any for it: the other half of `metadata.model.jobs`."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from coordinator.reconcile import drain, passes, rebalance, repair, trim
from coordinator.reconcile.context import ReconcileContext
from coordinator.reconcile.facts import Facts
from coordinator.reconcile.job_runs import Job, StepProgress
from coordinator.reconcile.job_steps import SnapshotJob, expire, is_expire_due
from metadata.model.jobs import (
    COMPARE,
    DRAIN,
    EXPIRE,
    FREEZE,
    GC,
    JOBS,
    REBALANCE,
    REHEARSE,
    REPAIR,
    SCRUB,
    SNAPSHOT,
    THAW,
    TRIM,
    JobKind,
)
from metadata.model.replica_records import ReplicaCounts
from metadata.protocol.queries import GetReplicaCounts

WAIT_S_MIN = 5.0  # after a run that could do nothing; doubled each time
WAIT_S_MAX = 300.0
REST_S_PER_LOOK = 0.01  # after a useless run, for each blob that it examined: a twentieth of the leader
BUSY_WAIT_S_MAX = 20.0  # while clients write uploads that a drain waits for

_GAINS: Final = ("copied", "released", "uploads_moved", "uploads_restarted")  # counts of patient jobs

Reconciler = Callable[[ReconcileContext, StepProgress], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class _Wait:
    """The time until which a job is not due, as long as the nodes do not change.

    For repair it only holds until `soon_s` if other blobs lack replicas than then.
    """

    nodes: object
    wait_s: float
    until_s: float
    soon_s: float
    short: object = None


class CoordinatorJobs:
    """All jobs with their work on one coordinator. `snapshots`: the job of that name."""

    def __init__(self, context: ReconcileContext, snapshots: SnapshotJob) -> None:
        self._context = context
        self._waits: dict[JobKind, _Wait] = {}
        self._uneven: Facts | None = None  # the facts under which no move helps
        trimmer = trim.Trimmer()
        ending = context.store, context.clocks.ending_ms
        self.all: Final = (
            Job(EXPIRE, partial(expire, *ending), partial(is_expire_due, *ending)),
            Job(SNAPSHOT, snapshots.run, snapshots.is_due, is_sent=snapshots.is_sent),
            Job(REHEARSE, snapshots.rehearse, snapshots.is_rehearsal_due),
            self._patient(REPAIR, repair.repair, repair.is_due),
            self._patient(DRAIN, drain.drain, drain.is_due),
            self._patient(REBALANCE, self._rebalance, self._is_rebalance_due),
            self._patient(TRIM, trimmer.trim, trimmer.is_due),
            Job(GC, partial(passes.gc, context), partial(passes.is_gc_due, context)),
            Job(SCRUB, partial(passes.scrub, context)),
            Job(COMPARE, partial(passes.compare, context)),
            Job(FREEZE, partial(passes.freeze, context)),
            Job(THAW, partial(passes.thaw, context)),
        )
        self._by_kind = {job.kind: job for job in self.all}
        odd = self._by_kind.keys() ^ {*JOBS}
        assert not odd, f"jobs without work, or not declared: {odd}"

    def of(self, kind: JobKind) -> Job:
        """Return the job of a kind."""
        return self._by_kind[kind]

    def _patient(self, kind: JobKind, work: Reconciler, is_due: Callable[[ReconcileContext], bool]) -> Job:
        """Return a job that the schedule delays after a run that could do nothing."""
        return Job(
            kind,
            partial(self._patiently, kind, work),
            lambda: not self._waits_still(kind) and is_due(self._context),
        )

    def _is_rebalance_due(self, context: ReconcileContext) -> bool:
        if self._uneven is not None and not rebalance.may_differ(self._uneven, context.facts()):
            return False
        return rebalance.is_due(context)

    async def _rebalance(self, context: ReconcileContext, progress: StepProgress) -> None:
        self._uneven = await rebalance.rebalance(context, progress)

    async def _patiently(self, kind: JobKind, work: Reconciler, progress: StepProgress) -> None:
        """Do the work; if nothing could be done, the next scheduled run waits, longer each time.

        A run that a user has triggered tries every node again.
        """
        if not progress.is_scheduled:
            self._context.failures.forget()
        done_before, looked_before = _come_to(progress), kind.amounts(progress.result).looked
        try:
            await work(self._context, progress)
        except asyncio.CancelledError:
            if self._context.driver.is_leader:  # an admin has cancelled it: do not begin again at once
                self._wait(kind, WAIT_S_MAX, looked=0)
            raise
        if _come_to(progress) > done_before:
            self._waits.pop(kind, None)
            return
        earlier = self._waits.get(kind)
        longest_s = BUSY_WAIT_S_MAX if progress.result.get("uploads_busy") else WAIT_S_MAX
        wait_s = WAIT_S_MIN if earlier is None else min(2 * earlier.wait_s, longest_s)
        self._wait(kind, wait_s, looked=kind.amounts(progress.result).looked - looked_before)

    def _wait(self, kind: JobKind, wait_s: float, *, looked: int) -> None:
        at_s = time.monotonic()
        rest_s = min(max(WAIT_S_MIN, REST_S_PER_LOOK * looked), WAIT_S_MAX)
        short = self._short() if kind == REPAIR else None
        nodes, until_s = shape(self._context.facts()), at_s + max(wait_s, rest_s)
        self._waits[kind] = _Wait(nodes, wait_s, until_s, at_s + rest_s, short)

    def _waits_still(self, kind: JobKind) -> bool:
        wait, at_s = self._waits.get(kind), time.monotonic()
        if wait is None or at_s >= wait.until_s or wait.nodes != shape(self._context.facts()):
            return False
        return kind != REPAIR or at_s < wait.soon_s or wait.short == self._short()

    def _short(self) -> object:
        """Return a value that changes if other blobs lack replicas: they need not wait for hopeless ones."""
        return self._context.ask_applied(GetReplicaCounts(), ReplicaCounts).short


def _come_to(progress: StepProgress) -> int:
    """Return the result of a run in replicas and uploads, without those that were spared."""
    counts = {name: int(progress.result.get(name, 0)) for name in (*_GAINS, "spared")}
    return sum(counts[name] for name in _GAINS) - counts["spared"]


def shape(facts: Facts) -> object:
    """Return a value that must change before a run that could do nothing is worth repeating.

    It consists of the nodes, and of their approximate free space.
    """
    return facts.nodes, frozenset((c.node_id, c.free_bytes.bit_length()) for c in facts.candidates)
