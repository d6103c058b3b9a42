"""The thread that does blocking work for the event loop."""

import asyncio
import gc
import threading
import weakref
from collections.abc import Iterator

import pytest

from coordinator.member.thread import Worker

DEADLINE_S = 20.0


@pytest.fixture
def worker() -> Iterator[Worker]:
    made = Worker("work")
    yield made
    made.close()


class Slow:
    """Work that has begun, and ends when it is told to."""

    def __init__(self) -> None:
        self._begun = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self.released = threading.Event()
        self.has_ended = False

    def __call__(self) -> None:
        self._loop.call_soon_threadsafe(self._begun.set)
        assert self.released.wait(DEADLINE_S)
        self.has_ended = True

    async def begun(self) -> None:
        async with asyncio.timeout(DEADLINE_S):
            await self._begun.wait()


async def test_work_is_done_in_one_other_thread_in_the_order_of_the_calls(worker: Worker) -> None:
    done: list[int] = []

    def note(number: int) -> tuple[int, str]:
        done.append(number)
        return number, threading.current_thread().name

    replies = await asyncio.gather(*(worker.run(note, number) for number in range(100)))
    assert replies == [(number, "work") for number in range(100)]
    assert done == list(range(100))


async def test_exception_reaches_its_caller_alone(worker: Worker) -> None:
    outcomes = await asyncio.gather(
        worker.run(int, "x"), worker.run(int, "2"), worker.run(next, iter(())), return_exceptions=True
    )
    assert isinstance(outcomes[0], ValueError)
    assert outcomes[1] == 2
    assert isinstance(outcomes[2], RuntimeError)  # no future takes a StopIteration
    assert await worker.run(int, "3") == 3


async def test_work_that_has_begun_goes_on_without_its_caller_and_queued_work_does_not(
    worker: Worker,
) -> None:
    slow = Slow()
    left_out: list[int] = []
    callers = [asyncio.create_task(worker.run(slow)), asyncio.create_task(worker.run(left_out.append, 1))]
    await slow.begun()
    for caller in callers:
        caller.cancel()
    await asyncio.wait(callers)
    assert all(caller.cancelled() for caller in callers)
    slow.released.set()
    assert await worker.run(lambda: slow.has_ended)
    assert not left_out


async def test_quick_work_has_ended_without_a_turn_of_the_loop_and_slow_work_is_waited_for_later(
    worker: Worker,
) -> None:
    slow = Slow()
    work, behind = worker.begin(slow), worker.begin(int, "7")
    assert not work.ends_within(0.01)
    assert not slow.has_ended
    slow.released.set()
    assert behind.ends_within(DEADLINE_S)
    assert slow.has_ended
    assert work.ends_within(0)
    assert (await work, await behind) == (None, 7)


async def test_error_of_work_that_was_waited_for_is_raised_where_it_is_awaited(worker: Worker) -> None:
    work = worker.begin(int, "x")
    assert work.ends_within(DEADLINE_S)
    with pytest.raises(ValueError, match="invalid literal"):
        await work


async def test_caller_that_is_cancelled_while_its_outcome_is_on_its_way_is_cancelled(worker: Worker) -> None:
    loop = asyncio.get_running_loop()
    faults: list[object] = []
    loop.set_exception_handler(lambda _, fault: faults.append(fault))
    caller = asyncio.create_task(worker.run(int, "x"))
    await asyncio.sleep(0)
    barrier = threading.Event()
    worker.begin(barrier.set)
    assert barrier.wait(DEADLINE_S)  # the loop stands still: the first outcome is on its way, not there
    caller.cancel()
    await asyncio.wait([caller])
    assert caller.cancelled()
    assert await worker.run(int, "1") == 1
    assert not faults


async def test_close_waits_for_what_is_queued_and_nothing_runs_afterwards(worker: Worker) -> None:
    slow = Slow()
    done: list[int] = []
    callers = [asyncio.create_task(worker.run(slow)), asyncio.create_task(worker.run(done.append, 1))]
    await slow.begun()
    slow.released.set()
    worker.close()
    assert slow.has_ended
    assert done == [1]
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.gather(*callers)
    with pytest.raises(AssertionError, match="has ended"):
        await worker.run(done.append, 2)
    worker.close()


async def test_worker_without_work_has_no_thread() -> None:
    threads = threading.active_count()
    worker = Worker("idle")
    assert threading.active_count() == threads
    worker.close()


def test_loop_that_is_gone_does_not_break_the_thread(worker: Worker) -> None:
    released, done = threading.Event(), threading.Event()

    async def leave() -> None:
        calls.extend(asyncio.ensure_future(worker.run(work)) for work in (released.wait, done.set))
        await asyncio.sleep(0)

    calls: list[asyncio.Future[object]] = []
    loop = asyncio.new_event_loop()
    loop.run_until_complete(leave())
    loop.close()
    released.set()
    worker.close()
    assert done.is_set()


async def test_idle_thread_holds_nothing_of_what_it_did(worker: Worker) -> None:
    class Thing:
        pass

    thing = Thing()
    gone = weakref.ref(thing)
    await worker.run(lambda it: it, thing)
    del thing
    await worker.run(int)
    gc.collect()
    assert gone() is None
