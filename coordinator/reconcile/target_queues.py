"""Work on a long list, processed in order; a slow item does not block the others.

An item whose targets are all busy is skipped in favour of later ones, at a bounded pace: skipping everything
to find work for an idle target would cost the leader more than the work. The list is read again from its head
while work is in progress, so that skipped and new items do not wait for the end of one large copy.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

AT_ONCE_MAX = 1000  # pieces of work that are in progress or wait for their turn
LOOKS_PAST_MAX = 1000.0  # that are saved up
LOOKS_PAST_PER_S = 100.0  # 10 ms of a leader
LOOK_AGAIN_S = 0.1  # for an idle target
READ_AGAIN_S = 10.0  # between two readings of the list, and
READ_AGAIN_FACTOR = 10.0  # times as long as the last one took

_T = TypeVar("_T")


class RunningWork:
    """The work in progress of one run: one task for each key."""

    def __init__(self, group: asyncio.TaskGroup) -> None:
        self._group = group
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ended = asyncio.Event()
        self.readings = 0  # finished readings of the list

    def __len__(self) -> int:
        return len(self._tasks)

    def is_at(self, key: str) -> bool:
        """Return whether work with this key is in progress."""
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


class _SkipAllowance:
    """The number of items that may be skipped now."""

    def __init__(self) -> None:
        self._left, self._at_s = LOOKS_PAST_MAX, time.monotonic()

    def take(self) -> bool:
        """Return whether one more may be skipped."""
        now_s = time.monotonic()
        self._left = min(self._left + LOOKS_PAST_PER_S * (now_s - self._at_s), LOOKS_PAST_MAX)
        self._at_s = now_s
        if self._left < 1:
            return False
        self._left -= 1
        return True


async def work_through(
    listing: Callable[[], AsyncIterator[_T]],
    begin: Callable[[RunningWork, _T], bool],
    *,
    goes_on: Callable[[], bool] = lambda: True,
) -> None:
    """Begin with each item of a list, and wait until all work is done.

    `begin` returns whether work was started, or none is needed; False if it would only wait. `goes_on` is
    called before each. Raises a group with the errors.
    """
    looks_past = _SkipAllowance()
    async with asyncio.TaskGroup() as group:
        crew = RunningWork(group)
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


async def _begun(
    crew: RunningWork, begin: Callable[[RunningWork, _T], bool], item: _T, looks_past: _SkipAllowance
) -> bool:
    """Begin work on an item, or skip it; return whether it was not skipped."""
    while True:
        if len(crew) < AT_ONCE_MAX:
            if begin(crew, item):
                return True
            if looks_past.take():
                return False
        await crew.wait(LOOK_AGAIN_S)
