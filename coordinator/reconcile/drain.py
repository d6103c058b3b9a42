"""Drain nodes: create enough replicas of their blobs on other nodes, and only then release theirs.

A replica is released by a command that fails while too few others count, so no blob falls below the wanted
number of replicas, or the write quorum. The log may be wrong about the others, if a disk was lost and its
node has not reported it yet: they are asked first.

Released replicas stay on the node's disk until the node has deleted them. A node that is not draining, or not
any more, deletes only a limited part at once without an operator's answer (node/custody/context.py). So
replicas are released in small rounds, and none of a node that does not delete them.

Unfinished uploads go at the same time (`upload_moves.py`).
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial

import uuid_utils

from ca.errors import Conflict, NotFound
from coordinator.reconcile import upload_moves
from coordinator.reconcile.context import ReconcileContext
from coordinator.reconcile.copies import Copier
from coordinator.reconcile.facts import Copy, Facts
from coordinator.reconcile.job_runs import StepProgress
from coordinator.reconcile.recount import recount
from coordinator.reconcile.repair import plan_repair
from coordinator.reconcile.target_queues import RunningWork, work_through
from coordinator.reconcile.upload_moves import forget_left, move_uploads
from coordinator.rpc.node_client import OrderFailed
from coordinator.rpc.server import Refused
from metadata.model.records import DOWN, BlobRecord, NodeRecord
from metadata.model.replica_records import DeletionPage, HeldReplica, NodeReplicas, ReplicaPage, ShortBlob
from metadata.protocol.commands import ReleaseReplica
from metadata.protocol.queries import GetNodeReplicas, ListReplicas, ListReplicasToDelete, held_pages
from runtime.lifetime import end_tasks

PAGE_ROWS = 100
DROP_POLL_S = 0.5
RELEASED_MAX = 90  # in one round: with pending ones fewer than 100, which a node deletes without an operator
RELEASES_AT_ONCE = 8
REMEMBERED_MAX = 100_000  # replicas that one run remembers
DROP_POLLS_MAX = 60  # for the node to delete released replicas, in one run

_log = logging.getLogger(__name__)


def plan_release(blob: BlobRecord, facts: Facts) -> list[Copy]:
    """Return the copies that a blob needs before a replica that does not count can be released."""
    lacking = facts.wanted - len(facts.counting_holders(blob.replicas))
    short = ShortBlob(
        sha256=blob.sha256, size_bytes=blob.size_bytes, missing=lacking, holders=blob.replicas, doomed=[]
    )
    return plan_repair(short, facts, into_reserve=False)


async def drain(context: ReconcileContext, progress: StepProgress) -> None:
    """Do one pass over every draining node, or the one that the run names.

    The result: looked_at, copied, bytes, released, spared; failed copies; unconfirmed: replicas that stay
    since others are not where the log says; left: replicas still there; of uploads as `move_uploads` says.
    Raises NotFound, and Conflict for a node that is not draining, or down.
    """
    named = progress.parameters.node_id
    if named and named not in draining_nodes(context.facts()):
        why = (
            "is not draining"
            if context.node(named).state != DOWN
            else ("is down: repair creates its replicas on other nodes")
        )
        raise Conflict(f"The node {named} {why}.")
    await recount(context.driver)
    progress.count_left = lambda: sum(_held(context, node_id) for node_id in draining_nodes(context.facts()))
    forget_left(progress)
    async with asyncio.TaskGroup() as group:  # a node that hangs delays no other
        for node_id in [named] if named else draining_nodes(context.facts()):
            group.create_task(move_uploads(context, progress, node_id))
            group.create_task(_empty(context, progress, node_id))


def draining_nodes(facts: Facts) -> list[str]:
    """Return the nodes to empty.

    A node that is down is not emptied: its replicas do not count, so repair creates others.
    """
    return [node.node_id for node in facts.nodes if node.draining and node.state != DOWN]


def is_due(context: ReconcileContext) -> bool:
    """Return whether a draining node holds anything. Called every few seconds, so it counts nothing."""
    nodes = draining_nodes(context.facts())
    return any(_holds(context, node_id) or upload_moves.is_due(context, node_id) for node_id in nodes)


async def release(context: ReconcileContext, progress: StepProgress, sha256: str, node_id: str) -> bool:
    """Let the log mark a replica for deletion, if enough others count and exist; return whether it does."""
    facts = context.facts()
    if not await _is_elsewhere(context, facts, sha256, node_id):
        _log.warning(
            "a replica is not released: others are missing", extra={"sha256": sha256, "holder": node_id}
        )
        progress.add(unconfirmed=1)
        return False
    command = ReleaseReplica(sha256=sha256, node_id=node_id, others_min=facts.wanted)
    try:
        await progress.apply(command, type(None))
    except Refused as refusal:
        _log.info(
            "a replica is not released: %s", refusal.details, extra={"sha256": sha256, "holder": node_id}
        )
        return refusal.code == NotFound.code
    progress.add(released=1)
    return True


async def iterate_held(context: ReconcileContext, node_id: str) -> AsyncIterator[HeldReplica]:
    """Yield the replicas of a node that are not marked for deletion, in the order of the sha256."""
    async for page in held_pages(lambda query: context.ask(query, ReplicaPage), node_id, rows=PAGE_ROWS):
        for replica in page:
            yield replica


class Rounds:
    """Releases the replicas of a node in rounds, as long as the node deletes released ones."""

    def __init__(self, context: ReconcileContext, progress: StepProgress, node_id: str) -> None:
        self._context, self._progress, self._node_id = context, progress, node_id
        self._turns = asyncio.Semaphore(RELEASES_AT_ONCE)
        self._dropping = asyncio.Lock()
        self._released = 0  # in this round
        self._drops = True

    async def run(
        self,
        begin: Callable[[RunningWork, HeldReplica], bool],
        *,
        goes_on: Callable[[], bool] = lambda: True,
    ) -> None:
        """Begin with each replica, as `work_through` does.

        Stop releasing if the node does not delete them.
        """
        if await self._is_dropping() and not await self._have_dropped():
            return
        listing = partial(iterate_held, self._context, self._node_id)
        await work_through(listing, begin, goes_on=lambda: self._drops and goes_on())
        if self._released and self._drops:
            await self._have_dropped()

    async def release(self, sha256: str) -> bool:
        """Let the log mark the replica for deletion, if enough others count and exist.

        Return whether it does. Before the first of a round the node must have deleted those of the previous
        one.
        """
        async with self._turns:
            async with self._dropping:
                if self._drops and (released := self._released) >= RELEASED_MAX:
                    self._drops = await self._have_dropped()
                    self._released -= released  # others were released meanwhile, which it may not have seen
            if not self._drops:
                return False
            is_released = await release(self._context, self._progress, sha256, self._node_id)
            self._released += is_released  # others may have relied on it meanwhile
            await self._progress.note()
            return is_released

    async def _is_dropping(self) -> bool:
        """Return whether earlier marked replicas are waiting there."""
        page = await self._context.ask(ListReplicasToDelete(node_id=self._node_id, limit=1), DeletionPage)
        return bool(page.replicas)

    async def _have_dropped(self) -> bool:
        return await delete_marked(self._context, self._progress, self._node_id)


async def delete_marked(context: ReconcileContext, progress: StepProgress, node_id: str) -> bool:
    """Make a node delete its marked replicas, and wait for that for a while; return whether it has.

    Replicas that it spares, as a process was just told of them, are counted: a later run releases them again.
    """
    order_id = str(uuid_utils.uuid7())
    for _ in range(DROP_POLLS_MAX):
        try:
            state = await context.orders.custody(context.node(node_id), "collect", order_id)
        except (OrderFailed, NotFound) as failure:
            _log.info("a node does not delete marked replicas now: %s", failure)
            return False
        if state.state != "running":
            progress.add(spared=state.counts.get("spared", 0))
            if state.reason:
                _log.warning("the node %s does not delete marked replicas: %s", node_id, state.reason)
            return state.state == "completed"
        await asyncio.sleep(DROP_POLL_S)
    return False


async def _is_elsewhere(context: ReconcileContext, facts: Facts, sha256: str, node_id: str) -> bool:
    """Return whether as many others as must count confirm the blob; True for one that no file needs."""
    blob = context.blob(sha256)
    if blob is None:
        return True
    good = facts.counting_holders(blob.replicas)
    others = [node for node in facts.nodes if node.node_id in good and node.node_id != node_id]
    return await _say_yes(context, others, blob, max(facts.wanted, facts.write_quorum))


async def _say_yes(
    context: ReconcileContext, nodes: Sequence[NodeRecord], blob: BlobRecord, count_min: int
) -> bool:
    """Return whether at least `count_min` of these nodes confirm that they hold a blob.

    It does not wait for the rest after that, and nodes that did not answer recently are not asked.
    """
    quiet = context.failures.answers
    asked = [
        asyncio.create_task(_says_yes(context, node, blob))
        for node in nodes
        if not quiet.is_resting(node.node_id)
    ]
    count = 0
    try:
        for answer in asyncio.as_completed(asked):
            count += await answer
            if count >= count_min:
                return True
    finally:
        await end_tasks(asked)
    return count >= count_min


async def _says_yes(context: ReconcileContext, node: NodeRecord, blob: BlobRecord) -> bool:
    try:
        is_there = await context.orders.holds(node, blob.sha256, blob.size_bytes)
    except OrderFailed as failure:
        context.failures.answers.note_failure(node.node_id, failure.reason)
        return False
    context.failures.answers.note_success(node.node_id)
    return is_there


async def _empty(context: ReconcileContext, progress: StepProgress, node_id: str) -> None:
    copier = Copier(context, progress)
    rounds = Rounds(context, progress, node_id)
    unreleased: set[str] = set()  # that could not be released

    def begin(crew: RunningWork, replica: HeldReplica) -> bool:
        sha256 = replica.sha256
        facts = context.facts()
        if crew.is_at(sha256) or sha256 in unreleased or node_id not in draining_nodes(facts):
            return True  # the drain of the last node was cancelled

        def plan(facts: Facts) -> list[Copy]:
            blob = context.blob(sha256)
            return [] if blob is None else plan_release(blob, facts)

        async def move() -> None:
            is_free = await copier.make(copies or [], plan) and node_id in draining_nodes(context.facts())
            if not (is_free and await rounds.release(sha256)) and len(unreleased) < REMEMBERED_MAX:
                unreleased.add(sha256)  # the next run tries again

        copies = copier.choose(facts, sha256, replica.size_bytes, plan)
        if copies is None:
            return False
        progress.add(looked_at=1)
        if copies or not _lacks(context, facts, sha256):
            crew.begin(sha256, move)
        elif len(unreleased) < REMEMBERED_MAX:
            unreleased.add(sha256)
        return True

    await rounds.run(begin)


def _lacks(context: ReconcileContext, facts: Facts, sha256: str) -> bool:
    """Return whether too few others count: the log would reject a release."""
    blob = context.blob(sha256)
    return blob is not None and len(facts.counting_holders(blob.replicas)) < facts.wanted


def _holds(context: ReconcileContext, node_id: str) -> bool:
    return bool(context.ask_applied(ListReplicas(node_id=node_id, limit=1), ReplicaPage).replicas)


def _held(context: ReconcileContext, node_id: str) -> int:
    """Return how many replicas a node has, including those marked for deletion."""
    counts = context.ask_applied(GetNodeReplicas(node_id=node_id), NodeReplicas)
    return counts.replicas + counts.doomed
