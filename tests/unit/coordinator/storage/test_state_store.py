"""The database under the state machine: whole batches or nothing, full disks, copies while it changes."""

import contextlib
import errno
import os
import sqlite3
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from coordinator.raft.messages import Entry, EntryKind, Members
from coordinator.storage.state_backup import copy_database
from coordinator.storage.state_damage import StateDamaged
from coordinator.storage.state_store import CHECKPOINT_CHANGES, Store, StoreFull
from metadata.protocol import commands
from metadata.protocol.commands import Envelope, encode_envelope
from metadata.protocol.queries import ListUsers
from runtime.sqlite import WAL_BYTES_MAX
from tests.unit.state import ADMIN, State, coordinator, create, dump, membership
from tests.unit.state_damage import spoil

BOUND_S = 60.0


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    made = State(tmp_path / "state.sqlite")
    yield made
    made.store.close()


def creations(first_index: int, count: int) -> list[Entry]:
    """Entries of which each makes one file."""
    return [
        Entry(
            index,
            1,
            EntryKind.COMMAND,
            encode_envelope(Envelope(0, 0, 0, 1_000_000, create(ADMIN, f"f{index}", filename="x" * 500))),
        )
        for index in range(first_index, first_index + count)
    ]


def _fails(_descriptor: int) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def file_count(db: sqlite3.Connection) -> int:
    return int(db.execute("SELECT COUNT(*) FROM files").fetchone()[0])


def test_applied_is_index_and_term_of_the_last_entry(tmp_path: Path, state: State) -> None:
    with closing(Store(tmp_path / "new.sqlite")) as new:
        assert new.applied() == (0, 0)
    state.store.apply([Entry(2, 7, EntryKind.NOOP, b"")])
    assert state.store.applied() == (2, 7)
    with closing(Store(state.path)) as again:
        assert again.applied() == (2, 7)


def test_database_is_for_its_owner_alone(tmp_path: Path) -> None:
    (tmp_path / "old.sqlite").touch(mode=0o644)
    for name in ("new.sqlite", "old.sqlite"):
        with closing(Store(tmp_path / name)) as store:
            store.apply(creations(1, 1))
            modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.glob(f"{name}*")}
        assert modes == dict.fromkeys((name, f"{name}-wal", f"{name}-shm", f"{name}.sums"), 0o600)


def test_entry_that_is_not_the_next_stops_the_process(state: State) -> None:
    with pytest.raises(AssertionError, match="not the next"):
        state.store.apply(state.entries)
    with pytest.raises(AssertionError, match="not the next"):
        state.store.apply(creations(3, 1))


def test_batch_that_breaks_an_invariant_is_not_kept_in_part(state: State) -> None:
    before = state.dump()
    contradiction = membership(3, coordinator("c1"), members=Members(("c9",)))
    with pytest.raises(AssertionError, match="records others"):
        state.store.apply([*creations(2, 1), contradiction])
    assert state.dump() == before
    state.store.apply(creations(2, 1))


def test_full_database_keeps_nothing_of_the_batch_and_takes_it_later(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite"
    State(path).store.close()
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        store = Store.over(db, db)
        pages = db.execute("PRAGMA page_count").fetchone()[0]
        db.execute(f"PRAGMA max_page_count = {pages + 10}")
        before = list(db.iterdump())
        batch = creations(2, 200)
        for _ in range(2):
            with pytest.raises(StoreFull):
                store.apply(batch)
            assert list(db.iterdump()) == before
            assert store.applied() == (1, 1)
        db.execute("PRAGMA max_page_count = 1000000")
        store.apply(batch)
        assert store.applied() == (201, 1)
        assert file_count(db) == 200


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 16 MiB, where the user may mount one."""
    directory = tmp_path / "small"
    directory.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(directory)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("this user may not mount a tmpfs")
    yield directory
    subprocess.run(["umount", "--lazy", str(directory)], check=True)


def fill(path: Path) -> None:
    """Take all the room that is left."""
    with contextlib.suppress(OSError), open(path, "wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def applied_until_full(store: Store) -> int:
    """The number of batches of 5 that a full disk takes."""
    for passed in range(10_000):
        try:
            store.apply(creations(store.applied_index() + 1, 5))
        except StoreFull:
            return passed
    raise AssertionError("the disk is not full")


def test_really_full_disk_takes_some_more_changes_then_none_and_goes_on_with_room(small_disk: Path) -> None:
    state = State(small_disk / "state.sqlite")
    fill(small_disk / "filling")
    passed = applied_until_full(state.store)
    assert passed > 50
    assert state.store.checkpoint() == state.store.applied_index() == 1 + 5 * passed
    assert state.store.totals()[0] == 5 * passed
    (small_disk / "filling").unlink()
    state.store.apply(creations(state.store.applied_index() + 1, 5))
    state.store.close()
    with closing(Store(state.path)) as again:
        assert again.totals()[0] == again.applied_index() - 1 == 5 * passed + 5


def test_other_error_of_the_database_is_no_full_disk(state: State) -> None:
    with closing(sqlite3.connect(state.path)) as db, db:
        db.execute("DROP TABLE uploads")
    with pytest.raises(sqlite3.OperationalError, match="uploads"):
        state.store.apply(creations(2, 1))
    assert state.store.applied() == (1, 1)


def test_store_over_connections_of_the_caller_is_the_same_store(state: State) -> None:
    state.nodes("n1", "n2")
    state.apply(create(ADMIN, "f1"))
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        store = Store.over(db, db)
        store.apply(state.entries)
        assert store.checkpoint() == state.log_index
        assert store.members() == state.store.members() == Members(("c1",))
        mine = list(db.iterdump())
    assert mine == state.dump()


def test_checkpoint_tells_the_applied_index(tmp_path: Path, state: State) -> None:
    state.store.apply(creations(2, 3))
    assert state.store.checkpoint() == 4
    with closing(Store(tmp_path / "empty.sqlite")) as empty:
        assert empty.checkpoint() == 0


def test_checkpoint_of_a_wal_that_is_gone_raises_nothing(state: State) -> None:
    state.path.with_name("state.sqlite-wal").unlink()
    assert state.store.checkpoint() == 1


def test_wal_is_found_in_the_file_and_the_log_alone_after_a_checkpoint(tmp_path: Path, state: State) -> None:
    """What `checkpoint` synced is the database: a copy of just these two files has all of it."""
    state.store.apply(creations(2, 50))
    index = state.store.checkpoint()
    copy = tmp_path / "copy.sqlite"
    copy.write_bytes(state.path.read_bytes())
    copy.with_name("copy.sqlite-wal").write_bytes(state.path.with_name("state.sqlite-wal").read_bytes())
    with closing(Store(copy)) as recovered:
        assert recovered.applied_index() == index
    assert dump(copy) == state.dump()


def test_start_counts_on_nothing_that_a_failed_sync_of_the_wal_left(
    tmp_path: Path, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel shows it and takes it for written, so that no later sync would save it."""
    state.store.apply(creations(2, 50))
    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", _fails)
        with pytest.raises(OSError, match="Input/output error"):
            state.store.checkpoint()
    left = tmp_path / "left.sqlite"
    wal = left.with_name("left.sqlite-wal")
    left.write_bytes(state.path.read_bytes())
    wal.write_bytes(state.path.with_name("state.sqlite-wal").read_bytes())

    with closing(Store(left)) as store:
        index = store.checkpoint()
        after_power_cut = tmp_path / "after.sqlite"
        after_power_cut.write_bytes(left.read_bytes())
        after_power_cut.with_name("after.sqlite-wal").write_bytes(bytes(wal.stat().st_size))

    with closing(Store(after_power_cut)) as store:
        assert store.applied_index() == index == 51


def test_wal_begins_anew_although_queries_come_all_the_time(state: State) -> None:
    wal = state.path.with_name("state.sqlite-wal")
    for batch in range(CHECKPOINT_CHANGES // 10):
        state.store.apply(creations(2 + 20 * batch, 20))
        state.store.totals()
    with closing(sqlite3.connect(state.path)) as db:
        pages = db.execute("PRAGMA page_count").fetchone()[0]
        _, frames, _ = db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    assert frames < pages
    assert wal.stat().st_size < WAL_BYTES_MAX


def test_copy_is_consistent_and_ends_while_changes_are_committed(tmp_path: Path, state: State) -> None:
    state.store.apply(creations(2, 3000))
    stop = threading.Event()

    def change() -> None:
        while not stop.is_set():
            state.store.apply(creations(state.store.applied_index() + 1, 5))

    changing = threading.Thread(target=change)
    changing.start()
    try:
        before = state.store.applied_index()
        copy_database(state.path, tmp_path / "copy", pause_s=0.02)
    finally:
        stop.set()
        changing.join(BOUND_S)
    with closing(sqlite3.connect(tmp_path / "copy")) as copy:
        (index,) = copy.execute("SELECT log_index FROM applied").fetchone()
        assert file_count(copy) == index - 1
        assert copy.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert before <= index < state.store.applied_index()
        assert copy.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    assert (tmp_path / "copy").stat().st_mode & 0o777 == 0o600


def test_copy_that_fails_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "state.sqlite").write_bytes(b"no database at all" * 100)
    with pytest.raises(sqlite3.DatabaseError):
        copy_database(tmp_path / "state.sqlite", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def open_paths() -> list[Path]:
    """The files that this process has open."""
    return [path.readlink() for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]


def write_no_database(path: Path) -> None:
    path.write_bytes(b"no database at all" * 100)


def write_view_in_place_of_a_table(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE VIEW users AS SELECT 1")


@pytest.mark.parametrize("write", [write_no_database, write_view_in_place_of_a_table])
def test_database_that_cannot_be_opened_is_closed(tmp_path: Path, write: Callable[[Path], None]) -> None:
    path = tmp_path / "state.sqlite"
    write(path)
    with pytest.raises(sqlite3.DatabaseError) as caught:
        Store(path)
    assert path not in open_paths()
    del caught  # until here its traceback has kept what was made


def test_reader_that_outlives_its_database_does_not_take_the_new_wal_with_it(
    tmp_path: Path, state: State
) -> None:
    """A copy may be going on while a snapshot is installed: its connection ends later than the store's."""
    other = State(tmp_path / "other.sqlite")
    other.store.apply(creations(2, 10))
    copy_database(other.path, tmp_path / "new")
    other.store.close()
    straggler = sqlite3.connect(state.path, isolation_level=None)
    straggler.execute("BEGIN")
    assert file_count(straggler) == 0
    state.store.close()
    for ending in ("-wal", "-shm"):
        state.path.with_name(state.path.name + ending).unlink()
    (tmp_path / "new").replace(state.path)
    state.store.reopen()
    state.store.apply(creations(12, 10))
    straggler.execute("COMMIT")
    straggler.close()
    state.store.apply(creations(22, 10))
    with closing(sqlite3.connect(state.path)) as seen:
        assert file_count(seen) == 30
        assert seen.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_open_session_and_replies_survive_a_restart(state: State) -> None:
    session = state.apply(commands.OpenSession(nonce="x"))
    first = state.apply(create(ADMIN, "f1"), session=session, sequence=1)
    state.store.close()
    state.store = Store(state.path)
    assert state.apply(create(ADMIN, "f1"), session=session, sequence=1) == first


def test_read_of_a_damaged_table_is_told_once_and_nothing_is_read_or_applied_after_it(
    tmp_path: Path,
) -> None:
    state = State(tmp_path / "state.sqlite")
    state.store.close()
    spoil(state.path, "users")
    found: list[StateDamaged] = []
    store = Store(state.path)
    store.watch(found.append)
    with closing(store):
        with pytest.raises(StateDamaged, match=r"state\.sqlite is damaged"):
            store.token_generation("admin")
        with pytest.raises(StateDamaged):
            store.totals()  # the pages of this are whole
        with pytest.raises(StateDamaged):
            store.apply(creations(2, 1))
    assert len(found) == 1


def test_text_that_is_none_any_more_is_damage(tmp_path: Path) -> None:
    state = State(tmp_path / "state.sqlite")
    state.store.close()
    spoil(state.path, "users", lambda page: page.replace(b'["admin"]', b'["adm\xffn"]'))
    with closing(Store(state.path)) as store, pytest.raises(StateDamaged):
        store.answer(ListUsers(caller=ADMIN), at_ms=1)
