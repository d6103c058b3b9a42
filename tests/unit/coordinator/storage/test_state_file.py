"""The database file at rest: what was changed while nothing ran is found at the next start, and what a crash,
a stop, another program or a snapshot leaves is never taken for damage.
"""

import os
import random
import shutil
import sqlite3
import subprocess
import sys
from array import array
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from coordinator.storage.snapshot_store import SnapshotStore
from coordinator.storage.state_damage import StateDamaged
from coordinator.storage.state_store import Store
from coordinator.storage.stored_sums import SUMS, StoredSums
from coordinator.storage.wal_pages import WalPages
from tests.unit.seeds import seeds
from tests.unit.snapshot_files import fetch, taken
from tests.unit.state import ADMIN, State, create
from tests.unit.state_damage import flip, pages_of, swap_pages, zero

FILES = 600
SEEDS = seeds(range(2), range(2, 8))
STEPS = 40
BESIDE = (
    "import pathlib, sys, coordinator.storage.state_store as s; s.Store(pathlib.Path(sys.argv[1])).close()"
)
ENDINGS = ("", "-wal", SUMS)


def a_round(store: Store) -> None:
    while not store.compare_pages():
        pass


def knows_all(store: Store) -> bool:
    """Whether the sums of the process before covered every page."""
    assert store._file is not None
    assert store._file._sums is not None
    return store._file._sums.compare_all() == ([], True)


def copied(source: Path, target: Path) -> None:
    """As the files of a process that was killed in this moment."""
    target.parent.mkdir(exist_ok=True)
    for ending in ENDINGS:
        path = source.with_name(f"{source.name}{ending}")
        if path.exists():
            shutil.copy2(path, target.with_name(f"{target.name}{ending}"))  # the times too


def wal_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def filled(path: Path, *, files: int = FILES) -> State:
    """A state in its own file, checked as at a start."""
    state = State(path)
    state.store.check()
    state.apply_batch(*(create(ADMIN, f"f{number}") for number in range(files)))
    return state


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database that a process left when it was told to stop."""
    state = filled(tmp_path_factory.mktemp("stopped") / "state.sqlite")
    state.store.close()
    return state.path


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another one, of a process that was killed: a part is in the WAL alone, which holds older frames too."""
    directory = tmp_path_factory.mktemp("killed")
    state = filled(directory / "state.sqlite")
    state.store._shorten_wal()
    a_round(state.store)
    for number in range(3):
        state.apply(create(ADMIN, f"later-{number}"))
    copied(state.path, directory / "as-it-was" / "state.sqlite")
    state.store.close()
    return directory / "as-it-was" / "state.sqlite"


@pytest.fixture(params=["stopped", "killed"])
def left(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of either, to do something to."""
    path = tmp_path / "left" / "state.sqlite"
    copied(request.getfixturevalue(request.param), path)
    return path


def test_what_was_left_is_known_and_sound(left: Path) -> None:
    with closing(Store(left)) as store:
        store.check()
        assert knows_all(store)
        assert store.applied_index() in (FILES + 1, FILES + 4)


@pytest.mark.parametrize("name", ["files", "files_by_owner", "sqlite_autoindex_files_1"])
@pytest.mark.parametrize("change", [flip, zero])
def test_page_that_changed_while_nothing_ran_is_found(
    left: Path, name: str, change: Callable[[bytes], bytes]
) -> None:
    pages = pages_of_file(left, name)[:3]
    with left.open("r+b") as file:
        for page in pages:
            file.seek((page - 1) * 4096)
            before = file.read(4096)
            file.seek((page - 1) * 4096)
            file.write(change(before))
    restore_time(left)
    with pytest.raises(StateDamaged), closing(Store(left)) as store:
        store.check()


def pages_of_file(path: Path, name: str) -> list[int]:
    """By a copy: to open a database that a process left changes it."""
    copy = path.parent / "copy" / "state.sqlite"
    copied(path, copy)
    wal_of(copy).unlink(missing_ok=True)
    return pages_of(copy, name)


def restore_time(path: Path) -> None:
    """A disk does not change it."""
    kept = path.parent / "copy" / "state.sqlite"
    os.utime(path, ns=(kept.stat().st_atime_ns, kept.stat().st_mtime_ns))


def test_file_that_lost_its_end_is_found(left: Path) -> None:
    pages_of_file(left, "files")
    os.truncate(left, left.stat().st_size - 40 * 4096)
    restore_time(left)
    with pytest.raises((StateDamaged, sqlite3.DatabaseError)), closing(Store(left)) as store:
        store.check()


def test_file_of_another_coordinator_in_its_place_is_found(left: Path, tmp_path: Path) -> None:
    other = filled(tmp_path / "other.sqlite")
    other.store.close()
    shutil.copyfile(other.path, left)
    with pytest.raises(StateDamaged, match="it was replaced by another file"):
        Store(left)
    left.unlink()
    wal_of(left).unlink(missing_ok=True)
    with pytest.raises(StateDamaged, match="it was replaced by another file, or is missing"):
        Store(left)


def test_mark_that_an_older_release_gave_a_file_with_a_note_is_no_damage(tmp_path: Path) -> None:
    """It got the file as a snapshot, say, knows nothing of notes, and was killed before its checkpoint."""
    state = filled(tmp_path / "state.sqlite", files=3)
    for number in range(2):
        state.store._shorten_wal()
        state.apply(create(ADMIN, f"noted-{number}"))
    state.store.close()
    path = tmp_path / "left" / "state.sqlite"
    with closing(sqlite3.connect(state.path, isolation_level=None)) as older:
        assert older.execute("PRAGMA application_id").fetchone()[0] > 0
        older.execute("PRAGMA user_version = 7")
        copied(state.path, path)
    path.with_name(f"{path.name}{SUMS}").unlink()
    with closing(Store(path)) as store:
        store.check()


def test_wal_of_another_coordinator_is_found(killed: Path, tmp_path: Path) -> None:
    path = tmp_path / "left" / "state.sqlite"
    copied(killed, path)
    other = tmp_path / "other" / "state.sqlite"
    copied(killed, other)
    Store(other).close()
    with closing(Store(other)) as store:
        State.over_store(other, store).apply(create(ADMIN, "elsewhere"))
        wal_of(path).write_bytes(wal_of(other).read_bytes())
    with pytest.raises(StateDamaged, match="its WAL belongs to another database"):
        Store(path)


def test_wal_that_lost_what_is_in_the_file_already_is_found(tmp_path: Path) -> None:
    """Its beginning alone would take the file's pages back to what they were."""
    state = filled(tmp_path / "state.sqlite", files=3)
    for number in range(40):
        state.apply(create(ADMIN, f"later-{number}"))
    state.store._shorten_wal()
    left = tmp_path / "left" / "state.sqlite"
    copied(state.path, left)
    state.store.close()
    with wal_of(left).open("r+b") as wal:
        wal.seek(32 + 60 * (24 + 4096) + 100)  # in a frame that was copied
        wal.write(b"\xff" * 16)
    with pytest.raises(StateDamaged, match=r"it ends at entry 44, and its WAL at \d+$"):
        Store(left)


def test_wal_that_is_gone_takes_the_state_back_and_no_further(killed: Path, tmp_path: Path) -> None:
    path = tmp_path / "left" / "state.sqlite"
    copied(killed, path)
    wal_of(path).unlink()
    with closing(Store(path)) as store:
        store.check()
        assert store.applied_index() == FILES + 1


def killed_copying(directory: Path) -> tuple[Path, list[int]]:
    """A database whose process was killed while a checkpoint was at work, half of whose pages are there.

    And the pages of `files`.
    """
    state = filled(directory / "state.sqlite")
    state.store._shorten_wal()
    a_round(state.store)
    before = state.path.read_bytes()
    state.apply_batch(*(create(ADMIN, f"later-{number}") for number in range(60)))
    assert state.store._file is not None
    left = directory / "as-it-was" / "state.sqlite"
    with state.store._file.around_checkpoint():
        state.store._writer.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        copied(state.path, left)
    pages = pages_of(state.path, "files")
    state.store.close()
    half = len(before) // 8192 * 4096
    left.write_bytes(left.read_bytes()[:half] + before[half:])
    return left, pages


def test_what_a_checkpoint_left_in_which_the_process_died_is_known_and_sound(tmp_path: Path) -> None:
    """Else each such start would read all of the database by SQLite: minutes for 10^7 files."""
    with closing(Store(killed_copying(tmp_path)[0])) as store:
        assert knows_all(store)
        store.check()
        assert store.applied_index() == FILES + 61


@pytest.mark.parametrize("is_copied", [True, False])
def test_page_that_changed_after_such_a_death_is_found(tmp_path: Path, is_copied: bool) -> None:
    left, pages = killed_copying(tmp_path)
    written = WalPages(f"{left}-wal").pending_pages()
    page = next(page for page in pages if (page in written) == is_copied)
    with left.open("r+b") as file:
        file.seek((page - 1) * 4096)
        file.write(os.urandom(4096))
    with closing(Store(left)) as store:
        if is_copied:  # its WAL has it
            store.check()
        else:
            with pytest.raises(StateDamaged, match="changed while no process ran"):
                store.check()


def test_nothing_is_known_after_such_a_death_once_the_wal_is_another(tmp_path: Path) -> None:
    left, _ = killed_copying(tmp_path)
    wal_of(left).unlink()
    sums = StoredSums(left.with_name(f"{left.name}{SUMS}"))
    with closing(sums):
        assert sums.load(left.stat().st_mtime_ns, 4096, bytes(8)) == (array("Q"), False)


def test_what_another_program_wrote_is_no_damage(left: Path) -> None:
    with closing(sqlite3.connect(left, isolation_level=None)) as db:
        db.execute("UPDATE files SET filename = 'by-hand' WHERE filename = 'f7'")
    with closing(Store(left)) as store:
        store.check()
        a_round(store)
    with closing(Store(left)) as store:
        store.check()
        assert knows_all(store)


@pytest.mark.parametrize("seed", SEEDS)
def test_damaged_file_of_sums_is_as_good_as_none(left: Path, seed: int) -> None:
    dice = random.Random(seed)
    path = left.with_name(f"{left.name}{SUMS}")
    content = bytearray(path.read_bytes())
    match dice.randrange(4):
        case 0:
            content[dice.randrange(len(content))] ^= 1 << dice.randrange(8)
        case 1:
            start = dice.randrange(len(content))
            content[start:] = bytes(len(content) - start)
        case 2:
            del content[dice.randrange(len(content)) :]
        case _:
            content += bytes(content)
    path.write_bytes(content)
    for _ in range(2):
        with closing(Store(left)) as store:
            store.check()
            a_round(store)
    with closing(Store(left)) as store:
        assert knows_all(store)


def test_installed_snapshot_is_no_damage(left: Path, tmp_path: Path) -> None:
    giver = filled(tmp_path / "giver.sqlite", files=FILES + 50)
    giving = SnapshotStore(tmp_path / "given", giver.path)
    taken(giving, origin="")
    taking = SnapshotStore(tmp_path / "taken", left)
    with closing(Store(left)) as store:
        store.check()
        taking.install(fetch(giving, taking), store)
        a_round(store)
        copied(left, tmp_path / "again" / "state.sqlite")
    for path in (left, tmp_path / "again" / "state.sqlite"):
        with closing(Store(path)) as store:
            store.check()
            assert knows_all(store)
    giver.store.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_no_history_of_stops_and_kills_is_damage(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    path = tmp_path / "0" / "state.sqlite"
    path.parent.mkdir()
    state = State(path)
    state.store.check()
    for step in range(1, STEPS):
        with ExitStack() as stack:
            match dice.randrange(8):
                case 0:
                    state.store.close()
                    state = State.over_store(path, Store(path))
                    state.store.check()
                case 1:  # killed, and the files go on elsewhere
                    before, path = path, tmp_path / str(step) / "state.sqlite"
                    copied(before, path)
                    state.store.close()
                    state = State.over_store(path, Store(path))
                    state.store.check()
                case 2:
                    state.store._shorten_wal()
                case 3:
                    a_round(state.store)
                case 4:  # a reader holds the checkpoint back
                    held = stack.enter_context(closing(sqlite3.connect(path, isolation_level=None)))
                    held.execute("BEGIN")
                    held.execute("SELECT COUNT(*) FROM files").fetchone()
                    state.apply(create(ADMIN, f"held-{step}"))
                    state.store._shorten_wal()
                case 5:  # a second process, as for a token
                    subprocess.run([sys.executable, "-c", BESIDE, path], check=True, timeout=60)
                    state.apply(create(ADMIN, f"beside-{step}"))
                case _:
                    names = [f"s{step}-{number}" for number in range(dice.randrange(1, 300))]
                    state.apply_batch(*(create(ADMIN, name) for name in names))
    a_round(state.store)
    state.store.close()
    with closing(Store(path)) as store:
        store.check()
        assert knows_all(store)
        first, *_, last = pages_of(path, "files")
    swap_pages(path, first, last)
    with pytest.raises(StateDamaged, match="changed while no process ran"), closing(Store(path)) as store:
        store.check()


@pytest.mark.parametrize("changed_ns", [1, 2])
def test_file_of_sums_that_the_disk_refuses_is_as_good_as_none(tmp_path: Path, changed_ns: int) -> None:
    """It cannot be read, or not be cleared."""
    path = tmp_path / f"state.sqlite{SUMS}"
    sums = StoredSums(path)
    sums.adopt(7)
    sums.keep(array("Q", [5]), [0], 1, 4096, bytes(8))
    os.close(sums._file)
    sums._file = os.open(path, os.O_WRONLY if changed_ns == 1 else os.O_RDONLY)
    assert sums.load(changed_ns, 4096, bytes(8)) == (array("Q"), False)
    assert not sums.is_used
    assert not path.exists()
    sums.close()


@pytest.mark.parametrize("keeps_time", [True, False])
def test_file_of_an_earlier_state_under_a_newer_wal_is_found(tmp_path: Path, *, keeps_time: bool) -> None:
    path, earlier, later = tmp_path / "state.sqlite", tmp_path / "earlier.sqlite", tmp_path / "later"
    state = State(path)
    state.done(create(ADMIN, "first"))
    state.store.close()  # all lies in the file
    shutil.copy2(path, earlier)
    for name in ("second", "third"):
        store = Store(path)
        state = State.over_store(path, store)
        state.done(create(ADMIN, name))
        if name == "second":
            store.close()
    copied(path, later / path.name)  # as killed: the last change lies in the WAL
    store.close()
    left = later / path.name
    times = left.stat()
    shutil.copy2(earlier, left)
    if keeps_time:
        os.utime(left, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(StateDamaged), closing(Store(left)) as damaged:
        damaged.check()
