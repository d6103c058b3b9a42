"""What a server process sets for its whole life."""

import asyncio
import gc
import weakref
from collections.abc import Iterator
from contextlib import suppress

import pytest

from runtime.lifetime import COLLECT_AFTER, end_tasks, quieten_collector


@pytest.fixture
def quiet() -> Iterator[None]:
    threshold = gc.get_threshold()
    quieten_collector()
    yield
    gc.set_threshold(*threshold)
    gc.unfreeze()


class Cycle:
    def __init__(self) -> None:
        self.me = self


def test_collector_leaves_alone_what_is_there_at_start(quiet: None) -> None:
    assert gc.get_freeze_count() > 0


def test_collector_does_not_look_for_every_few_requests_but_still_looks(quiet: None) -> None:
    garbage = weakref.ref(Cycle())
    kept: list[list[int]] = [[] for _ in range(COLLECT_AFTER // 2)]
    assert garbage() is not None
    kept += [[] for _ in range(COLLECT_AFTER)]
    assert garbage() is None


async def test_tasks_have_ended_when_their_end_was_waited_for_whatever_they_raise() -> None:
    async def raise_at_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            raise OSError

    running = asyncio.create_task(raise_at_end())
    not_begun = asyncio.create_task(asyncio.Event().wait())
    done = asyncio.create_task(asyncio.sleep(0))
    await done
    again = asyncio.create_task(asyncio.Event().wait())
    again.cancel()

    await end_tasks([running, not_begun, done, again])

    assert isinstance(running.exception(), OSError)
    assert not_begun.cancelled()
    assert again.cancelled()
    assert not done.cancelled()


async def test_who_waits_for_the_end_of_tasks_can_be_cancelled() -> None:
    ends = asyncio.Event()

    async def refuse() -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await ends.wait()

    stubborn = asyncio.create_task(refuse())
    await asyncio.sleep(0)
    waiting = asyncio.create_task(end_tasks([stubborn]))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    ends.set()
    await stubborn
