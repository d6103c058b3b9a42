"""Drivers with real logs: one that lost the end of its log comes back without having voted meanwhile."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from coordinator.member.driver import Driver
from coordinator.storage import segment as form
from coordinator.storage.raft_log import SegmentLog
from tests.unit.coordinator.member.test_driver_group import (
    DEADLINE_S,
    Group,
    Seat,
    admit,
    caught_up,
    filled,
    leading,
    let_in,
)

NAMES = ("c1", "c2", "c3")


def lose_end(seat: Seat, *, segment: bool) -> None:
    """From an entry on that the database has applied, or the whole last segment."""
    path = max((seat.data / "log").glob(f"*{form.SEGMENT_SUFFIX}"))
    if segment:
        path.unlink()
        return
    content = path.read_bytes()
    records = form.read_records(content, form.HEADER_BYTES)
    entries = [record.offset for record in records if record.kind == form.RecordKind.ENTRY]
    start = entries[len(entries) // 2]
    path.write_bytes(content[:start] + bytes(len(content) - start))


async def group_of_three(group: Group, stack: AsyncExitStack) -> dict[str, AsyncExitStack]:
    """All run, c1 leads; how each is ended."""
    lives = {name: await stack.enter_async_context(AsyncExitStack()) for name in NAMES}
    seats = [group.seat(name) for name in NAMES]
    leader = await lives["c1"].enter_async_context(seats[0].run())
    await leading(leader)
    others = {seat.name: await lives[seat.name].enter_async_context(seat.run()) for seat in seats[1:]}
    for number, name in enumerate(NAMES[1:], 2):
        await let_in(leader, *NAMES[: number - 1], learners=(name,))
        await caught_up(leader, others[name])
        await let_in(leader, *NAMES[:number])
    await filled(leader, 300)
    for other in others.values():
        await caught_up(leader, other)
    return lives


async def leader_of(group: Group) -> Driver:
    while True:
        for driver in list(group.drivers.values()):
            if driver.is_leader:
                return driver
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("segment", [False, True])
@pytest.mark.parametrize("name", ["c1", "c3"])
async def test_member_that_lost_the_end_of_its_log_comes_back_by_itself(
    tmp_path: Path, name: str, segment: bool
) -> None:
    group = Group(tmp_path)
    async with asyncio.timeout(DEADLINE_S), AsyncExitStack() as stack:
        lives = await group_of_three(group, stack)
        before = group.drivers["c1"].status().term
        await lives[name].aclose()
        seat = group.seats[name]
        lose_end(seat, segment=segment)
        hurt = await lives[name].enter_async_context(seat.run())
        assert hurt.status().recovering
        while hurt.status().recovering:
            assert not hurt.is_leader
            await asyncio.sleep(0.01)
        assert hurt.status().term > before
        leader = await leader_of(group)
        await leading(leader)
        await leader.propose(admit("after"))
        await caught_up(leader, hurt)
        assert seat.store.token_generation("after") is not None
        assert seat.store.token_generation("user-299") is not None
        await lives[name].aclose()
        with_end = SegmentLog.open(seat.data / "log")
        assert with_end.term(with_end.last_index()) > before
        with_end.close()
