"""Create replicas by order: a node fetches a blob, reports it durable, and the log records the node.

`as_of` of the change is determined before the node is asked: if the node deletes the blob after its answer,
the change is rejected.

Each target has its own queue, with small blobs separate from large ones, so that a slow or hanging target
delays no others. A copy has no time limit: it is given up if the node does not answer, or reports no progress
for STILL_S. Then another target is chosen at once (`coordinator/reconcile/backoff.py`).

Tested by tests/unit/coordinator/reconcile/test_repair_failures.py.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import Enum

from ca.errors import FilestoreError, NotFound
from coordinator.reconcile.context import ReconcileContext
from coordinator.reconcile.facts import Copy, Facts
from coordinator.reconcile.job_runs import StepProgress
from coordinator.rpc.node_client import OrderFailed, PullReport
from coordinator.rpc.server import Refused
from metadata.protocol.commands import AddReplica

COPIES_PER_TARGET = 2  # a node fetches no more at once, and as many small blobs
SMALL_BYTES = 16 << 20  # as in node/peer/fetch.py
QUEUED_MAX = 100  # copies that wait for one target, or are made there
TURN_S = 30.0  # for a copy to get its turn at a target: then it is given to an idle one
TARGETS_TRIED_MAX = 3  # one after the other, for one blob in one run
ANSWER_S = 30.0  # a node answers after 20 s at the latest, even before the end
ASK_AGAIN_S = 0.5
STILL_S = 60.0  # no step of a pull takes this long: each reads, sends, syncs or hashes 16 MiB

Plan = Callable[[Facts], list[Copy]]

_log = logging.getLogger(__name__)


class _Outcome(Enum):
    MADE = "made"
    FAILED = "failed"  # another target may work
    WAITED = "waited"  # for its turn, too long
    GONE = "gone"  # no file refers to it any more


class Copier:
    """Makes copies for one run, and counts them there: copied, bytes, failed."""

    def __init__(self, context: ReconcileContext, progress: StepProgress) -> None:
        self._context = context
        self._progress = progress
        self._turns: dict[tuple[str, bool], asyncio.Semaphore] = {}  # by target and size
        self._queued: Counter[tuple[str, bool]] = Counter()

    def choose(self, facts: Facts, sha256: str, size_bytes: int, plan: Plan) -> list[Copy] | None:
        """Return the copies to make now, by targets that have not failed lately; none if impossible.

        None if the possible ones would only wait in a long queue.
        """
        facts = self._context.failures.eligible(facts, sha256)
        copies = plan(facts)
        if all(self._has_place(copy.target, size_bytes) for copy in copies):
            return copies
        return plan(self._narrowed(facts, size_bytes, QUEUED_MAX)) or None

    async def make(self, copies: Sequence[Copy], plan: Plan) -> bool:
        """Make the copies; return whether all are made.

        If a target fails, make those that `plan` then returns. Raises a group of Interrupted.
        """
        for _ in range(TARGETS_TRIED_MAX):
            outcomes = await self._make_all(copies)
            if not {_Outcome.FAILED, _Outcome.WAITED} & set(outcomes):
                break
            facts = self._context.failures.eligible(self._context.facts(), copies[0].sha256)
            idle = self._narrowed(facts, copies[0].size_bytes, COPIES_PER_TARGET)
            copies = (_Outcome.WAITED in outcomes and plan(idle)) or plan(facts)
            if not copies:
                return False
        return all(outcome is _Outcome.MADE for outcome in outcomes)

    def _has_place(self, node_id: str, size_bytes: int, queued_max: int = QUEUED_MAX) -> bool:
        return self._queued[node_id, size_bytes <= SMALL_BYTES] < queued_max

    def _narrowed(self, facts: Facts, size_bytes: int, queued_max: int) -> Facts:
        """Return the facts without targets with many copies; none may use its reserve for that."""
        free = [
            c
            for c in facts.candidates
            if c.has_room(size_bytes) and self._has_place(c.node_id, size_bytes, queued_max)
        ]
        return replace(facts, candidates=tuple(free))

    async def _make_all(self, copies: Sequence[Copy]) -> list[_Outcome]:
        async with asyncio.TaskGroup() as group:
            made = [group.create_task(self._make(copy)) for copy in copies]
        if copies:
            await self._progress.note()
        return [task.result() for task in made]

    async def _make(self, copy: Copy) -> _Outcome:
        queue = copy.target, copy.size_bytes <= SMALL_BYTES
        turn = self._turns.setdefault(queue, asyncio.Semaphore(COPIES_PER_TARGET))
        failures = self._context.failures
        self._queued[queue] += 1
        failures.note_begin(copy)
        try:
            if not await _is_taken(turn):
                return _Outcome.WAITED
            try:
                if failures.is_passed_over(copy):  # it failed while this one waited
                    return _Outcome.FAILED
                return await self._pull_and_add(failures.with_sources(copy))
            finally:
                turn.release()
        finally:
            failures.note_end(copy)
            self._queued[queue] -= 1

    async def _pull_and_add(self, copy: Copy) -> _Outcome:
        """Order the copy and record it. Raises Interrupted."""
        facts = {"sha256": copy.sha256, "target": copy.target}
        as_of = self._context.driver.applied_index
        try:
            state = await self._pulled(copy)
            self._context.failures.note_made(copy, state.failed_sources)
            command = AddReplica(sha256=copy.sha256, node_id=copy.target, as_of=as_of)
            await self._progress.apply(command, int)
        except OrderFailed as failure:
            _log.warning("a replica could not be made: %s", failure, extra=facts)
            self._note_failure(copy, failure)
        except Refused as refusal:
            if refusal.code == NotFound.code:
                self._progress.add(skipped=1)
                return _Outcome.GONE
            _log.warning("a replica was not recorded: %s", refusal.details, extra=facts)
            self._context.failures.note_failed_target(
                copy, f"not recorded: {refusal.code}", has_answered=True
            )
        except FilestoreError as error:
            _log.warning("a replica could not be made: %s", error.details, extra=facts)
            self._context.failures.note_failed_target(copy, error.details, has_answered=True)
        else:
            self._progress.add(copied=1, bytes=copy.size_bytes)
            return _Outcome.MADE
        self._progress.add(failed=1)
        return _Outcome.FAILED

    def _note_failure(self, copy: Copy, failure: OrderFailed) -> None:
        failures = self._context.failures
        if failure.failed_sources:
            failures.note_failed_sources(copy, failure.failed_sources, failure.reason)
        else:
            failures.note_failed_target(copy, failure.reason, has_answered=failure.has_answered)

    async def _pulled(self, copy: Copy) -> PullReport:
        """Order a node to fetch the blob, whole and durable.

        Raises OrderFailed, NotFound if the node was removed.
        """
        last, moved_at_s = None, time.monotonic()
        while True:
            state = await self._context.orders.pull(
                self._context.node(copy.target),
                copy.sha256,
                copy.size_bytes,
                copy.sources,
                timeout_s=ANSWER_S,
            )
            if state.is_here:
                return state
            if state.moved != last:
                last, moved_at_s = state.moved, time.monotonic()
            if time.monotonic() - moved_at_s >= STILL_S:
                raise OrderFailed(copy.target, f"tells nothing new for {STILL_S:.0f} s")
            await asyncio.sleep(ASK_AGAIN_S)


async def _is_taken(turn: asyncio.Semaphore) -> bool:
    """Return whether this copy got its turn within TURN_S."""
    try:
        async with asyncio.timeout(TURN_S):
            await turn.acquire()
    except TimeoutError:
        return False
    return True
