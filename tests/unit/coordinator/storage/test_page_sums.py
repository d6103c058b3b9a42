"""Checksums of the database's pages: what changes without a checkpoint is damage."""

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from coordinator.storage.state_damage import StateDamaged
from coordinator.storage.state_store import Store
from tests.unit.state import ADMIN, State, create
from tests.unit.state_damage import flip, pages_of, spoil, swap_pages, zero

FILES = 3000


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A database of some files, at rest."""
    state = State(tmp_path_factory.mktemp("made") / "state.sqlite")
    state.apply_batch(*(create(ADMIN, f"f{number}") for number in range(FILES)))
    state.store.close()
    return state.path.read_bytes()


@pytest.fixture
def store(made: bytes, tmp_path: Path) -> Iterator[Store]:
    (tmp_path / "state.sqlite").write_bytes(made)
    with closing(Store(tmp_path / "state.sqlite")) as opened:
        a_round(opened)
        yield opened


def a_round(store: Store) -> None:
    while not store.compare_pages():
        pass


@pytest.mark.parametrize("name", ["files", "files_by_owner", "users", "sqlite_autoindex_files_1"])
@pytest.mark.parametrize("change", [flip, zero])
def test_page_that_changes_by_itself_is_found_in_tables_and_indexes(
    store: Store, tmp_path: Path, name: str, change: Callable[[bytes], bytes]
) -> None:
    spoil(tmp_path / "state.sqlite", name, change)
    with pytest.raises(StateDamaged, match="has changed without a write"):
        a_round(store)
    with pytest.raises(StateDamaged):
        store.totals()


def test_leaves_that_are_swapped_are_found(store: Store, tmp_path: Path) -> None:
    first, *_, last = pages_of(tmp_path / "state.sqlite", "files")
    swap_pages(tmp_path / "state.sqlite", first, last)
    with pytest.raises(StateDamaged, match="has changed without a write"):
        a_round(store)


def test_changes_and_checkpoints_are_no_damage(store: Store, tmp_path: Path) -> None:
    state = State.over_store(tmp_path / "state.sqlite", store)
    stop = threading.Event()
    found: list[StateDamaged] = []

    def compare() -> None:
        try:
            while not stop.is_set():
                store.compare_pages()
        except StateDamaged as error:
            found.append(error)

    comparing = threading.Thread(target=compare)
    comparing.start()
    for number in range(12):
        state.apply_batch(*(create(ADMIN, f"g{number}-{each}") for each in range(300)))
        store._shorten_wal()
    stop.set()
    comparing.join(60)
    a_round(store)
    assert not found


def test_page_that_a_checkpoint_wrote_is_watched_from_then_on(store: Store, tmp_path: Path) -> None:
    state = State.over_store(tmp_path / "state.sqlite", store)
    state.apply_batch(*(create(ADMIN, f"g{each}") for each in range(300)))
    store._shorten_wal()
    spoil(tmp_path / "state.sqlite", "project_files_by_project", flip)
    with pytest.raises(StateDamaged):
        a_round(store)


def test_checkpoint_of_another_process_is_no_damage(store: Store, tmp_path: Path) -> None:
    state = State.over_store(tmp_path / "state.sqlite", store)
    state.apply_batch(*(create(ADMIN, f"g{each}") for each in range(300)))
    with closing(sqlite3.connect(tmp_path / "state.sqlite")) as other:
        other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    a_round(store)
    a_round(store)


def test_index_that_contradicts_its_table_is_found_though_every_page_is_well_formed(
    made: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "state.sqlite"
    path.write_bytes(made)
    spoil(path, "files_by_owner", lambda page: page.replace(b"admin", b"admim"))
    with closing(Store(path)) as store:
        store.check()  # it finds nothing
        assert "files" in store.tables()
        with pytest.raises(StateDamaged):
            store.compare_indexes("files", threading.Event())


def test_comparison_of_indexes_is_given_up_when_the_wal_grows_too_long(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(tmp_path / "state.sqlite", "files_by_owner", lambda page: page.replace(b"admin", b"admim"))
    monkeypatch.setattr("runtime.sqlite.WAL_BYTES_MAX", 0)
    monkeypatch.setattr("runtime.sqlite.STEPS_AT_ONCE", 100)
    store.compare_indexes("files", threading.Event())


def test_comparison_of_indexes_ends_when_it_is_told(store: Store) -> None:
    stop = threading.Event()
    stop.set()
    store.compare_indexes("files", stop)
