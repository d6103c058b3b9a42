"""Work of minutes in a thread ends with whoever waits for it, and leaves nothing half done."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from coordinator.admin.offsite import MARKER, Offsite, OffsiteConfig
from coordinator.member.snapshot_making import Hooks, SnapshotMaker
from coordinator.reconcile.job_steps import take_backup
from coordinator.storage import pinned_state, state_backup
from coordinator.storage.config import CoordinatorConfig, CoordinatorFiles
from coordinator.storage.snapshot_store import SnapshotStore
from metadata.model.records import CoordinatorRecord
from metadata.rpc.websocket import end
from runtime.stopping import Stop, WorkStopped, run_in_thread
from tests.unit.state import State

DEADLINE_S = 15.0
HELD_S = 40.0  # for work that nobody stops
RECORD = CoordinatorRecord(coordinator_id="c1", address="127.0.0.1", peer_port=1, api_port=2)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """Of a coordinator that has a state of more than one page."""
    state = State(tmp_path / "state.sqlite")
    for number in range(20):
        state.user(f"user-{number}-{'x' * 500}")
    files = CoordinatorFiles(tmp_path)
    files.write_config(CoordinatorConfig(id="c1", cluster="c", members=[RECORD]))
    yield tmp_path
    state.store.close()


async def make_a_snapshot(directory: Path) -> None:
    failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    hooks = Hooks(lambda _: None, lambda: None, lambda: False, failed.set_exception)
    making = SnapshotMaker("c1", SnapshotStore(directory / "snapshots", directory / "state.sqlite"), hooks)
    making.begin()
    try:
        await failed
    finally:
        await making.close()


async def back_up(directory: Path) -> None:
    await run_in_thread(partial(take_backup, CoordinatorFiles(directory), 1_800_000_000_000))


async def send_elsewhere(directory: Path) -> None:
    (directory / "elsewhere").mkdir()
    (directory / "elsewhere" / MARKER).touch()
    offsite = Offsite(CoordinatorFiles(directory), OffsiteConfig(directory="elsewhere"))
    await offsite.send(directory / "state.sqlite", history="cafe", log_index=1, at="2026-01-01T00:00:00Z")


async def hash_all(directory: Path) -> None:
    snapshots = SnapshotStore(directory / "snapshots", directory / "state.sqlite")
    await run_in_thread(snapshots.pin().digest_and_close)


@pytest.mark.parametrize("work", [make_a_snapshot, back_up, send_elsewhere, hash_all])
async def test_long_work_ends_with_whoever_waits_for_it(
    directory: Path, monkeypatch: pytest.MonkeyPatch, work: Callable[[Path], Awaitable[None]]
) -> None:
    begun, rest, loop = asyncio.Event(), Stop.rest, asyncio.get_running_loop()

    def hold(stop: Stop, pause_s: float = 0.0) -> None:
        del pause_s
        loop.call_soon_threadsafe(begun.set)
        rest(stop, HELD_S)

    monkeypatch.setattr(Stop, "rest", hold)
    monkeypatch.setattr(Stop, "check", hold)
    monkeypatch.setattr(state_backup, "PAGES_AT_ONCE", 1)
    monkeypatch.setattr(pinned_state, "WORK_S", 0.0)
    waiting = asyncio.ensure_future(work(directory))
    async with asyncio.timeout(DEADLINE_S):
        await begun.wait()
        await end(waiting)
        await loop.shutdown_default_executor()  # as the end of a process: it waits for all threads
    assert not list(directory.glob("snapshots/*"))
    assert not list(directory.glob("backups/*"))
    assert not [*directory.glob("elsewhere/*.sqlite"), *directory.glob("elsewhere/.*")]


async def test_work_that_is_waited_for_is_not_stopped() -> None:
    assert await run_in_thread(lambda stop: stop.is_set()) is False

    def raises(stop: Stop) -> None:
        stop.check()
        raise ValueError

    with pytest.raises(ValueError):
        await run_in_thread(raises)
    stop = Stop()
    stop.rest(0)
    stop.set()
    for call in (stop.check, partial(stop.rest, HELD_S)):
        with pytest.raises(WorkStopped):
            call()
