"""Deadlines on one timer: what is overdue is told once, what was cleared never."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from metadata.rpc.deadlines import Deadlines

DEADLINE_S = 20.0
NEVER_S = 3600.0


class Told:
    """Notes what was overdue, in order."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self._changed = asyncio.Event()

    def __call__(self, key: str) -> None:
        self.keys.append(key)
        self._changed.set()

    async def until(self, key: str) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while key not in self.keys:
                self._changed.clear()
                await self._changed.wait()


@pytest.fixture
async def told() -> Told:
    return Told()


@pytest.fixture
async def deadlines(told: Told) -> AsyncIterator[Deadlines[str]]:
    made = Deadlines(told)
    yield made
    made.close()


async def test_overdue_is_told_once_and_in_time_though_a_later_one_was_set_first(
    deadlines: Deadlines[str], told: Told
) -> None:
    deadlines.set("never", NEVER_S)
    deadlines.set("late", 0.02)
    await told.until("late")
    deadlines.set("later", 0.02)
    await told.until("later")
    assert told.keys == ["late", "later"]


async def test_last_one_of_few_takes_the_timer_along(deadlines: Deadlines[str]) -> None:
    deadlines.set("rare", 0.05)
    deadlines.clear("rare")
    rare = deadlines._timer
    deadlines.set("one", 0.05)  # and soon after it another
    deadlines.set("of many", 0.05)
    deadlines.clear("one")
    deadlines.clear("of many")
    assert rare is None
    assert deadlines._timer is not None


async def test_cleared_is_not_told_and_one_set_anew_has_its_new_time(
    deadlines: Deadlines[str], told: Told
) -> None:
    deadlines.set("cleared", 0.01)
    deadlines.set("longer", 0.01)
    deadlines.set("shorter", NEVER_S)
    deadlines.clear("cleared")
    deadlines.clear("unknown")
    deadlines.set("longer", NEVER_S)
    deadlines.set("shorter", 0.1)
    await told.until("shorter")
    assert told.keys == ["shorter"]


async def test_timer_is_set_again_after_it_found_nothing(deadlines: Deadlines[str], told: Told) -> None:
    deadlines.set("cleared", 0.01)
    deadlines.clear("cleared")
    await asyncio.sleep(0.05)  # the timer goes off meanwhile
    assert deadlines._timer is None
    deadlines.set("late", 0.01)
    await told.until("late")


async def test_one_that_is_told_may_clear_another_and_set_itself_again() -> None:
    times_told: list[str] = []
    again = asyncio.Event()

    def overdue(key: str) -> None:
        times_told.append(key)
        made.clear("b" if key == "a" else "a")
        if len(times_told) == 1:
            made.set(key, 0.01)
        else:
            again.set()

    made = Deadlines(overdue)
    made.set("a", 0.01)
    made.set("b", 0.01)
    async with asyncio.timeout(DEADLINE_S):
        await again.wait()
    assert times_told == ["a", "a"]


async def test_nothing_is_told_after_close(deadlines: Deadlines[str], told: Told) -> None:
    other = Deadlines(told)
    deadlines.set("closed", 0.01)
    other.set("late", 0.05)
    deadlines.close()
    await told.until("late")
    deadlines.set("anew", 0.01)
    await told.until("anew")
    assert told.keys == ["late", "anew"]


async def test_hundreds_that_end_at_different_times_are_all_told(
    deadlines: Deadlines[str], told: Told
) -> None:
    names = [str(number) for number in range(300)]
    for number, name in enumerate(names):
        deadlines.set(name, number / 3000)
    await told.until(names[-1])
    assert told.keys == names
