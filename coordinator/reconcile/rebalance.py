"""Rebalance: after nodes have joined, replicas move from fuller nodes to emptier ones, copy first.

If a disk did not get emptier, more and more would be moved away: so a run uses the rounds of a drain, and
stops with a node that does not delete released replicas. After every move the source is still fuller than the
target, by the run's own count, so nothing ever moves back. If nothing can move, because of zones, room, or
because every node has everything, no run begins until nodes or their disks have changed.

Tested by tests/unit/coordinator/reconcile/test_reconcile_plans.py.
"""

import asyncio
from dataclasses import dataclass

from coordinator.reconcile.context import ReconcileContext
from coordinator.reconcile.copies import Copier
from coordinator.reconcile.drain import Rounds
from coordinator.reconcile.facts import Copy, Facts
from coordinator.reconcile.job_runs import StepProgress
from coordinator.reconcile.target_queues import RunningWork
from metadata.model.placement import Candidate, choose
from metadata.model.records import BlobRecord
from metadata.model.replica_records import HeldReplica

DIFFERENCE_SHARE = 0.1  # of used space: smaller differences are ignored
# A run ends this close to the middle of two nodes; a disk that changes by less is unchanged.
EVEN_SHARE = 0.02
MOVED_MAX = 10_000  # replicas in one run: the next one reads the state of the disks again


@dataclass(frozen=True, slots=True)
class Imbalance:
    """A node that is fuller than others, and possible targets."""

    fuller: str
    takers: tuple[Candidate, ...]


def used_share(candidate: Candidate) -> float:
    """Return how full a node's disk is, 0 to 1."""
    return 1 - candidate.free_bytes / candidate.total_bytes if candidate.total_bytes else 0.0


def by_use(facts: Facts) -> list[Candidate]:
    """Return the nodes that accept bytes, the fullest first."""
    return sorted(facts.candidates, key=lambda c: (-used_share(c), c.node_id))


def find_imbalances(facts: Facts) -> list[Imbalance]:
    """Return the nodes that are fuller than others by more than DIFFERENCE_SHARE, the fullest first.

    None if there are no more nodes than replicas of each blob, as every node has everything then.
    """
    if len(facts.counting) <= facts.wanted:
        return []
    ranked = by_use(facts)
    found = []
    for fuller in ranked:
        takers = [c for c in ranked if used_share(fuller) - used_share(c) > DIFFERENCE_SHARE]
        if takers:
            found.append(Imbalance(fuller.node_id, tuple(takers)))
    return found


class Levels:
    """How full the disks are, with the moves of this run."""

    def __init__(self, facts: Facts) -> None:
        self._total_bytes = {c.node_id: max(c.total_bytes, 1) for c in facts.candidates}
        self._used_bytes = {c.node_id: c.total_bytes - c.free_bytes for c in facts.candidates}

    def may_move(self, source: str, target: str, size_bytes: int) -> bool:
        """Return whether the source is fuller than the target after the move, too."""
        return self._share(source, -size_bytes) - self._share(target, size_bytes) >= 2 * EVEN_SHARE

    def move(self, source: str, target: str, size_bytes: int) -> None:
        """Count a move, or undo one with a negative size."""
        self._used_bytes[source] -= size_bytes
        self._used_bytes[target] += size_bytes

    def _share(self, node_id: str, more_bytes: int) -> float:
        return (self._used_bytes[node_id] + more_bytes) / self._total_bytes[node_id]


def plan_move(blob: BlobRecord, imbalance: Imbalance, facts: Facts, levels: Levels) -> Copy | None:
    """Return the copy that lets a fuller node release its replica; None if no target may have it.

    A move leaves the blob in as many zones as before.
    """
    others = [node_id for node_id in blob.replicas if node_id != imbalance.fuller]
    zones = {facts.zone(node_id) for node_id in others}
    is_alone = facts.zone(imbalance.fuller) not in zones
    named = {c.node_id for c in imbalance.takers}
    takers = [
        c
        for c in facts.candidates
        if c.node_id in named
        and c.node_id not in blob.replicas
        and c.has_room(blob.size_bytes)
        and (not is_alone or facts.zone(c.node_id) not in zones)
        and levels.may_move(imbalance.fuller, c.node_id, blob.size_bytes)
    ]
    targets = choose(blob.sha256, takers, 1)
    sources = facts.sources(blob.replicas)
    return Copy(blob.sha256, blob.size_bytes, targets[0], sources) if targets and sources else None


def may_differ(then: Facts, now: Facts) -> bool:
    """Return whether a move may help now that did not then: nodes differ, or disks have changed notably."""
    before = {c.node_id: used_share(c) for c in then.candidates}
    return then.nodes != now.nodes or any(
        abs(before.get(c.node_id, -1.0) - used_share(c)) > EVEN_SHARE for c in now.candidates
    )


async def rebalance(context: ReconcileContext, progress: StepProgress) -> Facts | None:
    """Move replicas from fuller nodes to emptier ones.

    Returns the facts under which no move helps; None if some may, or none is needed. The result: looked_at,
    copied, bytes, released, spared; failed copies; unconfirmed as of `drain`; waiting: replicas that could
    move to nodes that have failed lately; imbalance: a sentence if the disks stay uneven.
    """
    facts = context.facts()
    levels, moved = Levels(facts), set[str]()
    moves: list[_Moves] = []
    async with asyncio.TaskGroup() as group:  # a node that hangs delays no other
        for imbalance in find_imbalances(facts):
            moves.append(_Moves(context, progress, imbalance, levels, moved))
            group.create_task(moves[-1].run())
    if not moves or any(each.may_help for each in moves):
        return None
    progress.result["imbalance"] = _sentence(facts)
    return facts


def is_due(context: ReconcileContext) -> bool:
    """Return whether a node is too full compared with others."""
    return bool(find_imbalances(context.facts()))


def _sentence(facts: Facts) -> str:
    ranked = by_use(facts)
    fullest, emptiest = ranked[0], ranked[-1]
    return (
        f"The disk of {fullest.node_id} is {used_share(fullest):.0%} full, that of {emptiest.node_id} "
        f"{used_share(emptiest):.0%}, but no replica can move: each of the emptier nodes already has "
        "the replica, is in a zone that has it, or has no room for it. The job tries again when nodes "
        "or disks have changed."
    )


class _Moves:
    """Moves away from one node. `may_help`: whether any is possible, now or later.

    `moved`: blobs with a move in this run, from any node: two moves of one at once could bring both into one
    zone.
    """

    def __init__(
        self,
        context: ReconcileContext,
        progress: StepProgress,
        imbalance: Imbalance,
        levels: Levels,
        moved: set[str],
    ) -> None:
        self._context, self._progress, self._imbalance, self._levels = context, progress, imbalance, levels
        self._copier = Copier(context, progress)
        self._rounds = Rounds(context, progress, imbalance.fuller)
        self._moved = moved
        self.may_help = False

    async def run(self) -> None:
        """Examine every replica of the node, as long as it deletes released ones."""
        await self._rounds.run(self._begin, goes_on=lambda: len(self._moved) < MOVED_MAX)

    def _begin(self, crew: RunningWork, replica: HeldReplica) -> bool:
        sha256 = replica.sha256
        if sha256 in self._moved or (blob := self._context.blob(sha256)) is None:
            return True

        def plan(facts: Facts) -> list[Copy]:
            copy = plan_move(blob, self._imbalance, facts, self._levels)
            return [copy] if copy is not None else []

        facts = self._context.facts()
        could_move = plan(facts)
        copies = self._copier.choose(facts, sha256, blob.size_bytes, plan) if could_move else []
        self.may_help = self.may_help or bool(could_move)
        if copies is None:
            return False
        if could_move and not copies and not crew.readings:
            self._progress.add(waiting=1)
        if not crew.readings:
            self._progress.add(looked_at=1)
        if copies:
            self._moved.add(sha256)
            (copy,) = copies
            self._levels.move(self._imbalance.fuller, copy.target, copy.size_bytes)
            crew.begin(sha256, lambda: self._move(copy))
        return True

    async def _move(self, copy: Copy) -> None:
        if not await self._copier.make([copy], lambda _: []):
            self._levels.move(self._imbalance.fuller, copy.target, -copy.size_bytes)
            return
        await self._rounds.release(copy.sha256)
