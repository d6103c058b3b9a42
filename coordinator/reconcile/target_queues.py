"""Work on a long list, taken in its order, without that the slowest holds up the others.

What would only wait, since its targets have enough to do, is passed over for what comes after it, at a
bounded pace: to look past everything for the sake of a target that has nothing to do would cost the leader
more than the work. The list is read again from its head while work is under way, so that what was passed
over, or is new, does not wait for the end of one large copy.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

AT_ONCE_MAX = 1000  # pieces of work that are under way or wait for their turn
LOOKS_PAST_MAX = 1000.0  # that are saved up
LOOKS_PAST_PER_S = 100.0  # 10 ms of a leader
LOOK_AGAIN_S = 0.1  # for a target that has become free
READ_AGAIN_S = 10.0  # between two readings of the list, and
READ_AGAIN_FACTOR = 10.0  # times as long as the last one took

_T = TypeVar("_T")


class Crew:
    """The work in progress of one run: one task for each key."""

    def __init__(self, group: asyncio.TaskGroup) -> None:
        self._group = group
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ended = asyncio.Event()
        self.readings = 0  # of the list, that have ended

    def __len__(self) -> int:
        return len(self._tasks)

    def is_at(self, key: str) -> bool:
        """Whether this is under way."""
        return key in self._tasks

    def begin(self, key: str, work: Callable[[], Awaitable[object]]) -> None:
        """Start work, concurrently with the rest."""
        assert key not in self._tasks

        async def done() -> None:
            try:
                await work()
            finally:
                del self._tasks[key]
                self._ended.set()

        self._tasks[key] = self._group.create_task(done())

    async def wait(self, timeout_s: float) -> None:
        """Wait until more work has ended, or the time is over."""
        self._ended.clear()
        try:
            async with asyncio.timeout(timeout_s):
                await self._ended.wait()
        except TimeoutError:
            return

    async def wait_until_idle(self, timeout_s: float) -> bool:
        """Wait until no work is in progress, or the time is over; return whether none is."""
        until_s = time.monotonic() + timeout_s
        while self._tasks and (left_s := until_s - time.monotonic()) > 0:
            await self.wait(left_s)
        return not self._tasks


class _LooksPast:
    """How many may be passed over now."""

    def __init__(self) -> None:
        self._left, self._at_s = LOOKS_PAST_MAX, time.monotonic()

    def take(self) -> bool:
        """Whether one more may."""
        now_s = time.monotonic()
        self._left = min(self._left + LOOKS_PAST_PER_S * (now_s - self._at_s), LOOKS_PAST_MAX)
        self._at_s = now_s
        if self._left < 1:
            return False
        self._left -= 1
        return True


async def work_through(
    listing: Callable[[], AsyncIterator[_T]],
    begin: Callable[[Crew, _T], bool],
    *,
    goes_on: Callable[[], bool] = lambda: True,
) -> None:
    """Begin with each of a list, and wait until all is done.

    `begin` says whether that could be done, or nothing is to be done; False for what would only wait.
    `goes_on` is asked before each. Raises a group with what made one fail.
    """
    looks_past = _LooksPast()
    async with asyncio.TaskGroup() as group:
        crew = Crew(group)
        while goes_on():
            began_at_s, is_complete = time.monotonic(), True
            async for item in listing():
                if not goes_on():
                    break
                is_complete = await _begun(crew, begin, item, looks_past) and is_complete
            crew.readings += 1
            rest_s = max(READ_AGAIN_S, READ_AGAIN_FACTOR * (time.monotonic() - began_at_s))
            if await crew.wait_until_idle(rest_s) and is_complete:
                return


async def _begun(crew: Crew, begin: Callable[[Crew, _T], bool], item: _T, looks_past: _LooksPast) -> bool:
    """Whether it was not passed over."""
    while True:
        if len(crew) < AT_ONCE_MAX:
            if begin(crew, item):
                return True
            if looks_past.take():
                return False
        await crew.wait(LOOK_AGAIN_S)
