"""Repair: blobs with too few replicas that count get new ones, the most endangered first."""

from collections.abc import AsyncIterator, Sequence

from coordinator.job_runs import Progress
from coordinator.placement import choose
from coordinator.queries import GetReplicaCounts, ListShortBlobs
from coordinator.reconcile.copies import Copier, in_parallel
from coordinator.reconcile.damaged import damaged_blobs, is_any_damaged
from coordinator.reconcile.facts import Copy, Facts
from coordinator.reconcile.means import Means
from coordinator.reconcile.recounting import recount
from coordinator.replica_records import ReplicaCounts, ShortBlob, ShortPage

PAGE_ROWS = 100


def plan_repair(blob: ShortBlob, facts: Facts, *, into_reserve: bool = True) -> list[Copy]:
    """The copies to make of a blob; none when nobody can be asked for it, or nobody can take it.

    A node that has yet to drop the blob is no target: the log would refuse it. `into_reserve`: where too few
    have room, nodes that would take of their reserve are targets too. Of a blob that nobody holds whole one
    copy is made first, where a damaged one lies: then the others have a source that has everything.
    """
    if not blob.holders:
        return plan_salvage(blob, facts)
    sources = (*facts.sources(blob.holders), *facts.sources(blob.damaged))
    good = facts.good(blob.holders)
    lacking = facts.wanted - len(good)
    if not sources or lacking <= 0:
        return []
    excluded = {*blob.holders, *blob.doomed}
    others = [c for c in facts.candidates if c.node_id not in excluded]
    roomy = [c for c in others if c.has_room(blob.size_bytes)]
    targets = choose(blob.sha256, roomy, lacking, taken_zones={facts.zone(node_id) for node_id in good})
    if into_reserve and len(targets) < lacking:
        able = [c for c in others if c not in roomy and c.can_repair(blob.size_bytes)]
        taken_zones = {facts.zone(node_id) for node_id in (*good, *targets)}
        targets += choose(blob.sha256, able, lacking - len(targets), taken_zones=taken_zones)
    return [Copy(blob.sha256, blob.size_bytes, target, sources) for target in targets]


def plan_salvage(blob: ShortBlob, facts: Facts) -> list[Copy]:
    """One copy of a blob that nobody holds whole, from those damaged copies that can be asked for."""
    sources = facts.sources(blob.damaged)
    able = [c for c in facts.candidates if c.node_id not in blob.doomed and c.can_repair(blob.size_bytes)]
    nearest = [c for c in able if c.node_id in sources] or able
    if not sources or not nearest:
        return []
    (target,) = choose(blob.sha256, nearest, 1)
    return [Copy(blob.sha256, blob.size_bytes, target, sources)]


def lacks_room(blob: ShortBlob, facts: Facts, copies: Sequence[Copy]) -> bool:
    """Whether more copies of a blob could be made if more nodes, or nodes with more room, took them."""
    return bool(facts.sources(blob.holders)) and len(facts.good(blob.holders)) + len(copies) < facts.wanted


async def repair(means: Means, progress: Progress) -> None:
    """One pass over the blobs that lack replicas.

    The result: looked_at, copied, bytes; failed copies; no_room: blobs for which too few nodes that take
    replicas have room; left: blobs that lack replicas still, those that
    nobody can help now included, counted to 10,000; lost: blobs that nobody holds; incomplete: blobs of which
    so many bytes in all (lost_bytes) are damaged in every copy.
    """
    progress.count_left = lambda: _left(means)
    await recount(means.driver)
    copier = Copier(means, progress)
    under_way: set[str] = set()

    async def help_one(blob: ShortBlob) -> None:
        if blob.sha256 in under_way:  # it lacks fewer since a copy of it was made, and is listed again
            return
        facts = means.facts()
        copies = plan_repair(blob, facts)
        progress.add(looked_at=1)
        if lacks_room(blob, facts, copies):
            progress.add(no_room=1)
        under_way.add(blob.sha256)
        try:
            await copier.make_all(copies)
        finally:
            under_way.discard(blob.sha256)

    await in_parallel(damaged_blobs(means), help_one)
    await in_parallel(_short(means), help_one)
    counts = await means.ask(GetReplicaCounts(), ReplicaCounts)
    progress.result |= {"lost": counts.lost, "incomplete": counts.gone, "lost_bytes": counts.gone_bytes}


def is_due(means: Means) -> bool:
    """Whether a blob that somebody holds lacks replicas that there are nodes for."""
    page = means.look(_first(means.facts(), rows=1), ShortPage)
    return bool(page.blobs) or is_any_damaged(means) or means.store.is_recount_due()


def _left(means: Means) -> int:
    missing_min = means.facts().missing_min
    short = means.look(GetReplicaCounts(), ReplicaCounts).short
    return sum(blobs for missing, blobs in short.items() if missing >= missing_min)


async def _short(means: Means) -> AsyncIterator[ShortBlob]:
    query = _first(means.facts(), rows=PAGE_ROWS)
    while True:
        page = await means.ask(query, ShortPage)
        for blob in page.blobs:
            yield blob
        if not page.more:
            return
        last = page.blobs[-1]
        query = ListShortBlobs(
            after_missing=last.missing,
            after_sha256=last.sha256,
            missing_min=query.missing_min,
            limit=PAGE_ROWS,
        )


def _first(facts: Facts, *, rows: int) -> ListShortBlobs:
    """The first page, behind what nobody holds."""
    return ListShortBlobs(after_missing=facts.replicas, missing_min=facts.missing_min, limit=rows)
