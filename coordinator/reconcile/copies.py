"""Replicas made by order: a node fetches a blob, says that it is durable, and the log names the node for it.

`as_of` of the change is known before the node is asked: what the node drops after it has answered refuses the
change.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

from ca.errors import FilestoreError, NotFound
from coordinator.commands import AddReplica
from coordinator.job_runs import Progress
from coordinator.node_orders import OrderFailed
from coordinator.reconcile.facts import Copy
from coordinator.reconcile.means import Means
from coordinator.rpc import Refused

BLOBS_AT_ONCE = 8
COPIES_PER_TARGET = 2  # a node fetches no more at once
PULL_S = 60.0  # for a node to begin; beside the time that the bytes take
BYTES_PER_S_MIN = 1_000_000  # slower than the smallest budget of a node
ANSWER_S = 60.0  # a node says sooner than this that it has not got to the end yet
ASK_AGAIN_S = 0.5

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class Copier:
    """Makes copies for one run, and counts them there: copied, bytes, failed."""

    def __init__(self, means: Means, progress: Progress) -> None:
        self._means = means
        self._progress = progress
        self._turns: dict[str, asyncio.Semaphore] = {}  # by target

    async def make_all(self, copies: Sequence[Copy]) -> bool:
        """Whether all of them are made. Raises a group of Interrupted."""
        async with asyncio.TaskGroup() as group:
            made = [group.create_task(self._make(copy)) for copy in copies]
        if copies:
            await self._progress.note()
        return all(task.result() for task in made)

    async def _make(self, copy: Copy) -> bool:
        turn = self._turns.setdefault(copy.target, asyncio.Semaphore(COPIES_PER_TARGET))
        facts = {"sha256": copy.sha256, "target": copy.target}
        try:
            async with turn:
                await self._pull_and_add(copy)
        except OrderFailed as failure:
            _log.warning("a replica could not be made: %s", failure, extra=facts)
        except Refused as refusal:
            if refusal.code == NotFound.code:  # no file refers to it any more
                self._progress.add(skipped=1)
                return False
            _log.warning("a replica was not recorded: %s", refusal.details, extra=facts)
        except FilestoreError as error:
            _log.warning("a replica could not be made: %s", error.details, extra=facts)
        else:
            self._progress.add(copied=1, bytes=copy.size_bytes)
            return True
        self._progress.add(failed=1)
        return False

    async def _pull_and_add(self, copy: Copy) -> None:
        """Raises OrderFailed, Refused, NotFound, Interrupted."""
        as_of = self._means.driver.applied_index
        pull_s = PULL_S + copy.size_bytes / BYTES_PER_S_MIN
        try:
            async with asyncio.timeout(pull_s):
                while not await self._means.orders.pull(
                    self._means.node(copy.target),
                    copy.sha256,
                    copy.size_bytes,
                    copy.sources,
                    timeout_s=ANSWER_S,
                ):
                    await asyncio.sleep(ASK_AGAIN_S)
        except TimeoutError as error:
            raise OrderFailed(copy.target, f"took longer than {pull_s:.0f} s") from error
        command = AddReplica(sha256=copy.sha256, node_id=copy.target, as_of=as_of)
        await self._progress.apply(command, int)


async def in_parallel(
    items: AsyncIterator[_T], work: Callable[[_T], Awaitable[None]], *, at_once: int = BLOBS_AT_ONCE
) -> None:
    """Work on every item, some at once, taken in their order. Raises a group with what made one fail."""
    taking = asyncio.Lock()

    async def worker() -> None:
        while True:
            async with taking:
                try:
                    item = await anext(items)
                except StopAsyncIteration:
                    return
            await work(item)

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(worker())
