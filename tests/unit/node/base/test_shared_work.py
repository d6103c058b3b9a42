"""Work that several wait for is done once, and goes on without those who have gone away."""

import asyncio

import pytest

from ca.errors import Conflict, Unavailable
from node.base.shared_work import SharedWork


class Work:
    """Counts how often it was begun; ends when it may."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.begun = 0
        self.may_end = asyncio.Event()
        self.failure = failure

    async def __call__(self) -> int:
        self.begun += 1
        await self.may_end.wait()
        if self.failure is not None:
            raise self.failure
        return self.begun


async def begun(work: Work) -> None:
    while not work.begun:
        await asyncio.sleep(0)


async def test_all_who_ask_meanwhile_get_what_it_comes_to() -> None:
    shared, work, other = SharedWork[int](), Work(), Work()
    asking = [asyncio.create_task(shared.join("f1", work)) for _ in range(3)]
    apart = asyncio.create_task(shared.join("f2", other))
    await begun(work)
    work.may_end.set()
    assert await asyncio.gather(*asking) == [1, 1, 1]
    assert not apart.done()
    other.may_end.set()
    assert await apart == 1
    assert await shared.join("f1", work) == 2  # who asks later has it done again


async def test_it_goes_on_when_whoever_began_it_has_gone_away() -> None:
    shared, work = SharedWork[int](), Work()
    first = asyncio.create_task(shared.join("f1", work))
    await begun(work)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    second = asyncio.create_task(shared.join("f1", work))
    await asyncio.sleep(0)
    work.may_end.set()
    assert await second == 1


async def test_all_get_what_it_fails_with() -> None:
    shared, work = SharedWork[int](), Work(Conflict("so"))
    asking = [asyncio.create_task(shared.join("f1", work)) for _ in range(2)]
    await begun(work)
    work.may_end.set()
    assert [type(each) for each in await asyncio.gather(*asking, return_exceptions=True)] == [Conflict] * 2


async def test_close_ends_it_and_those_who_wait_may_ask_again() -> None:
    shared, work = SharedWork[int](), Work()
    asking = asyncio.create_task(shared.join("f1", work))
    await begun(work)
    await shared.close()
    with pytest.raises(Unavailable):
        await asking
