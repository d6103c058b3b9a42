"""Background work: its steps, what wakes it, its rests after failures, and what a process shows of it."""

import asyncio
import itertools
import logging

import pytest
from prometheus_client import CollectorRegistry

from ca.errors import Unavailable
from runtime.background import DONE, Pause, Work, Works, run_all


class Steps:
    """A step that does what the script says, and `until` that has happened."""

    def __init__(self, *script: Pause | Exception | None) -> None:
        self._script = list(script)
        self.taken = 0
        self._changed = asyncio.Event()

    async def __call__(self) -> Pause | None:
        self.taken += 1
        self._changed.set()
        outcome = self._script.pop(0) if self._script else None
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def until(self, taken: int) -> None:
        while self.taken < taken:
            self._changed.clear()
            await self._changed.wait()


async def test_work_takes_its_next_step_after_its_pause_until_it_is_the_last() -> None:
    steps = Steps(None, Pause(0.0), DONE)
    await Work("count", steps, every_s=0.0).run()
    assert steps.taken == 3


async def test_event_begins_a_step_at_once_and_one_set_meanwhile_has_another_follow() -> None:
    event, steps = asyncio.Event(), Steps()
    begun, goes_on = asyncio.Event(), asyncio.Event()

    async def step() -> None:
        await steps()
        begun.set()
        await goes_on.wait()

    running = asyncio.create_task(Work("look", step, every_s=3600.0, first_s=None, event=event).run())
    await asyncio.sleep(0)
    assert steps.taken == 0
    event.set()
    await begun.wait()
    event.set()  # during the first step
    goes_on.set()
    await steps.until(2)
    running.cancel()
    await asyncio.wait([running])


async def test_failed_step_is_logged_once_counted_and_rests_longer_each_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    registry, failures = CollectorRegistry(), [Unavailable("no leader")] * 3
    steps, outcomes = Steps(*failures, None), list[Exception | None]()
    rests, at_s = list[float](), asyncio.get_running_loop().time
    begun_at_s = list[float]()

    async def step() -> Pause | None:
        begun_at_s.append(at_s())
        return await steps()

    work = Work("sweep", step, every_s=3600.0, retry_s=0.01, trouble="not swept", outcome=outcomes.append)
    with caplog.at_level(logging.WARNING):
        async with Works(registry) as works:
            works.start("sweep", work.run())
            await steps.until(4)
            await asyncio.sleep(0)
            (state,) = works.states()
    rests = [later - earlier for earlier, later in itertools.pairwise(begun_at_s)]
    assert rests[0] >= 0.01
    assert rests[1] >= 0.02
    assert rests[2] >= 0.04
    assert outcomes == [*failures, None]
    assert [record.getMessage() for record in caplog.records] == ["not swept"]
    assert registry.get_sample_value("filestore_work_failures_total", {"work": "sweep"}) == 3
    assert (state.state, state.steps, state.failures, state.failures_in_row) == ("waiting", 4, 3, 0)
    assert state.failed_at_ms
    assert state.next_at_ms > state.began_at_ms > 0


async def test_state_of_work_that_fails_names_the_reason_and_whom_it_is_for() -> None:
    steps = Steps(*[OSError(5, "Input/output error", "/data/x")] * 9)
    async with Works(CollectorRegistry()) as works:
        works.start("reads", Work("reads", steps, every_s=3600.0, retry_s=3600.0, target="n2").run())
        await steps.until(1)
        await asyncio.sleep(0)
        (state,) = works.states()
        assert (state.name, state.target, state.state, state.failures_in_row) == ("reads", "n2", "failing", 1)
        assert state.reason == "Input/output error"
    assert works.states() == []


async def test_step_that_goes_well_while_it_lasts_ends_the_failures_before_it() -> None:
    work = Work("connection", Steps(OSError("refused"), OSError("refused")), every_s=0.0, retry_s=0.0)
    running = asyncio.create_task(work.run())
    while work.state().steps < 2:
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait([running])
    assert work.state().failures == 2
    work.note_success()
    assert work.state().failures_in_row == 0


async def test_what_is_no_failure_of_a_work_ends_its_process() -> None:
    async def serve() -> None:
        async with Works(CollectorRegistry()) as works:
            works.start("state", run_all(Work("state", Steps(Unavailable("damaged")), every_s=0.0, fails=())))
            await asyncio.Event().wait()

    with pytest.raises(ExceptionGroup) as raised:
        await serve()
    assert raised.group_contains(Unavailable)


async def test_end_of_a_set_waits_for_its_tasks() -> None:
    ended = list[str]()

    async def running(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(name)

    async with Works(CollectorRegistry()) as works:
        works.start("one", running("one"))
        works.start("two", running("two"))
        await asyncio.sleep(0)
    assert ended == ["one", "two"]
