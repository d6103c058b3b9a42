"""A snapshot is sound when it is handed out and when it is taken; its taker knows whose state it is."""

import os
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from ca.errors import InvalidRequest
from coordinator.raft.messages import Entry, EntryKind
from coordinator.storage import pinned_state, state_backup
from coordinator.storage.page_sums import PageSums
from coordinator.storage.pinned_state import PinnedState, examine, up_to_whole_hash
from coordinator.storage.snapshot_store import SnapshotStore
from coordinator.storage.state_backup import copy_database
from coordinator.storage.state_damage import StateDamaged, flaw_in
from coordinator.storage.state_store import Store
from metadata.protocol import commands
from tests.unit.snapshot_files import fetch, files_of, meta_of, next_chunk, taken
from tests.unit.state import ADMIN, State, create
from tests.unit.state_damage import spoil

PAGE_BYTES = 4096
NAME = "never-touched-again"


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    """A state that lies in its file, not in its WAL."""
    made = State(tmp_path / "state.sqlite")
    for number in range(200):
        made.done(create(ADMIN, f"f{number}", filename=f"{NAME}-{number:03}"))
    made.store.close()
    made.store = Store(made.path)
    yield made
    made.store.close()


@pytest.fixture
def source(tmp_path: Path, state: State) -> SnapshotStore:
    return SnapshotStore(tmp_path / "source", state.path)


@pytest.fixture
def target(tmp_path: Path) -> SnapshotStore:
    return SnapshotStore(tmp_path / "target" / "snapshots", tmp_path / "target" / "state.sqlite")


def place_of_a_row(path: Path) -> int:
    """In the table: that of the index is the shorter one, and comes with others close by."""
    return path.read_bytes().index(f"{NAME}-100".encode())


def overwrite(path: Path, at: int, content: bytes) -> None:
    with open(path, "r+b", buffering=0) as file:
        file.seek(at)
        file.write(content)


def test_damage_is_found_in_a_file_that_is_in_use_and_in_one_at_rest(state: State, tmp_path: Path) -> None:
    assert flaw_in(state.path, at_rest=False) == ""
    copy_database(state.path, tmp_path / "copy")
    assert flaw_in(tmp_path / "copy", at_rest=True) == ""
    page = place_of_a_row(tmp_path / "copy") // PAGE_BYTES * PAGE_BYTES
    overwrite(tmp_path / "copy", page, bytes(PAGE_BYTES))
    assert flaw_in(tmp_path / "copy", at_rest=True) != ""
    (tmp_path / "none").write_bytes(b"no database" * 1000)
    assert "not a database" in flaw_in(tmp_path / "none", at_rest=True)


def test_state_with_a_page_of_zeros_is_not_handed_out(state: State, source: SnapshotStore) -> None:
    overwrite(state.path, place_of_a_row(state.path) // PAGE_BYTES * PAGE_BYTES, bytes(PAGE_BYTES))
    with pytest.raises(StateDamaged):
        taken(source, origin="")
    assert source.newest() is None
    assert source.flaw() != ""


def test_state_with_an_index_of_zeros_is_not_handed_out(state: State, source: SnapshotStore) -> None:
    """None of the rows is another one, so their digest says nothing of it."""
    spoil(state.path, "files_by_bucket")
    with pytest.raises(StateDamaged, match="its copy says"):
        taken(source, origin="")
    assert source.newest() is None


def test_rows_that_nobody_vouched_for_are_not_taken(
    state: State, source: SnapshotStore, target: SnapshotStore, tmp_path: Path
) -> None:
    """The bytes are what was announced; the rows are not those whose digest a majority has."""
    taken(source, origin="")
    incoming = target.begin_incoming(meta_of(source))
    while not incoming.is_complete:
        chunk = next_chunk(source, incoming)
        incoming.add(msgspec.structs.replace(chunk, content="0" * 64))
    with pytest.raises(InvalidRequest, match="differ from the announced ones"):
        incoming.finish()
    assert files_of(tmp_path / "target" / "snapshots") == []


@pytest.mark.parametrize(("said", "kept"), [("", ""), ("c1", "c1")])
def test_taker_knows_whose_state_it_has_from_then_on(
    state: State, source: SnapshotStore, target: SnapshotStore, tmp_path: Path, said: str, kept: str
) -> None:
    meta = taken(source, origin=said)
    fetch(source, target)
    assert target.begin_incoming(meta).is_vouched is (said == "")
    store = Store(tmp_path / "target" / "state.sqlite")
    target.install(meta, store)
    store.close()
    assert target.origin() == kept
    again = SnapshotStore(tmp_path / "target" / "snapshots", tmp_path / "target" / "state.sqlite")
    assert again.origin() == kept
    again.note_confirmed()
    assert again.origin() == ""


def test_snapshot_of_an_older_member_is_that_members_state(
    state: State, source: SnapshotStore, target: SnapshotStore, tmp_path: Path
) -> None:
    meta = taken(source, origin="")
    incoming = target.begin_incoming(meta, "c9")
    while not incoming.is_complete:
        incoming.add(msgspec.structs.replace(next_chunk(source, incoming), content=""))
    incoming.finish()
    with closing(Store(tmp_path / "target" / "state.sqlite")) as store:
        target.install(meta, store)
    assert target.origin() == "c9"


def test_pinned_state_stays_while_changes_go_on(state: State, source: SnapshotStore) -> None:
    before = state.log_index
    pinned = source.pin()
    first = source.pin()
    state.done(create(ADMIN, "later"))
    assert (pinned.index, state.log_index) == (before, before + 1)
    with closing(first):
        expected = first.digest()
    made = source.make(pinned)
    assert (made.meta.index, made.content) == (before, expected)
    assert examine(source._directory / "making").content == expected
    with closing(source.pin()) as later:
        assert later.digest() != expected


def test_settled_state_is_copied_as_its_file_lies_while_changes_and_checkpoints_go_on(
    state: State, source: SnapshotStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def act(steps: list[int], target: int, file: PageSums, offset: int, count: int) -> int:
        steps.append(state.log_index)
        state.apply_batch(*(create(ADMIN, f"meanwhile-{offset}-{number}") for number in range(100)))
        state.store._shorten_wal()
        return os.sendfile(target, file._file, offset, count)

    steps: list[int] = []
    monkeypatch.setattr(PageSums, "send", lambda file, *where: act(steps, where[0], file, *where[1:]))
    monkeypatch.setattr(state_backup, "SENT_AT_ONCE", 16 * PAGE_BYTES)
    state.done(create(ADMIN, "in the WAL alone"))
    file, before = state.store.settle(), state.log_index
    assert file is not None
    pinned = source.pin(file)
    with closing(source.pin()) as first:
        expected = first.digest()
    made = source.make(pinned)
    assert len(steps) > 3
    assert (made.meta.index, made.content) == (before, expected)
    making = examine(source._directory / "making")
    assert (making.flaw, making.content, making.sha256) == ("", expected, made.sha256)
    with closing(sqlite3.connect(source._directory / "making")) as copied:
        assert copied.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    assert {path.name for path in source._directory.iterdir()} == {"making"}
    assert state.store.settle() is not None
    state.store.check()


@pytest.mark.parametrize("is_beside", [True, False])
def test_copy_is_examined_alike_in_a_process_of_its_own_and_here(
    state: State,
    source: SnapshotStore,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    is_beside: bool,
) -> None:
    source.make(source.pin())
    here = examine(source._directory / "making")
    monkeypatch.setattr(pinned_state, "EXAMINED_BESIDE_BYTES_MIN", 1)
    if not is_beside:
        monkeypatch.setattr(sys, "executable", "/nowhere")
    assert examine(source._directory / "making") == here
    assert ("in this process" in caplog.text) == (not is_beside)


def test_flaw_is_found_by_a_process_of_its_own(
    state: State, source: SnapshotStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.make(source.pin())
    making = source._directory / "making"
    overwrite(making, place_of_a_row(making) // PAGE_BYTES * PAGE_BYTES, bytes(PAGE_BYTES))
    monkeypatch.setattr(pinned_state, "EXAMINED_BESIDE_BYTES_MIN", 1)
    assert examine(making).flaw


def test_state_of_which_a_reader_holds_a_part_in_the_wal_is_not_settled(
    state: State, source: SnapshotStore
) -> None:
    with closing(source.pin()):
        state.done(create(ADMIN, "later"))
        assert state.store.settle() is None
    assert state.store.settle() is not None


def test_file_in_whose_place_another_lies_is_not_copied(state: State, source: SnapshotStore) -> None:
    file = state.store.settle()
    state.store.close()  # as when a snapshot is installed
    state.store.reopen()
    with pytest.raises(OSError, match="another database"):
        source.make(source.pin(file))
    assert not (source._directory / "making").exists()


def test_digest_of_the_whole_state_shows_one_byte(state: State) -> None:
    with closing(PinnedState(state.path)) as pinned:
        before = pinned.digest()
    state.store.close()
    with closing(sqlite3.connect(state.path)) as db, db:
        db.execute("UPDATE files SET filename = 'x' || substr(filename, 2) WHERE file_uuid = 'f100'")
    with closing(PinnedState(state.path)) as pinned:
        assert pinned.digest() != before
    state.store = Store(state.path)


def test_batch_ends_where_all_of_the_state_is_hashed() -> None:
    def entry(index: int, command: commands.AnyCommand) -> Entry:
        envelope = commands.Envelope(0, 0, 0, 1, command)
        return Entry(index, 1, EntryKind.COMMAND, commands.encode_envelope(envelope))

    named = create(ADMIN, "f1", filename="hash_whole")  # is none
    entries = [entry(1, named), entry(2, commands.HashWhole()), entry(3, named), entry(4, named)]
    assert up_to_whole_hash(entries) == (entries[:2], entries[2:])
    assert up_to_whole_hash(entries[2:]) == (entries[2:], [])
    assert up_to_whole_hash([*entries[:2]]) == (entries[:2], [])
