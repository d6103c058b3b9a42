"""The jobs that are passes of the nodes: gc, scrub and compare.

They delete blobs that no file uses (gc), read replicas to find damage (scrub), and compare the disks with the
log (compare).

Tested by tests/unit/coordinator/reconcile/test_gc_safety_limits.py.
"""

import asyncio
from collections.abc import Collection

from ca.errors import Conflict
from coordinator.reconcile.context import ReconcileContext
from coordinator.reconcile.facts import Facts
from coordinator.reconcile.job_runs import StepProgress
from coordinator.reconcile.node_passes import HOW_TO_GO_ON, PassOrder, order_all
from coordinator.rpc.node_client import Custody
from metadata.model.records import DOWN
from metadata.model.replica_records import Collected, NodeReplicas, ReplicaCounts
from metadata.model.safety_limits import SAFETY_BLOBS_MAX, SAFETY_SHARE_MAX, SAFETY_WAIT_S, is_too_many
from metadata.protocol.commands import Collect
from metadata.protocol.queries import CountCollectable, GetNodeReplicas, GetReplicaCounts

COLLECT_ROWS = 200
COLLECT_REST_S = 0.02  # after each step, as in `expire`


async def gc(context: ReconcileContext, progress: StepProgress) -> None:
    """Mark the replicas of blobs that no file refers to, and make the nodes delete marked ones.

    The result: blobs, blob_bytes and replicas that were marked; and what the nodes have counted: dropped,
    bytes, spared, left. Raises Conflict if that would be too much at once; then only blobs that were unused
    for a week are deleted, as there may be no operator to answer, and disks must not fill up.
    """
    grace_ms, yes_really = progress.parameters.grace_ms(context.grace_ms), progress.parameters.yes_really
    overdue_ms = grace_ms + int(SAFETY_WAIT_S * 1000)
    stopped: Conflict | None = None
    try:
        if not yes_really:
            await _mark_for_deletion(progress, overdue_ms)
            await _check_safety_limits(context, grace_ms)
        await _mark_for_deletion(progress, grace_ms)
    except Conflict as conflict:
        stopped = conflict
    overdue = CountCollectable(grace_ms=overdue_ms, limit=1, is_doomed=True)
    is_overdue = await context.ask(overdue, int) > 0 and not context.clock_doubt()
    if stopped is None or is_overdue:
        counts = await context.ask(GetReplicaCounts(), ReplicaCounts)
        is_sure = yes_really or is_overdue
        await _order(context, progress, "collect", sorted(counts.doomed), yes_really=is_sure)
    if stopped is not None:
        raise stopped


async def _mark_for_deletion(progress: StepProgress, grace_ms: int) -> None:
    while True:
        step = await progress.apply(Collect(rows_max=COLLECT_ROWS, grace_ms=grace_ms), Collected)
        progress.add(blobs=step.blobs, blob_bytes=step.bytes, replicas=step.replicas)
        if not step.more:
            return
        await progress.note()
        await asyncio.sleep(COLLECT_REST_S)


async def scrub(context: ReconcileContext, progress: StepProgress) -> None:
    """Make nodes read replicas that they have not read for a long time.

    The result: looked, bytes, damaged, unheard, left.
    """
    await _order_named(context, progress, "scrub")


async def compare(context: ReconcileContext, progress: StepProgress) -> None:
    """Make nodes compare their disks with the log.

    The result: looked, missing, restored, unknown, quarantined, read_bytes, unheard, left.
    """
    await _order_named(context, progress, "compare")


def is_gc_due(context: ReconcileContext) -> bool:
    """Return whether there is a replica to mark or to delete."""
    collectable = context.ask_applied(CountCollectable(grace_ms=context.grace_ms, limit=1), int)
    return collectable > 0 or bool(context.ask_applied(GetReplicaCounts(), ReplicaCounts).doomed)


async def _check_safety_limits(context: ReconcileContext, grace_ms: int) -> None:
    """Raise Conflict if too many blobs would be removed."""
    going = await context.ask(CountCollectable(grace_ms=grace_ms, limit=SAFETY_BLOBS_MAX + 1), int)
    if going <= SAFETY_BLOBS_MAX:
        return
    _, blobs, _ = context.store.totals()
    limit = int(blobs * SAFETY_SHARE_MAX) + SAFETY_BLOBS_MAX + 2
    going = await context.ask(CountCollectable(grace_ms=grace_ms, limit=limit), int)
    if is_too_many(going, blobs + going):
        raise Conflict(f"At least {going} blobs would be removed, of {blobs} in use. {HOW_TO_GO_ON}")


def _named(context: ReconcileContext, progress: StepProgress) -> list[str]:
    """Return the node that the run names, or all that answer. Raises NotFound, Conflict if it is down."""
    if (named := progress.parameters.node_id) != "":
        if context.node(named).state == DOWN:
            raise Conflict(f"{named} is down, so it cannot be checked.")
        return [named]
    return sorted(context.facts().reachable)


def skipped_nodes(facts: Facts, asked: Collection[str]) -> list[str]:
    """Return the nodes that may hold replicas and are not among `asked`."""
    return [n.node_id for n in facts.nodes if n.peer_port and n.node_id not in asked]


async def _order_named(context: ReconcileContext, progress: StepProgress, kind: Custody) -> None:
    node_ids = _named(context, progress)
    _count_left(context, progress)
    await _order(context, progress, kind, node_ids)
    if not progress.parameters.node_id:
        silent = skipped_nodes(context.facts(), node_ids)
        progress.result["unheard"] = int(progress.result["unheard"]) + len(silent)


def _count_left(context: ReconcileContext, progress: StepProgress) -> None:
    """Set the replicas left: those of the nodes when the run began, minus those examined since."""
    held = sum(
        context.ask_applied(GetNodeReplicas(node_id=node_id), NodeReplicas).replicas
        for node_id in _named(context, progress)
    )
    progress.count_left = lambda: max(held - int(progress.result.get("looked", 0)), 0)


async def _order(
    context: ReconcileContext,
    progress: StepProgress,
    kind: Custody,
    node_ids: list[str],
    *,
    yes_really: bool = False,
) -> None:
    order = PassOrder(kind, progress.run_id, yes_really=yes_really or progress.parameters.yes_really)
    await order_all(context, progress, order, node_ids)
    if progress.parameters.node_id and progress.result["unheard"]:
        raise Conflict(f"{progress.parameters.node_id} did not report the end of its pass.")
