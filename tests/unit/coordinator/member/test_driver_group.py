"""Several drivers with real logs, databases and snapshots, joined in memory: compaction and catching up."""

import asyncio
import contextlib
import os
import shutil
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager, closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from ca.errors import Conflict, InsufficientStorage, Unavailable
from coordinator.member import driver as driver_module
from coordinator.member.driver import Driver
from coordinator.member.member import with_membership
from coordinator.raft.config import Config
from coordinator.raft.core import NotLeader
from coordinator.raft.messages import (
    Entry,
    EntryKind,
    HardState,
    Members,
    Message,
    Ready,
    SnapshotMeta,
    SnapshotOffer,
)
from coordinator.raft.progress import ProgressState
from coordinator.storage.log_directory import OsDirectory
from coordinator.storage.pinned_state import PinnedState
from coordinator.storage.raft_log import SegmentLog
from coordinator.storage.reopening import StateLost, recover
from coordinator.storage.segment import segment_name
from coordinator.storage.snapshot_store import SnapshotStore, UnpublishedSnapshot
from coordinator.storage.state_damage import StateDamaged
from coordinator.storage.state_store import Store
from metadata.model.records import CoordinatorRecord
from metadata.protocol import commands
from tests.unit.state import ADMIN, bootstrap
from tests.unit.state_damage import spoil

DEADLINE_S = 60.0
SEGMENT_BYTES = 64 * 1024


def record(coordinator_id: str, role: str = "voter") -> CoordinatorRecord:
    return CoordinatorRecord(
        coordinator_id=coordinator_id, address="127.0.0.1", peer_port=1, api_port=2, role=role
    )


def admit(user_id: str) -> commands.AdmitUser:
    return commands.AdmitUser(caller=ADMIN, user_id=user_id, roles=None, groups=["g" * 100])


class MeasuredDirectory(OsDirectory):
    """One whose disk is full for who asks before, and takes its time to sync."""

    is_full, sync_s = False, 0.0

    def __init__(self, path: Path) -> None:
        super().__init__(path, sync=self._slow_sync)

    def _slow_sync(self, descriptor: int) -> None:
        time.sleep(self.sync_s)
        os.fdatasync(descriptor)

    def free_bytes(self) -> int:
        return 0 if self.is_full else super().free_bytes()


class Seat:
    """One member with its directory; `run` is one life of it."""

    def __init__(self, group: "Group", name: str) -> None:
        self.group = group
        self.name = name
        self.data = group.directory / name
        if not self.data.exists():
            self.data.mkdir()
            first = commands.encode_envelope(commands.Envelope(0, 0, 0, 1, bootstrap()))
            entry = Entry(1, 1, EntryKind.COMMAND, first)
            SegmentLog.bootstrap(self.data / "log", HardState(1, "", 1), [entry])

    @asynccontextmanager
    async def run(self) -> AsyncIterator[Driver]:
        with ExitStack() as open_things:
            driver = self._open(open_things)
            task = self.task = asyncio.create_task(driver.run())
            try:
                yield driver
            finally:
                del self.group.drivers[self.name]
                task.cancel()
                await asyncio.wait([task])
            if not task.cancelled():
                task.result()

    def _open(self, open_things: ExitStack) -> Driver:
        self.disk = MeasuredDirectory(self.data / "log")
        self.log = open_things.enter_context(
            closing(SegmentLog.open_in(self.disk, segment_bytes=SEGMENT_BYTES))
        )
        self.snapshots = SnapshotStore(self.data / "snapshots", self.data / "state.sqlite")
        self.snapshots.recover()
        self.store = open_things.enter_context(closing(Store(self.data / "state.sqlite")))
        recover(self.log, self.store)
        self.driver = self.group.drivers[self.name] = Driver(
            with_membership(Config(self.name, ("c1",)), self.store),
            self.log,
            self.store,
            self.snapshots,
            self.group.send,
            self.fetch,
            lambda *_: None,
            compacted_bytes_min=2 * SEGMENT_BYTES,
            trailing_entries=10,
            cache_lease_s=0.0,  # no node keeps anything here
        )
        return self.driver

    def fetch(self, offer: SnapshotOffer) -> None:
        source = self.group.seats[offer.source].snapshots
        incoming = self.snapshots.begin_incoming(offer.meta)
        while not incoming.is_complete:
            incoming.add(source.chunk(offer.meta.index, offer.meta.term, incoming.offset))
        incoming.finish()
        self.driver.note_fetched(offer.meta)


class Group:
    """Members that hear each other at once; one that does not run hears nothing."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.drivers: dict[str, Driver] = {}
        self.seats: dict[str, Seat] = {}

    def seat(self, name: str) -> Seat:
        self.seats[name] = Seat(self, name)
        return self.seats[name]

    def send(self, messages: Sequence[Message]) -> None:
        for message in messages:
            if message.target in self.drivers:
                self.drivers[message.target].step(message)


async def leading(driver: Driver) -> None:
    while True:
        with contextlib.suppress(Unavailable):
            await driver.read_barrier()
            if driver.is_leader:
                return
        await asyncio.sleep(0.01)


async def filled(driver: Driver, count: int) -> None:
    for start in range(0, count, 100):
        await asyncio.gather(*(driver.propose(admit(f"user-{n}")) for n in range(start, start + 100)))


async def compacted(seat: Seat) -> None:
    """Until the first segment is gone, from the disk too: what is forgotten is removed a little later."""
    first = seat.data / "log" / segment_name(1)
    while seat.log.first_index() == 1 or first.exists():
        await seat.driver.propose(admit("the-same"))


async def let_in(leader: Driver, *ids: str, learners: Sequence[str] = ()) -> None:
    records = [record(each) for each in ids] + [record(each, "learner") for each in learners]
    await leader.change_members(leader.status().members, commands.RecordCoordinators(coordinators=records))


async def caught_up(leader: Driver, follower: Driver) -> None:
    while follower.applied_index < leader.applied_index:
        await asyncio.sleep(0.01)


@pytest.fixture
def group(tmp_path: Path) -> Group:
    return Group(tmp_path)


async def test_log_forgets_what_the_database_holds_and_a_restart_finds_all(group: Group) -> None:
    seat = group.seat("c1")
    async with asyncio.timeout(DEADLINE_S):
        async with seat.run() as driver:
            await leading(driver)
            await filled(driver, 600)
            await compacted(seat)
            applied = driver.applied_index
        async with seat.run() as driver:
            await leading(driver)
            assert driver.applied_index > applied
            assert seat.store.token_generation("user-599") is not None


async def test_new_member_catches_up_by_a_snapshot_and_is_promoted(group: Group) -> None:
    first, second = group.seat("c1"), group.seat("c2")
    async with asyncio.timeout(DEADLINE_S), first.run() as leader:
        await leading(leader)
        await filled(leader, 600)
        await compacted(first)
        async with second.run() as learner:
            await let_in(leader, "c1", learners=("c2",))
            await caught_up(leader, learner)
            await let_in(leader, "c1", "c2")
            await leader.propose(admit("after"))
            await caught_up(leader, learner)

            assert second.log.first_index() > 1, "it came by a snapshot"
            assert second.store.token_generation("after") is not None
            assert second.store.members() == Members(("c1", "c2"))
        async with second.run() as learner:
            await caught_up(leader, learner)


async def test_change_retried_after_a_snapshot_and_a_new_leader_is_applied_once(group: Group) -> None:
    first, second = group.seat("c1"), group.seat("c2")
    async with asyncio.timeout(DEADLINE_S), first.run() as leader:
        await leading(leader)
        await leader.propose(commands.OpenSession(nonce="n"))
        session = leader.applied_index
        reply = await leader.propose(admit("once"), session=session, sequence=1)
        await filled(leader, 600)
        await compacted(first)
        async with second.run() as other:
            await let_in(leader, "c1", learners=("c2",))
            await caught_up(leader, other)
            await let_in(leader, "c1", "c2")
            leader.transfer_leader("c2")
            await leading(other)

            assert await other.propose(admit("once"), session=session, sequence=1) == reply
            assert other.status().commit > session


async def three_voters(first: Driver) -> None:
    """The first one lets the others in, one after the other."""
    await leading(first)
    await let_in(first, "c1", learners=("c2",))
    await let_in(first, "c1", "c2")
    await let_in(first, "c1", "c2", learners=("c3",))
    await let_in(first, "c1", "c2", "c3")


async def led_by(group: Group, name: str) -> None:
    while not (group.drivers[name].is_leader and group.drivers[name].has_room):
        await asyncio.sleep(0.01)


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Members look for room every 160 ms."""
    monkeypatch.setattr(driver_module, "TIDY_TICKS", 2)


@pytest.mark.usefixtures("often")
async def test_lead_goes_to_who_has_room_whoever_gets_it_and_whenever_there_is_room(group: Group) -> None:
    seats = [group.seat(name) for name in ("c1", "c2", "c3")]
    async with asyncio.timeout(DEADLINE_S), seats[0].run() as first, seats[1].run(), seats[2].run():
        await three_voters(first)
        seats[1].disk.is_full = True
        while group.drivers["c2"].has_room:
            await asyncio.sleep(0.01)
        seats[0].disk.is_full = True
        await led_by(group, "c3")

        while not group.drivers["c3"].status().progress["c2"].reluctance:
            await asyncio.sleep(0.01)
        with pytest.raises(Conflict, match="The disk of c2 is full"):
            group.drivers["c3"].transfer_leader("c2")
        seats[2].disk.is_full = True
        while group.drivers["c3"].has_room:
            await asyncio.sleep(0.01)
        group.drivers["c3"].transfer_leader("c2")  # none has room: whoever is asked takes it
        while not group.drivers["c2"].is_leader:
            await asyncio.sleep(0.01)
        seats[0].disk.is_full = False
        await led_by(group, "c1")
        assert await first.propose(admit("after"))


@pytest.mark.usefixtures("often")
async def test_leader_without_room_accepts_what_frees_room_and_what_stops_a_thief(group: Group) -> None:
    seat = group.seat("c1")
    async with asyncio.timeout(DEADLINE_S), seat.run() as leader:
        await leading(leader)
        seat.disk.is_full = True
        while leader.has_room:
            await asyncio.sleep(0.01)
        with pytest.raises(InsufficientStorage):
            await leader.propose(admit("more"))
        await leader.propose(commands.CollectOverQuota(rows_max=10, grace_ms=0))
        await leader.propose(commands.ReportOrphans(node_id="n1", sha256s=["a" * 64]))
        await leader.propose(commands.RevokeNode(caller=ADMIN, node_id="stolen"))
        thief = commands.PutUser(caller=ADMIN, user_id="thief", roles=None, groups=None, disabled=True)
        await leader.propose(thief)
        with pytest.raises(InsufficientStorage):
            await leader.propose(replace(thief, disabled=False))


async def test_lead_goes_to_one_without_room_rather_than_to_one_that_is_far_behind(group: Group) -> None:
    seats = [group.seat(name) for name in ("c1", "c2", "c3")]
    async with asyncio.timeout(DEADLINE_S), seats[0].run() as first, seats[1].run() as second:
        async with seats[2].run():
            await three_voters(first)
        seats[1].disk.is_full = True
        while not first.status().progress["c2"].reluctance:
            await asyncio.sleep(0.01)
        await filled(first, 600)
        await compacted(seats[0])
        # What it fetches never comes to its end.
        seats[2].fetch = lambda _: None  # type: ignore[method-assign, assignment]
        async with seats[2].run():
            while first.status().progress["c3"].state is not ProgressState.SNAPSHOT:
                await asyncio.sleep(0.01)
            first.transfer_leader()
            while not second.is_leader:
                await asyncio.sleep(0.01)


@pytest.mark.usefixtures("often")
async def test_leader_that_can_apply_nothing_hands_over_though_its_log_has_room(group: Group) -> None:
    first, second = group.seat("c1"), group.seat("c2")
    async with asyncio.timeout(DEADLINE_S), first.run() as leader, second.run() as other:
        await leading(leader)
        await let_in(leader, "c1", learners=("c2",))
        await let_in(leader, "c1", "c2")
        (pages,) = first.store._writer.execute("PRAGMA page_count").fetchone()
        first.store._writer.execute(f"PRAGMA max_page_count = {pages}")
        waiting = asyncio.create_task(filled(leader, 400))
        await led_by(group, "c2")
        assert await other.propose(admit("after"))
        assert leader.applied_index < other.applied_index
        first.store._writer.execute("PRAGMA max_page_count = 1000000")
        await asyncio.wait([waiting])
        assert isinstance(waiting.exception(), NotLeader)
        await caught_up(other, leader)


async def test_member_removed_from_the_group_knows_it(group: Group) -> None:
    first, second = group.seat("c1"), group.seat("c2")
    async with asyncio.timeout(DEADLINE_S), first.run() as leader, second.run() as other:
        await leading(leader)
        await let_in(leader, "c1", learners=("c2",))
        await caught_up(leader, other)
        assert other._member.members == Members(("c1",), ("c2",))

        await let_in(leader, "c1")
        await caught_up(leader, other)

        assert other._member.members == Members(("c1",))
        assert second.store.members() == Members(("c1",))


async def test_two_changes_of_membership_at_once_are_refused(group: Group) -> None:
    first = group.seat("c1")
    async with asyncio.timeout(DEADLINE_S), first.run() as leader:
        await leading(leader)
        with pytest.raises(Conflict, match="at most one"):
            await let_in(leader, "c1", learners=("c2", "c3"))


async def test_database_that_lacks_what_the_log_holds_no_more_is_damaged(group: Group) -> None:
    seat = group.seat("c1")
    async with asyncio.timeout(DEADLINE_S), seat.run() as driver:
        await leading(driver)
        await filled(driver, 600)
        await compacted(seat)
    for path in seat.data.glob("state.sqlite*"):
        path.unlink()

    with pytest.raises(StateDamaged, match="it was lost or replaced"):
        async with seat.run():
            pass


async def test_log_that_was_lost_beside_its_database_is_refused(group: Group) -> None:
    seat = group.seat("c1")
    async with asyncio.timeout(DEADLINE_S), seat.run() as driver:
        await leading(driver)
        await driver.propose(admit("alice"))
    shutil.rmtree(seat.data / "log")

    with pytest.raises(StateLost, match="filestore coordinator rebuild"):
        async with seat.run():
            pass


async def test_change_of_a_membership_that_is_no_longer_the_present_one_is_refused(group: Group) -> None:
    first = group.seat("c1")
    async with asyncio.timeout(DEADLINE_S), first.run() as leader:
        await leading(leader)
        before = leader.status().members
        await let_in(leader, "c1", learners=("c2",))

        late = commands.RecordCoordinators(coordinators=[record("c1"), record("c3", "learner")])
        with pytest.raises(Conflict, match="changed by another"):
            await leader.change_members(before, late)


@pytest.mark.long
async def test_log_is_not_compacted_past_a_snapshot_that_is_being_made(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = group.seat("c1"), group.seat("c2")
    async with asyncio.timeout(DEADLINE_S), first.run() as leader:
        await leading(leader)
        await filled(leader, 600)
        await compacted(first)
        is_copying, may_end = threading.Event(), threading.Event()
        make = first.snapshots.make

        def slow(pinned: PinnedState) -> UnpublishedSnapshot:
            made = make(pinned)
            is_copying.set()
            assert may_end.wait(DEADLINE_S)
            return made

        monkeypatch.setattr(first.snapshots, "make", slow)
        async with second.run() as learner:
            await let_in(leader, "c1", learners=("c2",))
            await asyncio.to_thread(is_copying.wait, DEADLINE_S)
            taken_at = leader.applied_index
            ticks = leader.ticks
            while leader.ticks < ticks + 30:  # at least one look at the log
                await filled(leader, 100)
            assert first.log.first_index() <= taken_at

            may_end.set()
            await caught_up(leader, learner)
            assert first.snapshots.newest() is not None


async def made(seat: Seat, leader: Driver) -> SnapshotMeta:
    leader.making.begin()
    while (meta := seat.snapshots.newest()) is None or leader.making.is_busy:
        await asyncio.sleep(0.01)
    return meta


@pytest.mark.long
async def test_log_is_not_compacted_past_a_snapshot_whose_fetcher_is_not_heard_for_a_moment(
    group: Group,
) -> None:
    first = group.seat("c1")
    async with asyncio.timeout(DEADLINE_S), first.run() as leader:
        await leading(leader)
        meta = await made(first, leader)
        first.snapshots.chunk(meta.index, meta.term, 0)
        ticks = leader.ticks
        while leader.ticks < ticks + 60:  # at least one look at the log
            await filled(leader, 100)
        assert first.log.first_index() <= meta.index + 1


async def test_snapshot_that_was_asked_for_before_one_was_made_is_not_made_as_well(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = group.seat("c1")
    async with asyncio.timeout(DEADLINE_S), first.run() as leader:
        await leading(leader)
        await made(first, leader)
        monkeypatch.setattr(leader._member, "finish", lambda _: None)  # it was begun by nobody
        await leader._cycle(Ready(take_snapshot=True))
        assert not leader.making.is_busy


async def test_read_that_finds_the_database_damaged_ends_the_driver(group: Group) -> None:
    seat = group.seat("c1")
    async with asyncio.timeout(DEADLINE_S), seat.run() as driver:
        await leading(driver)
        await driver.propose(admit("alice"))
    spoil(seat.data / "state.sqlite", "users")
    with pytest.raises(StateDamaged, match=r"state\.sqlite is damaged"):
        await read_users(seat)


async def read_users(seat: Seat) -> None:
    """Read of a table in a life of a member, and wait for the end of that."""
    async with asyncio.timeout(DEADLINE_S), seat.run() as driver:
        await leading(driver)
        with pytest.raises(StateDamaged):
            await asyncio.to_thread(seat.store.token_generation, "alice")
        await asyncio.wait([seat.task])
