"""Members of a group as they are before the power is cut, and the states that they may be in after it."""

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import msgspec

from coordinator.raft.messages import Entry, EntryKind, HardState
from coordinator.storage.config import CoordinatorConfig, CoordinatorFiles
from coordinator.storage.promises import PromiseRecord
from coordinator.storage.raft_log import SegmentLog
from coordinator.storage.snapshot_store import SnapshotStore
from coordinator.storage.state_store import Store
from metadata.model.records import CoordinatorRecord
from tests.unit.peer_ports import CLUSTER
from tests.unit.snapshot_files import taken
from tests.unit.state import ADMIN, State, create, dump

FILES = 60
LAGGING = 3  # entries of a member that is behind
LOG_BEGINS = 20  # behind this entry, of a member that has no whole log
COMMITTED, LAST = 30, 35
VOTED = HardState(7, "c2", COMMITTED)


@dataclass(frozen=True, slots=True)
class Kit:
    """A history: its entries, what the state is after each, and a snapshot of c2 in `directory`."""

    directory: Path
    entries: list[Entry]
    states: dict[int, list[str]]

    @property
    def entries_path(self) -> Path:
        return self.directory / "entries"

    @property
    def snapshots(self) -> SnapshotStore:
        return SnapshotStore(self.directory / "snapshots", self.directory / "other.sqlite")

    @property
    def snapshot_index(self) -> int:
        newest = self.snapshots.newest()
        assert newest is not None, "the kit has one"
        return newest.index


def made_kit(directory: Path) -> Kit:
    """Of some files more than a few pages, and one entry beyond the snapshot."""
    state = State(directory / "other.sqlite")
    states = {1: state.dump()}
    for number in range(FILES):
        state.done(create(ADMIN, f"f{number}"))
        states[state.log_index] = state.dump()
    kit = Kit(directory, state.entries, states)
    taken(kit.snapshots, origin="c2")
    kit.entries.append(Entry(state.log_index + 1, 1, EntryKind.NOOP, b""))
    state.store.apply(kit.entries[-1:])
    states[kit.entries[-1].index] = state.dump()
    state.store.close()
    with closing(Store(directory / "empty.sqlite")):
        pass
    states[0] = dump(directory / "empty.sqlite")
    kit.entries_path.write_bytes(msgspec.msgpack.encode(kit.entries))
    return kit


def lagging(root: Path, kit: Kit) -> Path:
    """A member with the first entries alone."""
    files, entries = CoordinatorFiles(root), kit.entries[:LAGGING]
    root.mkdir()
    with closing(SegmentLog.open(files.log)) as log:
        log.append(HardState(1, "c1", LAGGING), None, entries, sync=True)
    with closing(Store(files.state)) as store:
        store.apply(entries)
    return root


def mistaken(root: Path, kit: Kit, *, has_all: bool) -> Path:
    """A member that voted, and whose state is sound for SQLite and wrong; whether its log has all entries."""
    files = CoordinatorFiles(root)
    root.mkdir()
    others = [
        CoordinatorRecord(coordinator_id=name, address="127.0.0.1", peer_port=1, api_port=2)
        for name in ("c1", "c2")
    ]
    files.write_config(CoordinatorConfig(id="c1", cluster=CLUSTER, members=others))
    with closing(SegmentLog.open(files.log)) as log:
        if not has_all:
            log.reset(VOTED, LOG_BEGINS, 1)
        log.append(VOTED, None, kit.entries[0 if has_all else LOG_BEGINS : LAST], sync=True)
    with closing(Store(files.state)) as store:
        store.apply(kit.entries[:COMMITTED])
    with closing(sqlite3.connect(files.state)) as db, db:
        db.execute("UPDATE users SET generation = generation + 1")
    return root


def forgetful(root: Path, kit: Kit) -> Path:
    """A member whose log has lost its end, and with it a vote in term 3."""
    files = CoordinatorFiles(root)
    root.mkdir()
    with closing(SegmentLog.open(files.log)) as log:
        log.append(HardState(2, "c2", 5), None, kit.entries[:5], sync=True)
        log.promise(PromiseRecord(3, "c2"))
    with closing(Store(files.state)) as store:
        store.apply(kit.entries[:10])
    return root
