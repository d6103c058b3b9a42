"""Work that several requests wait for: started once per key, and shared by all who ask for it. Apart.

Each caller waits as long as it wants. Work that takes longer continues, and the caller can ask again. So a
client that lost its connection, and asks again, neither starts the work twice nor has to wait for the end of
the first request. This module knows nothing of requests. The work belongs to none of its callers: cancelling
one does not affect the others, and abandoned work ends by the rule of its kind, or with `close`.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Generic, TypeVar

from ca.errors import Unavailable

_K = TypeVar("_K")
_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class StillRunning(Unavailable):
    """The work has not ended in time, and continues.

    `moved` is a number that changes whenever this work, or what it waits for, makes progress.
    """

    def __init__(self, moved: int) -> None:
        super().__init__("This is still in progress here. Ask again.", retry_after_s=1)
        self.moved = moved


@dataclass(slots=True, eq=False)
class _Work(Generic[_T]):
    """One piece of work. `waiting`: the number of callers that wait now.

    `giving_up`: expires when there was none for long.
    """

    task: asyncio.Task[_T]
    waiting: int = 0
    moved: int | None = None  # None while it waits for its turn
    giving_up: asyncio.TimerHandle | None = None
    is_given_up: bool = False


class SharedWork(Generic[_K, _T]):
    """The work of one kind that is in progress, by key. For one loop; `close` ends it.

    `moved`: by all together.
    """

    def __init__(
        self, what: str, *, at_most: float = inf, linger_s: float | None = None, keep_s: float = 0.0
    ) -> None:
        """`what`: the name of the kind, in the plural. `at_most`: the limit, including kept results.

        `linger_s`: work ends after this time without a caller; None: it continues to its end. `keep_s`: how
        long a result is kept for the first caller that comes back.
        """
        self.moved = 0
        self._what = what
        self._at_most = at_most
        self._linger_s = linger_s
        self._keep_s = keep_s
        self._works: dict[_K, _Work[_T]] = {}
        self._tasks: dict[asyncio.Task[_T], _K] = {}  # including abandoned work that has not ended yet
        self._is_closed = False

    def __contains__(self, key: _K) -> bool:
        """Return whether such work is in progress, or its result is kept."""
        return key in self._works

    async def join(self, key: _K, work: Callable[[], Awaitable[_T]], *, answer_s: float | None = None) -> _T:
        """Return or raise the result of the work with this key, which is started unless it is in progress.

        Raises StillRunning after `answer_s`, if given; Unavailable if the work was ended, if there is too
        much of it, and after `close`.
        """
        found = self._works.get(key)
        if found is None or found.is_given_up:
            found = self._begin(key, work)
        if found.giving_up is not None:
            found.giving_up.cancel()
        found.waiting += 1
        try:
            # cancelling this caller does not end the work of others
            await asyncio.wait({found.task}, timeout=answer_s)
        finally:
            found.waiting -= 1
            if not found.waiting and self._linger_s is not None:
                loop = asyncio.get_running_loop()
                found.giving_up = loop.call_later(self._linger_s, self._give_up, key, found)
        if not found.task.done():
            raise StillRunning(self.moved if found.moved is None else found.moved)
        self._forget(key, found)
        if found.task.cancelled():
            raise Unavailable("This was interrupted. Ask again.", retry_after_s=1)
        return found.task.result()

    def count(self, amount: int, key: _K | None = None) -> None:
        """Record progress, in any unit.

        Any progress counts for work that waits for its turn. `key`: work whose turn has come; from then on,
        only its own progress counts. Call it with 0 when the turn comes.
        """
        self.moved += amount
        if key is not None and (found := self._works.get(key)) is not None:
            found.moved = (found.moved or 0) + amount

    async def close(self) -> None:
        """End all work, and start no more."""
        self._is_closed = True
        for task in self._tasks:
            if not task.cancelling():  # otherwise it ends already, and its cleanup is not cut short
                task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _begin(self, key: _K, work: Callable[[], Awaitable[_T]]) -> _Work[_T]:
        if self._is_closed:
            raise Unavailable("This node is stopping.", retry_after_s=1)
        if key not in self._works and len(self._works) >= self._at_most:
            raise Unavailable(f"Too many {self._what} are in progress.", retry_after_s=2)
        given_up = [task for task, earlier in self._tasks.items() if earlier == key]

        async def run() -> _T:
            if given_up:  # and its end may take long
                await asyncio.wait(given_up)
            return await work()

        begun = self._works[key] = _Work(asyncio.create_task(run(), name=self._what))
        self._tasks[begun.task] = key
        begun.task.add_done_callback(partial(self._ended, key, begun))
        return begun

    def _ended(self, key: _K, work: _Work[_T], task: asyncio.Task[_T]) -> None:
        del self._tasks[task]
        # retrieved, as no caller may come back for it
        failure = None if task.cancelled() else task.exception()
        if failure is not None and not work.waiting:
            facts = {"work": str(key), "reason": str(failure)}
            _log.warning("one of the %s failed while no request waited for it", self._what, extra=facts)
        if self._keep_s and not task.cancelled():
            asyncio.get_running_loop().call_later(self._keep_s, self._forget, key, work)
        else:
            self._forget(key, work)

    def _give_up(self, key: _K, work: _Work[_T]) -> None:
        work.is_given_up = work.task.cancel()
        if work.is_given_up:
            _log.info("gave up one of the %s: no request asks for it", self._what, extra={"work": str(key)})

    def _forget(self, key: _K, work: _Work[_T]) -> None:
        if self._works.get(key) is work:
            del self._works[key]
