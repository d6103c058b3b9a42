"""Work that several wait for is done once, and ends by its rule, whoever goes away."""

import asyncio
import logging

import pytest

from ca.errors import Conflict, Unavailable
from node.base.shared_work import SharedWork, StillRunning

LONG_S = 3600.0


class Work:
    """Counts how often it was begun, and how many are under way; ends when it may."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.begun = 0
        self.running = 0
        self.may_end, self.may_be_ended = asyncio.Event(), asyncio.Event()
        self.may_be_ended.set()
        self.cancelled = asyncio.Event()
        self.failure = failure

    async def __call__(self) -> int:
        self.begun += 1
        self.running += 1
        try:
            await self.may_end.wait()
            if self.failure is not None:
                raise self.failure
            return self.begun
        except asyncio.CancelledError:
            self.cancelled.set()
            await self.may_be_ended.wait()
            raise
        finally:
            self.running -= 1


def shared_work(
    *, at_most: float = 9, linger_s: float | None = None, keep_s: float = 0.0
) -> SharedWork[str, int]:
    return SharedWork("works", at_most=at_most, linger_s=linger_s, keep_s=keep_s)


async def begun(work: Work, times: int = 1) -> None:
    while work.begun < times:
        await asyncio.sleep(0)


async def forgotten(shared: SharedWork[str, int], key: str) -> None:
    while key in shared:
        await asyncio.sleep(0)


async def some_turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def gone(task: "asyncio.Task[int]") -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_all_who_ask_meanwhile_get_what_it_comes_to() -> None:
    shared, work, other = shared_work(), Work(), Work()
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
    shared, work = shared_work(), Work()
    first = asyncio.create_task(shared.join("f1", work))
    await begun(work)
    await gone(first)
    second = asyncio.create_task(shared.join("f1", work))
    await asyncio.sleep(0)
    work.may_end.set()
    assert await second == 1


async def test_all_get_what_it_fails_with() -> None:
    shared, work = shared_work(), Work(Conflict("so"))
    asking = [asyncio.create_task(shared.join("f1", work)) for _ in range(2)]
    await begun(work)
    work.may_end.set()
    assert [type(each) for each in await asyncio.gather(*asking, return_exceptions=True)] == [Conflict] * 2


async def test_close_ends_it_and_those_who_wait_may_ask_again() -> None:
    shared, work = shared_work(), Work()
    asking = asyncio.create_task(shared.join("f1", work))
    await begun(work)
    await shared.close()
    assert work.running == 0
    with pytest.raises(Unavailable):
        await asking
    work.may_end.set()
    with pytest.raises(Unavailable):
        await shared.join("f1", work)
    assert work.begun == 1


async def test_who_waits_is_answered_in_time_and_comes_back_for_it() -> None:
    shared, work = shared_work(), Work()
    with pytest.raises(StillRunning):
        await shared.join("f1", work, answer_s=0.0)
    with pytest.raises(StillRunning):
        await shared.join("f1", work, answer_s=0.0)
    work.may_end.set()
    assert await shared.join("f1", work, answer_s=LONG_S) == 1


async def test_number_stays_the_same_only_while_the_work_and_what_it_waits_for_stand_still() -> None:
    shared = shared_work()

    async def moved(key: str) -> int:
        with pytest.raises(StillRunning) as running:
            await shared.join(key, Work(), answer_s=0.0)
        return running.value.moved

    keys = ("its turn", "in line")
    assert [await moved(key) for key in keys] == [0, 0]
    shared.count(5)
    assert [await moved(key) for key in keys] == [5, 5]
    shared.count(0, "its turn")
    assert [await moved(key) for key in keys] == [0, 5]
    shared.count(7, "its turn")
    assert [await moved(key) for key in keys] == [7, 12]
    shared.count(1)
    shared.count(2, "ended")
    assert [await moved(key) for key in keys] == [7, 15]
    await shared.close()


async def test_it_ends_when_the_last_who_waits_goes_away() -> None:
    shared, work = shared_work(linger_s=0.0), Work()
    asking = [asyncio.create_task(shared.join("f1", work)) for _ in range(2)]
    await begun(work)
    await gone(asking[0])
    await some_turns()
    assert not work.cancelled.is_set()
    await gone(asking[1])
    await work.cancelled.wait()
    await forgotten(shared, "f1")


async def test_it_goes_on_for_who_comes_back_before_it_was_given_up() -> None:
    shared, work = shared_work(linger_s=0.0), Work()
    for _ in range(3):
        with pytest.raises(StillRunning):
            await shared.join("f1", work, answer_s=0.0)
    back = asyncio.create_task(shared.join("f1", work))
    await begun(work)
    await some_turns()
    work.may_end.set()
    assert await back == 1


async def test_it_lingers_for_who_may_come_back() -> None:
    shared, work = shared_work(linger_s=LONG_S), Work()
    with pytest.raises(StillRunning):
        await shared.join("f1", work, answer_s=0.0)
    await some_turns()
    work.may_end.set()
    assert await shared.join("f1", work) == 1


async def test_who_asks_while_it_is_given_up_has_it_begun_anew_after_its_end() -> None:
    shared, work = shared_work(linger_s=0.0, at_most=1), Work()
    work.may_be_ended.clear()
    await gone_once_begun(shared, work)
    await work.cancelled.wait()
    with pytest.raises(StillRunning):  # it is answered in time all the same, and given up as well
        await shared.join("f1", work, answer_s=0.0)
    await forgotten(shared, "f1")
    last = asyncio.create_task(shared.join("f1", work))
    await some_turns()
    assert (work.begun, work.running) == (1, 1)
    work.may_be_ended.set()
    await begun(work, 2)
    assert work.running == 1
    work.may_end.set()
    assert await last == 2


async def gone_once_begun(shared: SharedWork[str, int], work: Work) -> None:
    first = asyncio.create_task(shared.join("f1", work))
    await begun(work)
    await gone(first)


async def test_close_waits_for_what_was_given_up_too() -> None:
    shared, work = shared_work(linger_s=0.0), Work()
    work.may_be_ended.clear()
    await gone_once_begun(shared, work)
    await work.cancelled.wait()
    second = asyncio.create_task(shared.join("f1", work))
    await some_turns()
    closing = asyncio.create_task(shared.close())
    await some_turns()
    assert not closing.done()
    work.may_be_ended.set()
    await closing
    assert (work.begun, work.running) == (1, 0)
    with pytest.raises(Unavailable):
        await second


@pytest.mark.parametrize("failure", [None, Conflict("so")])
async def test_what_it_came_to_is_kept_for_one_who_comes_back(failure: Exception | None) -> None:
    shared, work = shared_work(keep_s=LONG_S, at_most=1), Work(failure)
    with pytest.raises(StillRunning):
        await shared.join("f1", work, answer_s=0.0)
    work.may_end.set()
    while work.running:
        await asyncio.sleep(0)
    with pytest.raises(Unavailable):
        await shared.join("f2", work)  # what is kept counts too
    for times in (1, 2):
        (said,) = await asyncio.gather(shared.join("f1", work), return_exceptions=True)
        assert said == (failure or times)
        assert work.begun == times


async def test_what_it_came_to_is_kept_no_longer_than_it_may() -> None:
    shared, work = shared_work(keep_s=0.001), Work()
    with pytest.raises(StillRunning):
        await shared.join("f1", work, answer_s=0.0)
    work.may_end.set()
    await forgotten(shared, "f1")
    assert await shared.join("f1", work) == 2


async def test_there_are_so_many_of_them() -> None:
    shared, works = shared_work(at_most=2), [Work() for _ in range(3)]
    asking = [asyncio.create_task(shared.join(f"f{number}", works[number])) for number in range(2)]
    await begun(works[1])
    with pytest.raises(Unavailable, match="works"):
        await shared.join("f2", works[2])
    for work in works:
        work.may_end.set()
    await asyncio.gather(*asking)
    assert await shared.join("f2", works[2]) == 1


async def test_work_that_is_ended_from_within_ends_nobody_who_waits() -> None:
    shared, begins = shared_work(keep_s=LONG_S), asyncio.Event()

    async def give_way() -> int:
        task = asyncio.current_task()
        assert task is not None
        begins.set()
        task.cancel()
        await asyncio.sleep(0)
        raise AssertionError("was not ended")

    asking = [asyncio.create_task(shared.join("f1", give_way)) for _ in range(2)]
    await begins.wait()
    said = await asyncio.gather(*asking, return_exceptions=True)
    assert [type(each) for each in said] == [Unavailable] * 2
    assert "f1" not in shared


async def test_failure_that_nobody_waits_for_is_told_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    shared, work = shared_work(), Work(Conflict("so"))
    work.may_end.set()
    with caplog.at_level(logging.WARNING), pytest.raises(Conflict):
        await shared.join("f1", work)
    assert not caplog.records
    work.may_end.clear()
    with pytest.raises(StillRunning):
        await shared.join("f1", work, answer_s=0.0)
    work.may_end.set()
    await forgotten(shared, "f1")
    assert [record.message for record in caplog.records] == [
        "one of the works failed while no request waited for it"
    ]
