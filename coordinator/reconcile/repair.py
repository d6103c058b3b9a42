"""Repair: blobs with too few replicas that count get new ones, the most endangered first.

Tested by tests/unit/coordinator/reconcile/test_reconcile_plans.py.
"""

from collections.abc import AsyncIterator, Sequence
from functools import partial

import msgspec

from coordinator.reconcile.context import ReconcileContext
from coordinator.reconcile.copies import Copier
from coordinator.reconcile.damaged import damaged_blobs, is_any_damaged
from coordinator.reconcile.facts import Copy, Facts
from coordinator.reconcile.job_runs import StepProgress
from coordinator.reconcile.recount import recount
from coordinator.reconcile.target_queues import RunningWork, work_through
from metadata.model.placement import choose
from metadata.model.replica_records import ReplicaCounts, ShortBlob, ShortPage
from metadata.protocol.queries import GetReplicaCounts, ListShortBlobs

PAGE_ROWS = 100


def plan_repair(blob: ShortBlob, facts: Facts, *, into_reserve: bool = True) -> list[Copy]:
    """Plan the copies of a blob; none without a source or without a target.

    A node that has yet to delete the blob is no target: the log would reject it. `into_reserve`: if too few
    nodes have room, nodes that would use their reserve are targets too. If no node has a complete replica,
    one copy is made first, on a node with a damaged one: then the others have a complete source.
    """
    if not blob.holders:
        return plan_salvage(blob, facts)
    sources = (*facts.sources(blob.holders), *facts.sources(blob.damaged))
    good = facts.counting_holders(blob.holders)
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
    """Plan one copy of a blob without a complete replica, from all reachable damaged copies.

    Each may have bytes that no other has.
    """
    sources = tuple(node_id for node_id in blob.damaged if node_id in facts.reachable)
    able = [c for c in facts.candidates if c.node_id not in blob.doomed and c.can_repair(blob.size_bytes)]
    nearest = [c for c in able if c.node_id in sources] or able
    if not sources or not nearest:
        return []
    (target,) = choose(blob.sha256, nearest, 1)
    return [Copy(blob.sha256, blob.size_bytes, target, sources, needs_all=True)]


def lacks_room(blob: ShortBlob, facts: Facts, copies: Sequence[Copy]) -> bool:
    """Return whether more copies were possible if more nodes, or nodes with more room, accepted them."""
    return (
        bool(facts.sources(blob.holders))
        and len(facts.counting_holders(blob.holders)) + len(copies) < facts.wanted
    )


async def repair(context: ReconcileContext, progress: StepProgress) -> None:
    """Do one pass over the blobs that lack replicas, including new ones.

    The result: looked_at, copied, bytes; failed copies; no_room: blobs for which too few nodes have room;
    waiting: blobs that wait, because the possible nodes failed recently; left: blobs that still lack
    replicas, including those that cannot get any now, counted to 10,000; lost: blobs without any replica;
    incomplete: blobs with bytes (lost_bytes in total) that are damaged in every copy.
    """
    progress.count_left = lambda: _left(context)
    await recount(context.driver)
    copier = Copier(context, progress)

    def begin(crew: RunningWork, blob: ShortBlob) -> bool:
        if crew.is_at(blob.sha256):  # it lacks fewer after a copy of it was made, and is listed again
            return True

        def plan_again(facts: Facts) -> list[Copy]:
            return plan_repair(_as_it_is(context, blob), facts)

        facts = context.facts()
        copies = copier.choose(facts, blob.sha256, blob.size_bytes, partial(plan_repair, blob))
        if copies is None:
            return False
        if not crew.readings:
            progress.add(**_counts(blob, facts, copies))
        if copies:
            crew.begin(blob.sha256, lambda: copier.make(copies, plan_again))
        return True

    await work_through(lambda: _all(context), begin)
    counts = await context.ask(GetReplicaCounts(), ReplicaCounts)
    progress.result |= {"lost": counts.lost, "incomplete": counts.gone, "lost_bytes": counts.gone_bytes}


def is_due(context: ReconcileContext) -> bool:
    """Return whether a blob lacks replicas that can be created."""
    page = context.ask_applied(_first(context.facts(), rows=1), ShortPage)
    return bool(page.blobs) or is_any_damaged(context) or context.store.is_recount_due()


def _as_it_is(context: ReconcileContext, blob: ShortBlob) -> ShortBlob:
    """Return the blob with its current holders."""
    record = context.blob(blob.sha256)
    if record is None:
        return blob
    return msgspec.structs.replace(blob, holders=record.replicas, damaged=record.damaged)


def _counts(blob: ShortBlob, facts: Facts, copies: Sequence[Copy]) -> dict[str, int]:
    if not lacks_room(blob, facts, copies):
        return {"looked_at": 1}
    able = plan_repair(blob, facts)  # as if no node had failed
    return {
        "looked_at": 1,
        "no_room": int(lacks_room(blob, facts, able)),
        "waiting": int(len(copies) < len(able)),
    }


def _left(context: ReconcileContext) -> int:
    missing_min = context.facts().missing_min
    short = context.ask_applied(GetReplicaCounts(), ReplicaCounts).short
    return sum(blobs for missing, blobs in short.items() if missing >= missing_min)


async def _all(context: ReconcileContext) -> AsyncIterator[ShortBlob]:
    """Yield all blobs to repair, first those without a complete replica, as the most endangered."""
    async for blob in damaged_blobs(context):
        yield blob
    async for blob in _short(context):
        yield blob


async def _short(context: ReconcileContext) -> AsyncIterator[ShortBlob]:
    query = _first(context.facts(), rows=PAGE_ROWS)
    while True:
        page = await context.ask(query, ShortPage)
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
    """Return the query for the first page, after blobs without any replica."""
    return ListShortBlobs(after_missing=facts.replicas, missing_min=facts.missing_min, limit=rows)
