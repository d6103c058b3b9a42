"""Work through a long list: what would only wait is passed over, within a bound, and comes to its turn."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from coordinator.reconcile import target_queues
from coordinator.reconcile.target_queues import LOOKS_PAST_MAX, RunningWork, work_through

DEADLINE_S = 20.0


def listing(count: int) -> AsyncIterator[int]:
    async def each() -> AsyncIterator[int]:
        for number in range(count):
            yield number

    return each()


async def test_what_is_busy_is_passed_over_and_done_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target_queues, "READ_AGAIN_S", 0.01)
    monkeypatch.setattr(target_queues, "READ_AGAIN_FACTOR", 0.0)
    done: Counter[int] = Counter()
    is_free, others_done = asyncio.Event(), asyncio.Event()

    def begin(at_work: RunningWork, number: int) -> bool:
        if done[number] or at_work.is_at(f"{number}"):
            return True
        if number % 2 and len([key for key in at_work._tasks if int(key) % 2]) >= 3:
            return False  # the odd ones have one place to go to, with room for three

        async def work() -> None:
            if number % 2:
                await is_free.wait()
            done[number] += 1
            if sum(done.values()) == 50:
                others_done.set()

        at_work.begin(f"{number}", work)
        return True

    async with asyncio.timeout(DEADLINE_S):
        running = asyncio.create_task(work_through(lambda: listing(100), begin))
        await others_done.wait()  # though not one of the odd ones is
        assert not running.done()
        is_free.set()
        await running
    assert done == Counter(range(100))


async def test_no_more_is_passed_over_than_was_saved_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target_queues, "LOOKS_PAST_PER_S", 0.0)
    seen: set[int] = set()
    has_waited, is_free = asyncio.Event(), asyncio.Event()

    def begin(at_work: RunningWork, number: int) -> bool:
        if number in seen and number > 0:
            has_waited.set()  # asked again: it was not passed over
        seen.add(number)
        if number == 0 and not at_work.is_at("0"):
            at_work.begin("0", is_free.wait)
        return number == 0 or is_free.is_set()

    async with asyncio.timeout(DEADLINE_S):
        running = asyncio.create_task(work_through(lambda: listing(5000), begin))
        await has_waited.wait()
        assert len(seen) == LOOKS_PAST_MAX + 2  # the one under way, and the one that waits
        running.cancel()
        await asyncio.wait({running})


async def test_failure_of_one_ends_all() -> None:
    async def fail() -> None:
        raise ConnectionError

    async def last() -> None:
        await asyncio.Event().wait()

    def begin(at_work: RunningWork, number: int) -> bool:
        at_work.begin(f"{number}", fail if number == 5 else last)
        return True

    async with asyncio.timeout(DEADLINE_S):
        with pytest.raises(ExceptionGroup) as failure:
            await work_through(lambda: listing(10), begin)
    assert isinstance(failure.value.exceptions[0], ConnectionError)
