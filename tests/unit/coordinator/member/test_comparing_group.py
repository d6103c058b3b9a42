"""Members with real logs and databases, joined in memory, that compare their states: the leader's is damaged
while another lags behind the log.
"""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path
from typing import TypeVar, cast

import msgspec
import pytest

from ca.errors import Unavailable
from coordinator.member import state_digests
from coordinator.member.driver import Driver
from coordinator.member.rebuilding import rebuild
from coordinator.member.state_digests import Digests, StateDiverged
from coordinator.raft.core import NotLeader
from coordinator.raft.messages import SnapshotOffer
from coordinator.rpc.server import value_of
from coordinator.rpc.state_view import StateView
from coordinator.storage.config import CoordinatorConfig, CoordinatorFiles
from coordinator.storage.state_damage import StateDamaged, flaw_in
from metadata.protocol import commands
from metadata.protocol.calls import SnapshotCall, SnapshotChunkCall
from metadata.rpc.client import MetadataClient
from metadata.rpc.websocket import end
from tests.unit.coordinator.member.test_driver_group import (
    Group,
    Seat,
    admit,
    caught_up,
    filled,
    leading,
    led_by,
    record,
    three_voters,
)
from tests.unit.state_damage import place_of_row

DEADLINE_S = 60.0
COLD = "never-touched-again"
PASS_ENTRIES = 120  # of the log, while every table is hashed and three members report it
PAGE_BYTES = 4096
OVERWRITE = (
    "import os, sys; path, at, content = sys.argv[1:];"
    " os.pwrite(os.open(path, os.O_WRONLY), bytes.fromhex(content), int(at))"
)
_T = TypeVar("_T")

pytestmark = pytest.mark.timeout(DEADLINE_S + 10)


class ComparingSeat(Seat):
    """One that compares its state with the others' for as long as it runs."""

    state_digests: Digests
    comparing: "asyncio.Task[None]"
    life: AsyncExitStack
    loses_first = False  # the first try of each report of the table that is damaged fails
    tried: set[int]

    @asynccontextmanager
    async def run(self) -> AsyncIterator[Driver]:
        async with super().run() as driver:
            self.comparing = asyncio.create_task(self.digests.run())
            try:
                yield driver
            finally:
                await end(self.comparing)

    def _open(self, open_things: ExitStack) -> Driver:
        driver = super()._open(open_things)
        self.digests = Digests(
            self.name,
            driver,
            cast("MetadataClient", self),
            StateView(self.store),
            store=self.store,
            snapshots=self.snapshots,
            interval_s=0.02,
            files=CoordinatorFiles(self.data),
        )
        driver._applied = self.digests.deliver
        return driver

    async def propose(self, command: commands.AnyCommand, expected: type[_T]) -> _T:
        """As over the network: whoever leads is asked."""
        if self.loses_first and isinstance(command, commands.ReportHash) and self._is_first(command):
            raise Unavailable("Nobody leads.")
        try:
            reply = await self.group.drivers[self.driver.leader].propose(command)
        except (KeyError, NotLeader) as error:
            raise Unavailable("Nobody leads.") from error
        return msgspec.msgpack.decode(value_of(reply), type=expected)

    def _is_first(self, report: commands.ReportHash) -> bool:
        place = self.digests._watch._places.get(report.log_index)
        if place is None or place.slice is None or place.slice.table != "users":
            return False
        is_first = report.log_index not in self.tried
        self.tried.add(report.log_index)
        return is_first

    def fetch(self, offer: SnapshotOffer) -> None:
        """What the fetcher does, without a network."""
        source = self.group.seats[offer.source].snapshots
        incoming = self.snapshots.begin_incoming(offer.meta, offer.source)
        while not incoming.is_complete:
            incoming.add(source.chunk(offer.meta.index, offer.meta.term, incoming.offset))
        incoming.finish()
        if incoming.is_vouched or not self.digests.forbids:
            self.driver.note_fetched(offer.meta)

    def has_cold_row(self) -> bool:
        return self.store.token_generation(COLD) is not None

    def overwrite(self, content: bytes, *, page: bool = False) -> None:
        """What a disk does to the row; by another process, as SQLite's locks are lost by closing its file."""
        path = self.data / "state.sqlite"
        at = place_of_row(path, "users", COLD)
        at = at // PAGE_BYTES * PAGE_BYTES if page else at
        done = [sys.executable, "-c", OVERWRITE, str(path), str(at), content.hex()]
        subprocess.run(done, check=True, timeout=DEADLINE_S)


class ComparingGroup(Group):
    """Members that compare their states."""

    seats: dict[str, Seat]

    def seat(self, name: str) -> ComparingSeat:
        made = self.seats[name] = ComparingSeat(self, name)
        return made


@asynccontextmanager
async def two_of_three(directory: Path) -> AsyncIterator[list[ComparingSeat]]:
    """The first leads, the third is down and behind the log, everything is on the disk and was compared."""
    group = ComparingGroup(directory)
    seats = [group.seat(name) for name in ("c1", "c2", "c3")]
    async with AsyncExitStack() as running:
        drivers = [await running.enter_async_context(seat.run()) for seat in seats]
        await three_voters(drivers[0])
        await drivers[0].propose(admit(COLD))
        await caught_up(drivers[0], drivers[1])
        await caught_up(drivers[0], drivers[2])
    async with AsyncExitStack() as running:
        for seat in seats[:2]:
            await running.enter_async_context(seat.run())
        leader = await any_leader(group)
        await filled(leader, 600)
        for seat in seats[:2]:
            while seat.log.first_index() == 1:
                await leader.propose(admit("the-same"))
    async with AsyncExitStack() as running:
        for seat in seats[:2]:
            seat.life = await running.enter_async_context(AsyncExitStack())
            await seat.life.enter_async_context(seat.run())
        leader = await any_leader(group)
        if leader.id != "c1":
            leader.transfer_leader("c1")
            await led_by(group, "c1")
        since = seats[0].driver.applied_index
        while seats[0].driver.applied_index < since + 4 * PASS_ENTRIES:
            await asyncio.sleep(0.05)
        # A page in the WAL, of entries that were replayed at start, would take the place of a damaged one.
        await seats[0].driver._applying.on_state(seats[0].store._shorten_wal)
        yield seats


async def any_leader(group: Group) -> Driver:
    while True:
        for driver in list(group.drivers.values()):
            if driver.is_leader:
                await leading(driver)
                return driver
        await asyncio.sleep(0.01)


async def came_through(seats: list[ComparingSeat]) -> None:
    """The damaged one leads no more and ends; the two that are sound go on with the row as it was."""
    damaged, sound, away = seats
    async with away.run():
        with pytest.raises(ExceptionGroup) as caught:
            await damaged.comparing
        assert caught.group_contains(StateDiverged)
        assert damaged.driver.is_suspect
        leader = await any_leader(damaged.group)
        assert leader.id != damaged.name
        await leader.propose(admit("after"))
        await caught_up(sound.driver, away.driver)
        for seat in (sound, away):
            assert seat.has_cold_row()
            assert not seat.comparing.done()
            assert flaw_in(seat.data / "state.sqlite", at_rest=False) == ""
        assert sound.digests.diverged == [damaged.name]  # the other one has its word from before it was found
        while away.snapshots.origin():  # it is a witness of its own again
            await asyncio.sleep(0.05)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copied state is compared at once."""
    monkeypatch.setattr(state_digests, "WHOLE_AGAIN_S", 0.5)


@pytest.mark.long
async def test_byte_of_a_row_that_flips_in_the_leader_does_not_spread(tmp_path: Path) -> None:
    async with asyncio.timeout(DEADLINE_S), two_of_three(tmp_path) as seats:
        seats[0].overwrite(b"N")
        await came_through(seats)


class Neighbour:
    """The other coordinator that one without a state asks."""

    def __init__(self, seat: ComparingSeat) -> None:
        self.seat = seat
        self.coordinators = [record(seat.name)]

    async def run(self) -> None:
        await asyncio.Event().wait()

    async def ask_coordinator(self, source: str, call: SnapshotCall | SnapshotChunkCall) -> bytes:
        if isinstance(call, SnapshotChunkCall):
            return msgspec.msgpack.encode(self.seat.snapshots.chunk(call.index, call.term, call.offset))
        self.seat.digests.note_lost_state("c1")
        return msgspec.msgpack.encode(self.seat.driver.snapshot(call.index_min))


@pytest.mark.long
@pytest.mark.parametrize("is_known_to_be_odd", [False, True])
async def test_damaged_leader_is_rebuilt_and_a_witness_again(
    tmp_path: Path, *, is_known_to_be_odd: bool
) -> None:
    """Its damage spreads to nobody. With the state of another it goes on under its own name.

    Two of three know who is odd by what they agreed on in the pass before, though a report is lost.
    """
    async with asyncio.timeout(DEADLINE_S), two_of_three(tmp_path) as seats:
        damaged, sound, away = seats
        if is_known_to_be_odd:
            sound.tried, sound.loses_first = set(), True
            damaged.overwrite(b"N")
            while sound.digests.diverged != ["c1"]:
                await damaged.driver.reread()  # a page that is in use stays in memory
                await asyncio.sleep(0.05)
            damaged.store.condemn(StateDamaged("what checks of pages find"))
        else:
            damaged.overwrite(bytes(PAGE_BYTES), page=True)  # found when it is copied
        async with away.run():
            await asyncio.wait([damaged.task])
            with pytest.raises(StateDamaged):
                await damaged.life.aclose()
            leader = await any_leader(sound.group)
            await leader.propose(admit("after"))
            await caught_up(sound.driver, away.driver)
            assert away.has_cold_row()
            files = CoordinatorFiles(damaged.data)
            members = [record("c1"), record(sound.name)]
            files.write_config(CoordinatorConfig(id="c1", cluster="c", members=members))
            await rebuild(
                files,
                StateDamaged("damaged"),
                lambda: cast("MetadataClient", Neighbour(sound)),
                sync=os.fdatasync,
            )
            async with damaged.run():
                await caught_up(sound.driver, damaged.driver)
                while any(seat.snapshots.origin() for seat in seats):  # each is a witness of its own again
                    await asyncio.sleep(0.05)
                for seat in seats:
                    assert seat.has_cold_row()
                    assert not seat.comparing.done()
                    assert (seat.digests.diverged, seat.digests.differ_at) == ([], [])
