"""The driver with a real log and database: what is acknowledged is durable, a failing disk ends it."""

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from ca.errors import Unavailable
from ca.identity import Identity, Role
from coordinator.member.driver import TICK_S, Driver
from coordinator.member.member_clocks import MemberClocks
from coordinator.member.record_leases import LEASE_S
from coordinator.raft.config import Config
from coordinator.raft.core import NotLeader
from coordinator.raft.messages import Entry, EntryKind, HardState, Message, MessageKind
from coordinator.storage.raft_log import LogFailed, SegmentLog
from coordinator.storage.snapshot_store import SnapshotStore
from coordinator.storage.state_store import Store
from metadata.protocol import commands
from runtime.clock import now_ms
from tests.unit.state import ADMIN, bootstrap

DEADLINE_S = 20.0


def reply_value(reply: bytes) -> object:
    decoded = msgspec.msgpack.decode(reply, type=commands.Reply)
    assert decoded.refusal == ""
    return msgspec.msgpack.decode(decoded.value)


def admit(user_id: str) -> commands.AdmitUser:
    return commands.AdmitUser(caller=ADMIN, user_id=user_id, roles=None, groups=None)


@asynccontextmanager
async def running(
    data: Path,
    members: tuple[str, ...] = ("c1",),
    sync: Callable[[int], None] = os.fdatasync,
    *,
    cache_lease_s: float = LEASE_S,
    clocks: MemberClocks | None = None,
) -> AsyncIterator[tuple[Driver, "asyncio.Task[None]"]]:
    if not (data / "log").exists():
        first = commands.encode_envelope(commands.Envelope(0, 0, 0, 1, bootstrap()))
        SegmentLog.bootstrap(data / "log", HardState(1, "", 1), [Entry(1, 1, EntryKind.COMMAND, first)])
    log = SegmentLog.open(data / "log", sync=sync)
    store = Store(data / "state.sqlite")
    snapshots = SnapshotStore(data / "snapshots", data / "state.sqlite")
    driver = Driver(
        Config("c1", members),
        log,
        store,
        snapshots,
        lambda _: None,
        lambda _: None,
        lambda *_: None,
        cache_lease_s=cache_lease_s,
        clocks=clocks,
    )
    task = asyncio.create_task(driver.run())
    try:
        yield driver, task
    finally:
        task.cancel()
        await asyncio.wait([task])
        store.close()
        log.close()


async def leading(driver: Driver) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while driver.leader != driver.id:
            try:
                await driver.read_barrier()
            except Unavailable:
                await asyncio.sleep(0)


async def test_change_is_seen_by_the_next_read_and_after_a_restart(tmp_path: Path) -> None:
    async with asyncio.timeout(DEADLINE_S), running(tmp_path) as (driver, _):
        await leading(driver)
        await driver.propose(admit("alice"))
        await driver.read_barrier()
        applied = driver.applied_index
    async with asyncio.timeout(DEADLINE_S), running(tmp_path) as (driver, _):
        assert driver.applied_index >= applied
        await leading(driver)
        again = reply_value(await driver.propose(admit("alice")))
        assert isinstance(again, dict)
        assert again["user_id"] == "alice"


async def test_what_begins_is_dated_by_the_clock_that_was_put_forward_and_what_ends_by_ours(
    tmp_path: Path,
) -> None:
    day_ms, clocks = 24 * 60 * 60 * 1000, MemberClocks()
    for name in ("n1", "n2"):
        clocks.receive(Identity("lab", Role.NODE, name), now_ms() + day_ms)
    async with (
        asyncio.timeout(DEADLINE_S),
        running(tmp_path, clocks=clocks) as (driver, _),
    ):
        await leading(driver)
        await driver.propose(admit("alice"))
        await driver.propose(commands.Expire())
        entries = driver._log.entries(1, driver.applied_index + 1, 1 << 20)
        sent = [commands.decode_envelope(entry.data) for entry in entries if entry.data]
    dated_ms = {type(each.command): each.at_ms - now_ms() for each in sent}
    assert dated_ms[commands.AdmitUser] == pytest.approx(day_ms, abs=60_000)
    assert dated_ms[commands.Expire] == pytest.approx(0, abs=60_000)


async def test_concurrent_changes_share_a_sync(tmp_path: Path) -> None:
    syncs = 0

    def counting(descriptor: int) -> None:
        nonlocal syncs
        syncs += 1
        os.fdatasync(descriptor)

    async with asyncio.timeout(DEADLINE_S), running(tmp_path, sync=counting) as (driver, _):
        await leading(driver)
        before = syncs
        await asyncio.gather(*(driver.propose(admit(f"user-{n}")) for n in range(500)))
        assert syncs - before <= 20


async def test_failing_sync_ends_the_driver_and_acknowledges_nothing(tmp_path: Path) -> None:
    fails = False

    def failing(descriptor: int) -> None:
        if fails:
            raise OSError(errno.EIO, "no such luck")
        os.fdatasync(descriptor)

    async with asyncio.timeout(DEADLINE_S), running(tmp_path, sync=failing) as (driver, task):
        await leading(driver)
        fails = True
        with pytest.raises(Unavailable):
            await driver.propose(admit("alice"))
        with pytest.raises(LogFailed):
            await task


async def test_member_without_a_quorum_takes_no_change_and_serves_no_read(tmp_path: Path) -> None:
    async with asyncio.timeout(DEADLINE_S), running(tmp_path, members=("c1", "c2", "c3")) as (driver, _):
        with pytest.raises(NotLeader):
            await driver.propose(admit("alice"))
        with pytest.raises(Unavailable):
            await driver.read_barrier()


async def test_broken_invariant_of_the_core_ends_the_driver(tmp_path: Path) -> None:
    async with asyncio.timeout(DEADLINE_S), running(tmp_path, members=("c1", "c2", "c3")) as (driver, task):
        driver.step(Message(MessageKind.HEARTBEAT, "c2", "c1", 5, commit=99))  # of entries never acknowledged
        with pytest.raises(AssertionError, match="never acknowledged"):
            await task
        with pytest.raises(Unavailable):
            await driver.read_barrier()


async def test_database_that_was_lost_is_built_again_from_the_log(tmp_path: Path) -> None:
    async with asyncio.timeout(DEADLINE_S), running(tmp_path) as (driver, _):
        await leading(driver)
        await asyncio.gather(*(driver.propose(admit(f"user-{n}")) for n in range(50)))
        applied = driver.applied_index
    for path in tmp_path.glob("state.sqlite*"):
        path.unlink()
    async with asyncio.timeout(DEADLINE_S), running(tmp_path) as (driver, _):
        await leading(driver)
        await driver.read_barrier()
        assert driver.applied_index > applied


def test_driver_goes_on_when_its_tick_has_passed_before_it_was_set(
    tmp_path: Path, loop_factory: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """The process may stand still between two lines: uvloop's handle of such a timer tells no time."""

    async def stand_still() -> None:
        async with asyncio.timeout(DEADLINE_S), running(tmp_path) as (driver, task):
            await leading(driver)
            driver._ticked_at_s -= 10 * TICK_S
            driver._arm()
            driver._arm()
            await driver.propose(admit("alice"))
            assert not task.done()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(stand_still())
