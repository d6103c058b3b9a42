"""Rebalance: after nodes have joined, replicas move from the fullest node to the emptiest, copy first; and
replicas that a blob has too many of, since a node came back, are released.

A disk that does not get emptier would have more and more moved away: a run goes on by the rounds of a drain,
and no further with a node that does not drop what was released.
"""

from dataclasses import dataclass

from coordinator.job_runs import Progress
from coordinator.placement import Candidate, choose
from coordinator.reconcile.copies import Copier
from coordinator.reconcile.drain import Rounds, release
from coordinator.reconcile.facts import Copy, Facts
from coordinator.reconcile.means import Means
from coordinator.records import BlobRecord
from coordinator.replica_records import HeldReplica

DIFFERENCE_SHARE = 0.1  # of used space: nodes that differ by less are left alone
EVEN_SHARE = 0.02  # so near to the middle of two nodes a run comes
MOVED_MAX = 10_000  # replicas in one run: the next looks at the disks anew
TRIED_MAX = 100_000  # blobs that a run remembers; beyond them it may try in vain


@dataclass(frozen=True, slots=True)
class Imbalance:
    """A node that is too full, those that could take from it, and how many bytes make it even."""

    fullest: str
    takers: tuple[Candidate, ...]
    size_bytes: int


def used_share(candidate: Candidate) -> float:
    """How full a node's disk is, 0 to 1."""
    return 1 - candidate.free_bytes / candidate.total_bytes if candidate.total_bytes else 0.0


def by_use(facts: Facts) -> list[Candidate]:
    """The nodes that take bytes, the fullest first."""
    return sorted(facts.candidates, key=lambda c: (-used_share(c), c.node_id))


def find_imbalance(facts: Facts) -> Imbalance | None:
    """The fullest node, if others are emptier by more than DIFFERENCE_SHARE; None while all is even."""
    ranked = by_use(facts)
    if not ranked:
        return None
    fullest = ranked[0]
    takers = [c for c in ranked if used_share(fullest) - used_share(c) > DIFFERENCE_SHARE]
    if not takers:
        return None
    share = (used_share(fullest) - used_share(takers[-1])) / 2 - EVEN_SHARE
    smaller_bytes = min(fullest.total_bytes, takers[-1].total_bytes)
    return Imbalance(fullest.node_id, tuple(takers), int(share * smaller_bytes))


def plan_move(blob: BlobRecord, imbalance: Imbalance, facts: Facts) -> Copy | None:
    """The copy that lets the fullest node give up its replica; None when no taker may have it.

    A move leaves the blob in as many zones as before.
    """
    others = [node_id for node_id in blob.replicas if node_id != imbalance.fullest]
    zones = {facts.zone(node_id) for node_id in others}
    is_alone = facts.zone(imbalance.fullest) not in zones
    takers = [
        c
        for c in imbalance.takers
        if c.node_id not in blob.replicas
        and c.has_room(blob.size_bytes)
        and (not is_alone or facts.zone(c.node_id) not in zones)
    ]
    targets = choose(blob.sha256, takers, 1)
    sources = facts.sources(blob.replicas)
    return Copy(blob.sha256, blob.size_bytes, targets[0], sources) if targets and sources else None


def is_surplus(blob: BlobRecord, node_id: str, facts: Facts) -> bool:
    """Whether a blob would keep as many replicas as are wanted without the one on this node."""
    good = facts.good(blob.replicas)
    return node_id in good and len(good) > facts.wanted


async def rebalance(means: Means, progress: Progress) -> None:
    """Even out the fullest node, and release what is too much anywhere.

    The result: looked_at, copied, bytes, released, spared; failed copies; unconfirmed as of `drain`.
    """
    facts = means.facts()
    imbalance = find_imbalance(facts)
    released: set[str] = set()
    for candidate in by_use(facts):
        node_id = candidate.node_id
        moving = imbalance if imbalance is not None and imbalance.fullest == node_id else None
        await _Relief(means, progress, node_id, moving, released).run()


def is_due(means: Means) -> bool:
    """Whether a node is too full beside others."""
    return find_imbalance(means.facts()) is not None


class _Relief:
    """One run over one node."""

    def __init__(
        self,
        means: Means,
        progress: Progress,
        node_id: str,
        imbalance: Imbalance | None,
        tried: set[str],
    ) -> None:
        """`tried`: the blobs of which this run has released a surplus replica, on any node."""
        self._tried = tried
        self._means = means
        self._progress = progress
        self._node_id = node_id
        self._imbalance = imbalance
        self._copier = Copier(means, progress)
        self._left_bytes = imbalance.size_bytes if imbalance else 0
        self._moved = 0
        self._rounds = Rounds(means, progress, node_id)

    async def run(self) -> None:
        """Look at every replica that the node holds, as long as it drops what is released."""
        await self._rounds.run(self._look_at, goes_on=lambda: self._moved < MOVED_MAX)

    async def _look_at(self, replica: HeldReplica) -> None:
        facts = self._means.facts()
        blob = self._means.blob(replica.sha256)
        self._progress.add(looked_at=1)
        if blob is None:
            return
        if is_surplus(blob, self._node_id, facts):
            if blob.sha256 in self._tried:
                return  # a node has spared it, as others would: they came together
            self._left_bytes -= blob.size_bytes
            if await self._release(blob.sha256) and len(self._tried) < TRIED_MAX:
                self._tried.add(blob.sha256)
        elif self._imbalance is not None and self._moved < MOVED_MAX and self._left_bytes >= blob.size_bytes:
            copy = plan_move(blob, self._imbalance, facts)
            if copy is not None:
                self._left_bytes -= blob.size_bytes
                self._moved += 1
                await self._move(copy)

    async def _move(self, copy: Copy) -> None:
        if await self._copier.make_all([copy]):
            await self._release(copy.sha256)
            await self._progress.note()

    async def _release(self, sha256: str) -> bool:
        is_released = await release(self._means, self._progress, sha256, self._node_id)
        self._rounds.released += is_released  # others may have counted on meanwhile
        return is_released
