"""Installing a snapshot: whatever step the process dies at, it finds the old state or the new one, whole."""

import dataclasses
from contextlib import closing
from pathlib import Path

import pytest

from coordinator.raft.messages import Entry, EntryKind, HardState, SnapshotMeta
from coordinator.storage.raft_log import SegmentLog
from coordinator.storage.reopening import recover
from coordinator.storage.snapshot_store import SnapshotDisk, SnapshotStore
from coordinator.storage.state_store import Store
from tests.unit.snapshot_files import fetch, meta_of, taken
from tests.unit.state import ADMIN, State, create, dump

OLD = (1, 1)  # index and term of the state before an installation
STEPS_MAX = 30


class Crash(Exception):
    """The process dies here."""


@dataclasses.dataclass(slots=True)
class Failing:
    """Counts the steps of an installation, and ends the process before one of them."""

    steps_left: int

    def step(self) -> None:
        if self.steps_left == 0:
            raise Crash
        self.steps_left -= 1


@dataclasses.dataclass(frozen=True, slots=True)
class FailingDisk(SnapshotDisk):
    """A disk under a process that dies."""

    failing: Failing

    def replace(self, source: Path, target: Path) -> None:
        self.failing.step()
        SnapshotDisk.replace(self, source, target)

    def remove(self, path: Path) -> None:
        self.failing.step()
        SnapshotDisk.remove(self, path)

    def sync(self, directory: Path) -> None:
        self.failing.step()
        SnapshotDisk.sync(self, directory)


def old_member(directory: Path) -> tuple[SegmentLog, Store]:
    """A member that lags: an old state with changes in its WAL, and a log that is a little longer."""
    state = State(directory / "state.sqlite")
    noops = [Entry(index, 1, EntryKind.NOOP, b"") for index in (2, 3)]
    log = SegmentLog.open(directory / "log")
    log.append(HardState(1, "c1", 1), None, [*state.entries, *noops], sync=True)
    return log, state.store


def restart(directory: Path, failing: Failing) -> tuple[tuple[int, int], bool, list[str]]:
    """(applied, whether the log began anew, dump) after a start, whose recovery may die too."""
    store = SnapshotStore(directory / "snapshots", directory / "state.sqlite", disk=FailingDisk(failing))
    store.recover()
    with (
        closing(Store(directory / "state.sqlite")) as opened,
        closing(SegmentLog.open(directory / "log")) as log,
    ):
        recover(log, opened)
        applied, began_anew = opened.applied(), log.first_index() > 1
        assert log.term(applied[0]) == applied[1]
    return applied, began_anew, dump(directory / "state.sqlite")


def end(store: Store, log: SegmentLog) -> None:
    log.close()
    store.close()


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> tuple[SnapshotStore, list[str]]:
    directory = tmp_path_factory.mktemp("kit")
    state = State(directory / "state.sqlite")
    for number in range(50):
        state.apply(create(ADMIN, f"f{number}"))
    source = SnapshotStore(directory / "source", state.path)
    taken(source, origin="")
    state.store.close()
    return source, state.dump()


def steps_of_installation(tmp_path: Path, source: SnapshotStore) -> int:
    directory = tmp_path / "counting"
    directory.mkdir()
    failing = Failing(STEPS_MAX)
    target = SnapshotStore(directory / "snapshots", directory / "state.sqlite", disk=FailingDisk(failing))
    log, store = old_member(directory)
    target.install(fetch(source, target), store)
    end(store, log)
    return STEPS_MAX - failing.steps_left


def test_crash_at_any_step_leaves_the_old_state_or_the_new_one_whole(
    tmp_path: Path, kit: tuple[SnapshotStore, list[str]]
) -> None:
    source, new_dump = kit
    meta = meta_of(source)
    steps = steps_of_installation(tmp_path, source)
    outcomes = []
    for died_at in range(steps + 1):
        directory = tmp_path / str(died_at)
        directory.mkdir()
        target = SnapshotStore(
            directory / "snapshots", directory / "state.sqlite", disk=FailingDisk(Failing(died_at))
        )
        fetch(source, target)
        log, store = old_member(directory)
        old_dump = dump(directory / "state.sqlite")
        if died_at < steps:
            with pytest.raises(Crash):
                target.install(meta, store)
        else:
            target.install(meta, store)
        log.close()
        # The store is not closed before: it would tidy up what a process that is killed leaves.
        outcomes.append(outcome(directory, old_dump, new_dump, meta))
        store.close()
    # The first three: whose state it will be is noted before it is there.
    assert outcomes == ["old"] * 3 + ["new"] * (steps - 2)


def outcome(directory: Path, old_dump: list[str], new_dump: list[str], meta: SnapshotMeta) -> str:
    """Start again and again, dying one step later each time, until a start succeeds."""
    for died_at in range(STEPS_MAX):
        try:
            applied, began_anew, found = restart(directory, Failing(died_at))
        except Crash:
            continue
        assert restart(directory, Failing(STEPS_MAX)) == (applied, began_anew, found)
        if applied == OLD:
            assert (began_anew, found) == (False, old_dump)
            return "old"
        assert (applied, began_anew, found) == ((meta.index, meta.term), True, new_dump)
        return "new"
    raise AssertionError("no start succeeds")


def test_log_that_reaches_beyond_the_snapshot_is_kept(
    tmp_path: Path, kit: tuple[SnapshotStore, list[str]]
) -> None:
    source, _ = kit
    meta = meta_of(source)
    target = SnapshotStore(tmp_path / "snapshots", tmp_path / "state.sqlite")
    log, store = old_member(tmp_path)
    log.append(None, None, [Entry(i, 1, EntryKind.NOOP, b"") for i in range(4, meta.index + 3)], sync=True)
    target.install(fetch(source, target), store)
    recover(log, store)
    assert (log.first_index(), log.last_index()) == (1, meta.index + 2)
    end(store, log)


def test_log_that_contradicts_the_snapshot_begins_anew(
    tmp_path: Path, kit: tuple[SnapshotStore, list[str]]
) -> None:
    source, _ = kit
    meta = meta_of(source)
    target = SnapshotStore(tmp_path / "snapshots", tmp_path / "state.sqlite")
    log, store = old_member(tmp_path)
    others = [Entry(i, 3, EntryKind.NOOP, b"") for i in range(4, meta.index + 3)]
    log.append(HardState(3, "c1", 1), None, others, sync=True)
    target.install(fetch(source, target), store)
    recover(log, store)
    assert (log.first_index(), log.last_index()) == (meta.index + 1, meta.index)
    end(store, log)
