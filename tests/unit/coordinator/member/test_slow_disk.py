"""A member of a group whose log's disk is slow: it serves reads meanwhile, and if it leads it hands over."""

import asyncio
import contextlib
import time
from pathlib import Path

import pytest

from ca.errors import Unavailable
from coordinator.member import disk_pace
from coordinator.member.driver import SILENT_AFTER_S, WAITED_FOR_S, Driver
from coordinator.raft.core import NotLeader
from tests.unit.coordinator.member.test_driver_group import DEADLINE_S, Group, admit, leading, three_voters

SLOW_S = 0.7
READ_S_MAX = 0.5  # a read that waited for the rest of one sync might take longer
SPARE_S = 0.25


@pytest.fixture
def group(tmp_path: Path) -> Group:
    return Group(tmp_path)


async def read_for(driver: Driver, seconds: float) -> float:
    """The longest of the reads that follow each other for so long."""
    longest_s, ends_at_s = 0.0, time.monotonic() + seconds
    while (began_at_s := time.monotonic()) < ends_at_s:
        await driver.read_barrier()
        longest_s = max(longest_s, time.monotonic() - began_at_s)
        await asyncio.sleep(0.01)
    return longest_s


async def write_for(driver: Driver, seconds: float) -> float:
    """The longest of changes that are begun all the time for so long."""

    async def write() -> float:
        began_at_s = time.monotonic()
        await driver.propose(admit("alice"))
        return time.monotonic() - began_at_s

    writing, ends_at_s = [], time.monotonic() + seconds
    while time.monotonic() < ends_at_s:
        writing.append(asyncio.ensure_future(write()))
        await asyncio.sleep(0.05)
    return max(await asyncio.gather(*writing))


async def test_nobody_waits_for_more_than_the_sync_under_way_of_a_slow_leader(group: Group) -> None:
    """Reads of others not at all. Those of the leader see what is acknowledged, so what it has on disk."""
    seats = [group.seat(name) for name in ("c1", "c2", "c3")]
    async with asyncio.timeout(DEADLINE_S), seats[0].run() as first, seats[1].run(), seats[2].run():
        await three_voters(first)
        seats[0].disk.sync_s = SLOW_S
        (read_s, other_s), write_s = await asyncio.gather(
            asyncio.gather(read_for(first, 4), read_for(group.drivers["c2"], 4)),
            write_for(first, 4),
        )
        assert first.is_leader
        assert (other_s < READ_S_MAX, read_s < SLOW_S + SPARE_S) == (True, True)
        assert write_s < 2 * SLOW_S + SPARE_S


@pytest.mark.parametrize("sync_s", [WAITED_FOR_S / 2, WAITED_FOR_S * 100])
async def test_change_is_acknowledged_after_its_sync_however_that_is_waited_for(
    group: Group, sync_s: float
) -> None:
    seat = group.seat("c1")
    async with asyncio.timeout(DEADLINE_S), seat.run() as driver:
        await leading(driver)
        await driver.propose(admit("alice"))
        seat.disk.sync_s = sync_s
        for number in range(3):
            began_at_s = time.monotonic()
            await driver.propose(admit(f"user-{number}"))
            assert time.monotonic() - began_at_s >= sync_s


async def test_leader_that_is_clearly_slower_hands_over_and_does_not_get_the_lead_back(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_pace, "LEAD_S_MIN", 0.1)
    seats = [group.seat(name) for name in ("c1", "c2", "c3")]
    async with asyncio.timeout(DEADLINE_S), seats[0].run() as first, seats[1].run(), seats[2].run():
        await three_voters(first)
        seats[0].disk.sync_s = SLOW_S
        while first.is_leader:
            with contextlib.suppress(NotLeader, Unavailable):
                await first.propose(admit("alice"))
        while not (leader := group.drivers.get(first.leader, first)).is_leader:
            await asyncio.sleep(0.01)
        term, began_at_s = leader.status().term, time.monotonic()
        for number in range(50):
            await leader.propose(admit(f"user-{number}"))
        assert time.monotonic() - began_at_s < 50 * SLOW_S / 10
        assert (leader.is_leader, leader.status().term) == (True, term)


async def test_lead_stays_where_all_disks_are_slow(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_pace, "LEAD_S_MIN", 0.1)
    seats = [group.seat(name) for name in ("c1", "c2", "c3")]
    async with asyncio.timeout(DEADLINE_S), seats[0].run() as first, seats[1].run(), seats[2].run():
        await three_voters(first)
        term = first.status().term
        for seat in seats:
            seat.disk.sync_s = disk_pace.LATE_S + 0.1
        for number in range(disk_pace.LATE_BATCHES + 2):
            await first.propose(admit(f"user-{number}"))
        assert (first.is_leader, first.status().term) == (True, term)


@pytest.mark.long
async def test_member_whose_disk_hangs_falls_silent(group: Group) -> None:
    """Its leader must not count it among those that live, nor make it lead."""
    seats = [group.seat(name) for name in ("c1", "c2", "c3")]
    async with asyncio.timeout(DEADLINE_S), seats[0].run() as first, seats[1].run() as second, seats[2].run():
        await three_voters(first)
        seats[1].disk.sync_s = SILENT_AFTER_S * 5
        await first.propose(admit("alice"))
        while first.status().progress["c2"].active:
            await asyncio.sleep(0.01)
        assert second._writing is not None


@pytest.mark.long
async def test_leader_whose_disk_hangs_loses_the_lead(group: Group) -> None:
    """However many reads confirm that it leads, and though it has just come to lead."""
    seats = [group.seat(name) for name in ("c1", "c2", "c3")]
    async with asyncio.timeout(DEADLINE_S), seats[0].run() as first, seats[1].run() as second, seats[2].run():
        await three_voters(first)
        first._fitness.pace.note_transfer(at_s=time.monotonic())
        seats[0].disk.sync_s = SILENT_AFTER_S * 6
        writing = asyncio.create_task(first.propose(admit("alice")))

        async def read_on() -> None:
            while True:
                with contextlib.suppress(TimeoutError, Unavailable):
                    await asyncio.wait_for(first.read_barrier(), 0.1)

        reading = asyncio.create_task(read_on())
        while second.leader not in ("c2", "c3"):
            await asyncio.sleep(0.01)
        assert first._writing is not None
        reading.cancel()
        await asyncio.wait([writing, reading])
        await leading(group.drivers[second.leader])
