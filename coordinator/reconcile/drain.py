"""Drain: what a draining node holds gets enough replicas elsewhere, and only then leaves it.

A replica is released by a command that refuses while too few others count, so nothing comes below the wanted
number of replicas, or the write quorum, on the way. The log may be wrong about the others, if a disk was lost
and its node has yet to say so: they are asked first.

What was released lies on the node's disk until it has dropped it. A node that does not drain, or not any more
since somebody has thought better of it, drops only so much at once without a question (node/keeping.py). So
replicas are released by rounds of a few, and no more of a node that does not drop them.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

import uuid_utils

from ca.errors import Conflict, NotFound
from coordinator.commands import ReleaseReplica
from coordinator.held_pages import held_pages
from coordinator.job_runs import Progress
from coordinator.node_orders import OrderFailed
from coordinator.queries import GetNodeReplicas, ListDoomed, ListReplicas
from coordinator.reconcile.copies import Copier, in_parallel
from coordinator.reconcile.facts import Copy, Facts
from coordinator.reconcile.means import Means
from coordinator.reconcile.recounting import recount
from coordinator.reconcile.repair import plan_repair
from coordinator.records import DOWN, BlobRecord
from coordinator.replica_records import DoomedPage, HeldReplica, NodeReplicas, ReplicaPage, ShortBlob
from coordinator.rpc import Refused

PAGE_ROWS = 100
DROP_POLL_S = 0.5
RELEASED_MAX = 90  # in one round: with those under way fewer than 100, which a node drops without a question
DROP_POLLS_MAX = 60  # for the node to drop what was released, in one run

_log = logging.getLogger(__name__)


def plan_release(blob: BlobRecord, facts: Facts) -> list[Copy]:
    """The copies that a blob needs before a replica that does not count can be released."""
    lacking = facts.wanted - len(facts.good(blob.replicas))
    short = ShortBlob(
        sha256=blob.sha256, size_bytes=blob.size_bytes, missing=lacking, holders=blob.replicas, doomed=[]
    )
    return plan_repair(short, facts, into_reserve=False)


async def drain(means: Means, progress: Progress) -> None:
    """One pass over every draining node, or the one that the run names.

    The result: looked_at, copied, bytes, released, spared; failed copies; unconfirmed: replicas that stay
    since others are not where the log says; left: replicas still there.
    Raises NotFound, and Conflict for a node that is not draining, or down.
    """
    named = progress.parameters.node_id
    if named and named not in draining(means.facts()):
        why = "is not draining" if means.node(named).state != DOWN else "is down: repair makes its replicas"
        raise Conflict(f"The node {named} {why}.")
    await recount(means.driver)
    progress.count_left = lambda: sum(_held(means, node_id) for node_id in draining(means.facts()))
    for node_id in [named] if named else draining(means.facts()):
        await _empty(means, progress, node_id)


def draining(facts: Facts) -> list[str]:
    """The nodes that are to be emptied. Nobody empties one that is down: its replicas count for nothing, so
    that repair makes others.
    """
    return [node.node_id for node in facts.nodes if node.draining and node.state != DOWN]


def is_due(means: Means) -> bool:
    """Whether a draining node holds anything. Asked every few seconds: nothing is counted for it."""
    return any(_holds(means, node_id) for node_id in draining(means.facts()))


async def release(means: Means, progress: Progress, sha256: str, node_id: str) -> bool:
    """Have the log doom a replica, if enough others count and are there; whether it does."""
    facts = means.facts()
    if not await _is_elsewhere(means, facts, sha256, node_id):
        _log.warning("a replica stays: others are not there", extra={"sha256": sha256, "holder": node_id})
        progress.add(unconfirmed=1)
        return False
    command = ReleaseReplica(sha256=sha256, node_id=node_id, others_min=facts.wanted)
    try:
        await progress.apply(command, type(None))
    except Refused as refusal:
        _log.info("a replica stays: %s", refusal.details, extra={"sha256": sha256, "holder": node_id})
        return refusal.code == NotFound.code
    progress.add(released=1)
    return True


async def held_by(means: Means, node_id: str) -> AsyncIterator[HeldReplica]:
    """What the log names a node for and does not have it drop, in the order of the sha256."""
    async for page in held_pages(lambda query: means.ask(query, ReplicaPage), node_id, rows=PAGE_ROWS):
        for replica in page:
            yield replica


class Rounds:
    """Work on what the log names a node for, as long as the node drops what is released. `released`: count
    here what was released in this round.
    """

    def __init__(self, means: Means, progress: Progress, node_id: str) -> None:
        self._means, self._progress, self._node_id = means, progress, node_id
        self._replicas = held_by(means, node_id)
        self._is_last = False
        self.released = 0

    async def run(
        self,
        work: Callable[[HeldReplica], Awaitable[None]],
        *,
        goes_on: Callable[[], bool] = lambda: True,
    ) -> None:
        """Do `work` for each. `goes_on` is asked before each round."""
        if await self._is_dropping() and not await self._have_dropped():
            return
        while not self._is_last and goes_on():
            self.released = 0
            await in_parallel(self._round(), work)
            if self.released and not await self._have_dropped():
                return

    async def _round(self) -> AsyncIterator[HeldReplica]:
        """The next replicas, until enough of them were released."""
        while self.released < RELEASED_MAX:
            try:
                replica = await anext(self._replicas)
            except StopAsyncIteration:
                self._is_last = True
                return
            yield replica

    async def _is_dropping(self) -> bool:
        """Whether something is doomed there from before."""
        page = await self._means.ask(ListDoomed(node_id=self._node_id, limit=1), DoomedPage)
        return bool(page.replicas)

    async def _have_dropped(self) -> bool:
        return await have_dropped(self._means, self._progress, self._node_id)


async def have_dropped(means: Means, progress: Progress, node_id: str) -> bool:
    """Have a node drop what is doomed there, and wait for a while until it has; whether it has.

    What it spares, since somebody was just told that it is there, is counted: a later run releases it again.
    """
    order_id = str(uuid_utils.uuid7())
    for _ in range(DROP_POLLS_MAX):
        try:
            state = await means.orders.custody(means.node(node_id), "collect", order_id)
        except (OrderFailed, NotFound) as failure:
            _log.info("a node does not drop what it should now: %s", failure)
            return False
        if state.state != "running":
            progress.add(spared=state.counts.get("spared", 0))
            if state.reason:
                _log.warning("the node %s does not drop what it should: %s", node_id, state.reason)
            return state.state == "completed"
        await asyncio.sleep(DROP_POLL_S)
    return False


async def _is_elsewhere(means: Means, facts: Facts, sha256: str, node_id: str) -> bool:
    """Whether as many others as must count say that they have the blob. True of one that no file needs."""
    blob = means.blob(sha256)
    if blob is None:
        return True
    others = [n for n in facts.nodes if n.node_id in facts.good(blob.replicas) and n.node_id != node_id]
    answers = await asyncio.gather(*(means.orders.holds(n, sha256, blob.size_bytes) for n in others))
    return sum(answers) >= max(facts.wanted, facts.write_quorum)


async def _empty(means: Means, progress: Progress, node_id: str) -> None:
    copier = Copier(means, progress)

    async def move(replica: HeldReplica) -> None:
        if node_id not in draining(means.facts()):  # somebody has thought better of it
            return
        progress.add(looked_at=1)
        blob = means.blob(replica.sha256)
        copies = [] if blob is None else plan_release(blob, means.facts())
        if await copier.make_all(copies):
            is_released = await release(means, progress, replica.sha256, node_id)
            rounds.released += is_released  # others may have counted on meanwhile
            await progress.note()

    rounds = Rounds(means, progress, node_id)
    await rounds.run(move)


def _holds(means: Means, node_id: str) -> bool:
    return bool(means.look(ListReplicas(node_id=node_id, limit=1), ReplicaPage).replicas)


def _held(means: Means, node_id: str) -> int:
    """Replicas of a node, doomed ones too."""
    counts = means.look(GetNodeReplicas(node_id=node_id), NodeReplicas)
    return counts.replicas + counts.doomed
