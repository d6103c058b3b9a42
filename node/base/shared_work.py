"""Work that several requests wait for: begun once by its key, and shared by all who ask for it meanwhile.

Whoever asks waits as long as it wants. Work that takes longer goes on, and they come back for it. So a client
that lost the connection, and asks again, neither begins it a second time nor has to wait for the end of the
first. Apart: it knows of no request. It belongs to none of those who ask either: none of them is cancelled
with another, and what the last one left behind ends by the rule of its kind, or with `close`.
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
    """The work has not ended in time, and goes on.

    `moved`: a number that stays the same only while this work, or what it waits for, stands still.
    """

    def __init__(self, moved: int) -> None:
        super().__init__("This is still in progress here. Ask again.", retry_after_s=1)
        self.moved = moved


@dataclass(slots=True, eq=False)
class _Work(Generic[_T]):
    """One piece of work. `waiting`: how many wait for it now. `giving_up`: due when nobody does for long."""

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
        """`what`: names the kind, in the plural. `at_most`: how many there may be, what is kept included.

        `linger_s`: work ends once nobody has waited for it so long; None for what goes on by itself.
        `keep_s`: so long what it came to is kept, for the first who comes back for it.
        """
        self.moved = 0
        self._what = what
        self._at_most = at_most
        self._linger_s = linger_s
        self._keep_s = keep_s
        self._works: dict[_K, _Work[_T]] = {}
        self._tasks: dict[asyncio.Task[_T], _K] = {}  # also of what was given up and has yet to end
        self._is_closed = False

    def __contains__(self, key: _K) -> bool:
        """Whether such work is under way, or what it came to is kept."""
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
            await asyncio.wait({found.task}, timeout=answer_s)  # who is cancelled here ends nobody else's
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
        """Something got so much further, in any unit.

        Whatever moves counts for work that waits for its turn, or takes none. `key`: of work whose turn has
        come, for which from then on only that counts; 0 when it comes.
        """
        self.moved += amount
        if key is not None and (found := self._works.get(key)) is not None:
            found.moved = (found.moved or 0) + amount

    async def close(self) -> None:
        """End what is under way, and begin nothing any more."""
        self._is_closed = True
        for task in self._tasks:
            if not task.cancelling():  # else it ends already, and what it does for that is not cut short
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
            if given_up:  # and may take long to end
                await asyncio.wait(given_up)
            return await work()

        begun = self._works[key] = _Work(asyncio.create_task(run(), name=self._what))
        self._tasks[begun.task] = key
        begun.task.add_done_callback(partial(self._ended, key, begun))
        return begun

    def _ended(self, key: _K, work: _Work[_T], task: asyncio.Task[_T]) -> None:
        del self._tasks[task]
        failure = None if task.cancelled() else task.exception()  # seen: nobody may come back for it
        if failure is not None and not work.waiting:
            facts = {"work": str(key), "reason": str(failure)}
            _log.warning("one of the %s failed while nobody waited for it", self._what, extra=facts)
        if self._keep_s and not task.cancelled():
            asyncio.get_running_loop().call_later(self._keep_s, self._forget, key, work)
        else:
            self._forget(key, work)

    def _give_up(self, key: _K, work: _Work[_T]) -> None:
        work.is_given_up = work.task.cancel()
        if work.is_given_up:
            _log.info("gave up one of the %s: nobody asks for it", self._what, extra={"work": str(key)})

    def _forget(self, key: _K, work: _Work[_T]) -> None:
        if self._works.get(key) is work:
            del self._works[key]
