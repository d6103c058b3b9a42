"""A task for each coordinator that is known, and none for those that are gone."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from metadata.model.records import LEARNER, VOTER, CoordinatorRecord
from metadata.rpc.roster import Roster

DEADLINE_S = 10.0


def record(coordinator_id: str, port: int = 1, role: str = VOTER) -> CoordinatorRecord:
    return CoordinatorRecord(
        coordinator_id=coordinator_id, address="127.0.0.1", peer_port=port, api_port=2, role=role
    )


class Work:
    """Which tasks run, and how often one began."""

    def __init__(self) -> None:
        self.running: list[tuple[str, int]] = []
        self.begun = 0
        self.changed = asyncio.Event()

    async def __call__(self, found: CoordinatorRecord) -> None:
        place = (found.coordinator_id, found.peer_port)
        self.running.append(place)
        self.begun += 1
        self.changed.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.running.remove(place)
            self.changed.set()

    async def until(self, *places: tuple[str, int]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while sorted(self.running) != sorted(places):
                self.changed.clear()
                await self.changed.wait()


@asynccontextmanager
async def running(roster: Roster) -> AsyncIterator[Work]:
    work = Work()
    task = asyncio.create_task(roster.run(work, "test"))
    try:
        yield work
    finally:
        task.cancel()
        await asyncio.wait([task])
    assert not work.running


async def test_tasks_follow_those_that_come_go_and_move() -> None:
    roster = Roster([record("a"), record("b")])
    async with running(roster) as work:
        await work.until(("a", 1), ("b", 1))
        roster.update([record("b"), record("c")])
        await work.until(("b", 1), ("c", 1))
        roster.update([record("b", 9), record("c")])
        await work.until(("b", 9), ("c", 1))
        roster.update([])
        await work.until()


async def test_task_goes_on_when_only_the_role_changes() -> None:
    roster = Roster([record("a", role=LEARNER)])
    async with running(roster) as work:
        await work.until(("a", 1))
        roster.update([record("a", role=VOTER), record("b")])
        await work.until(("a", 1), ("b", 1))
        assert work.begun == 2


async def test_one_that_went_and_came_back_between_two_looks_begins_anew() -> None:
    roster = Roster([record("a")])
    async with running(roster) as work:
        await work.until(("a", 1))
        roster.update([])
        roster.update([record("a"), record("b")])
        await work.until(("a", 1), ("b", 1))
        assert work.begun == 3


async def test_task_that_fails_ends_the_roster() -> None:
    async def fails(found: CoordinatorRecord) -> None:
        raise LookupError(found.coordinator_id)

    with pytest.raises(ExceptionGroup) as caught:
        async with asyncio.timeout(DEADLINE_S):
            await Roster([record("a")]).run(fails, "test")
    assert caught.group_contains(LookupError)
