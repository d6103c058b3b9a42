"""Snapshot files: taken, handed out in parts, fetched over a bad network, installed at any cost."""

import errno
import hashlib
import os
import shutil
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ca.errors import InsufficientStorage, InvalidRequest, NotFound
from coordinator.raft.messages import Members, SnapshotMeta
from coordinator.storage import snapshot_store
from coordinator.storage.snapshot_store import (
    CHUNK_BYTES_MAX,
    SNAPSHOT_BYTES_MAX,
    Chunk,
    SnapshotStore,
    describe,
)
from coordinator.storage.state_store import Store
from metadata.protocol import commands
from tests.cluster.small_disks import small_disk
from tests.unit.snapshot_files import fetch, files_of, meta_of, next_chunk, taken
from tests.unit.state import ADMIN, State, coordinator, create, dump, membership


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    """A state of more than two chunks, with a membership of its own."""
    made = State(tmp_path / "state.sqlite")
    made.apply_entry(membership(2, coordinator("c1"), coordinator("c2", role="learner")))
    for number in range(400):
        made.apply(create(ADMIN, f"f{number}", filename="x" * 1000, project_name="y" * 1000))
    yield made
    made.store.close()


@pytest.fixture
def source(tmp_path: Path, state: State) -> SnapshotStore:
    """Who has a snapshot of the state."""
    made = SnapshotStore(tmp_path / "source", state.path)
    taken(made, origin="")
    return made


@pytest.fixture
def target(tmp_path: Path) -> SnapshotStore:
    return SnapshotStore(tmp_path / "target" / "snapshots", tmp_path / "target" / "state.sqlite")


# Taking and handing out


def test_snapshot_says_what_it_holds(state: State, source: SnapshotStore) -> None:
    assert meta_of(source) == SnapshotMeta(state.log_index, 1, Members(("c1",), ("c2",)))


def test_only_the_newest_is_kept_and_it_is_found_after_a_restart(
    tmp_path: Path, state: State, source: SnapshotStore
) -> None:
    state.apply(create(ADMIN, "later"))
    newest = taken(source, origin="")
    assert newest.index == state.log_index
    name = f"{newest.index}-1"
    assert files_of(tmp_path / "source") == [f"{name}.json", f"{name}.snapshot"]
    assert SnapshotStore(tmp_path / "source", state.path).newest() == newest


def test_snapshot_of_the_same_entry_stays_as_it_is(
    tmp_path: Path, state: State, source: SnapshotStore
) -> None:
    chunk = source.chunk(meta_of(source).index, 1, 0)
    with closing(sqlite3.connect(state.path, isolation_level=None)) as db:
        db.execute("VACUUM")
    assert taken(source, origin="") == meta_of(source)
    assert source.chunk(chunk.index, 1, 0) == chunk
    assert len(files_of(tmp_path / "source")) == 2


def test_snapshot_that_is_not_whole_is_not_handed_out(
    tmp_path: Path, state: State, source: SnapshotStore
) -> None:
    path = tmp_path / "source" / f"{meta_of(source).index}-1.snapshot"
    with open(path, "r+b") as file:
        file.truncate(path.stat().st_size - 1)
    assert SnapshotStore(tmp_path / "source", state.path).newest() is None
    path.with_suffix(".json").write_bytes(b"no json")
    assert SnapshotStore(tmp_path / "source", state.path).newest() is None


def test_snapshot_that_died_while_it_was_made_is_made_again(
    tmp_path: Path, state: State, source: SnapshotStore
) -> None:
    (tmp_path / "source" / "making").write_bytes(b"half")
    assert taken(source, origin="") == meta_of(source)
    assert "making" not in files_of(tmp_path / "source")


def test_forgotten_snapshot_is_not_found(tmp_path: Path, source: SnapshotStore) -> None:
    meta = meta_of(source)
    source.forget_outgoing()
    assert source.newest() is None
    assert files_of(tmp_path / "source") == []
    with pytest.raises(NotFound):
        source.chunk(meta.index, meta.term, 0)


def test_snapshot_of_another_entry_is_not_found(source: SnapshotStore) -> None:
    meta = meta_of(source)
    for index, term in ((meta.index + 1, meta.term), (meta.index, meta.term + 1)):
        with pytest.raises(NotFound):
            source.chunk(index, term, 0)


def test_snapshot_is_not_begun_without_room(
    tmp_path: Path, state: State, source: SnapshotStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_store, "SNAPSHOT_RESERVE_BYTES", shutil.disk_usage(tmp_path).total)
    with pytest.raises(InsufficientStorage):
        taken(source, origin="")


def test_chunk_survives_the_wire_and_its_bounds_hold_there(source: SnapshotStore) -> None:
    chunk = source.chunk(meta_of(source).index, 1, CHUNK_BYTES_MAX)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(chunk), type=Chunk) == chunk
    hostile: list[dict[str, Any]] = [
        {"size_bytes": SNAPSHOT_BYTES_MAX + 1},
        {"size_bytes": -1},
        {"size_bytes": "many"},
        {"offset": -1},
        {"sha256": "a" * 63},
        {"sha256": "../" + "a" * 61},
        {"crc": 2**32},
        {"data": b""},
        {"data": bytes(CHUNK_BYTES_MAX + 1)},
        {"index": -1},
    ]
    for changes in hostile:
        encoded = msgspec.msgpack.encode(msgspec.structs.asdict(chunk) | changes)
        with pytest.raises(msgspec.ValidationError):
            msgspec.msgpack.decode(encoded, type=Chunk)


# Fetching


def test_what_is_left_of_a_fetch_makes_room_for_the_next(
    tmp_path: Path, source: SnapshotStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_store, "SNAPSHOT_RESERVE_BYTES", 0)
    (tmp_path / "target").mkdir()
    size_bytes = source.chunk(meta_of(source).index, 1, 0).size_bytes
    with small_disk(tmp_path / "target", size_bytes * 3 // 2, 1000):
        target = SnapshotStore(tmp_path / "target" / "snapshots", tmp_path / "target" / "state.sqlite")
        target.begin_incoming(meta_of(source)).add(next_chunk(source, target.begin_incoming(meta_of(source))))
        (part,) = (tmp_path / "target" / "snapshots").glob("*.part")
        with part.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, size_bytes)
        part.with_suffix(".part.json").unlink()  # as a crash leaves it
        assert fetch(source, target) == meta_of(source)


def test_fetched_snapshot_is_the_state(
    tmp_path: Path, state: State, source: SnapshotStore, target: SnapshotStore
) -> None:
    meta = fetch(source, target)
    with closing(Store(tmp_path / "target" / "state.sqlite")) as store:
        target.install(meta, store)
        assert store.applied() == (meta.index, meta.term)
        assert store.members() == meta.members
    assert dump(tmp_path / "target" / "state.sqlite") == state.dump()
    assert files_of(tmp_path / "target" / "snapshots") == []


def test_retried_command_replies_the_same_and_changes_nothing_after_an_installation(
    tmp_path: Path, state: State, source: SnapshotStore, target: SnapshotStore
) -> None:
    session = state.apply(commands.OpenSession(nonce="x"))
    first = state.apply(create(ADMIN, "once"), session=session, sequence=1)
    taken(source, origin="")
    meta = fetch(source, target)
    other = State(tmp_path / "target" / "state.sqlite")
    target.install(meta, other.store)
    other.log_index = meta.index
    files = other.store.totals()[0]
    assert other.apply(create(ADMIN, "once"), session=session, sequence=1) == first
    assert other.apply(create(ADMIN, "once")) == "invalid_request"
    assert other.store.totals()[0] == files
    other.store.close()


def test_lost_repeated_and_reordered_parts_change_nothing(
    source: SnapshotStore, target: SnapshotStore
) -> None:
    incoming = target.begin_incoming(meta_of(source))
    first = next_chunk(source, incoming)
    second = source.chunk(first.index, first.term, CHUNK_BYTES_MAX)
    with pytest.raises(InvalidRequest, match="next offset"):
        incoming.add(second)
    incoming.add(first)
    with pytest.raises(InvalidRequest, match="next offset"):
        incoming.add(first)
    assert incoming.offset == CHUNK_BYTES_MAX
    incoming.add(second)
    with pytest.raises(InvalidRequest, match="next offset"):
        incoming.add(first)
    fetch(source, target)


@pytest.mark.parametrize(
    "changes",
    [
        {"data": b"x"},
        {"crc": 0},
        {"index": 999},
        {"term": 9},
        {"size_bytes": -1},
        {"size_bytes": 0},
        {"size_bytes": SNAPSHOT_BYTES_MAX + 1},
        {"size_bytes": 10},
        {"offset": -1},
        {"offset": 2**62},
        {"data": b"", "crc": 0},
    ],
)
def test_damaged_or_hostile_part_changes_nothing(
    source: SnapshotStore, target: SnapshotStore, changes: dict[str, Any]
) -> None:
    incoming = target.begin_incoming(meta_of(source))
    for chunk in (next_chunk(source, incoming), source.chunk(meta_of(source).index, 1, CHUNK_BYTES_MAX)):
        with pytest.raises(InvalidRequest):
            incoming.add(msgspec.structs.replace(chunk, **changes))
        assert incoming.offset == chunk.offset
        incoming.add(chunk)


def test_part_larger_than_the_bound_is_refused(source: SnapshotStore, target: SnapshotStore) -> None:
    incoming = target.begin_incoming(meta_of(source))
    data = bytes(CHUNK_BYTES_MAX + 1)
    chunk = msgspec.structs.replace(next_chunk(source, incoming), data=data, crc=zlib.crc32(data))
    with pytest.raises(InvalidRequest, match="damaged"):
        incoming.add(chunk)


def test_snapshot_that_has_no_room_is_not_begun(tmp_path: Path, source: SnapshotStore) -> None:
    target = SnapshotStore(tmp_path / "target", tmp_path / "state.sqlite")
    incoming = target.begin_incoming(meta_of(source))
    chunk = msgspec.structs.replace(next_chunk(source, incoming), size_bytes=SNAPSHOT_BYTES_MAX)
    with pytest.raises(InsufficientStorage):
        incoming.add(chunk)
    assert incoming.offset == 0
    assert files_of(tmp_path / "target") == []


def test_restart_in_the_middle_goes_on_at_the_offset(source: SnapshotStore, target: SnapshotStore) -> None:
    incoming = target.begin_incoming(meta_of(source))
    incoming.add(next_chunk(source, incoming))
    again = target.begin_incoming(meta_of(source))
    assert again.offset == CHUNK_BYTES_MAX
    assert not again.is_complete
    fetch(source, target)


def test_restart_between_verification_and_installation_fetches_nothing_again(
    source: SnapshotStore, target: SnapshotStore
) -> None:
    fetch(source, target)
    again = target.begin_incoming(meta_of(source))
    assert again.is_complete
    again.finish()
    with pytest.raises(InvalidRequest, match="too late"):
        again.add(source.chunk(meta_of(source).index, 1, 0))


def test_what_came_of_another_snapshot_is_removed(
    tmp_path: Path, state: State, source: SnapshotStore, target: SnapshotStore
) -> None:
    incoming = target.begin_incoming(meta_of(source))
    incoming.add(next_chunk(source, incoming))
    state.apply(create(ADMIN, "later"))
    taken(source, origin="")
    newer = target.begin_incoming(meta_of(source))
    assert newer.offset == 0
    assert files_of(tmp_path / "target" / "snapshots") == []


def another_file(tmp_path: Path, source: SnapshotStore) -> SnapshotStore:
    """Another member's snapshot of the same entry: the same rows in other bytes."""
    index = meta_of(source).index
    shutil.copy(tmp_path / "source" / f"{index}-1.snapshot", tmp_path / "other.sqlite")
    with closing(sqlite3.connect(tmp_path / "other.sqlite", isolation_level=None)) as db:
        db.execute("PRAGMA page_size = 8192")
        db.execute("VACUUM")
    other = SnapshotStore(tmp_path / "other", tmp_path / "other.sqlite")
    with closing(Store(tmp_path / "other.sqlite")):
        taken(other, origin="")
    return other


def test_other_file_of_the_same_name_is_refused_and_then_fetched_from_the_start(
    tmp_path: Path, state: State, source: SnapshotStore, target: SnapshotStore
) -> None:
    other = another_file(tmp_path, source)
    incoming = target.begin_incoming(meta_of(source))
    incoming.add(next_chunk(source, incoming))
    with pytest.raises(InvalidRequest, match="another file"):
        incoming.add(next_chunk(other, incoming))
    assert incoming.offset == 0
    meta = fetch(other, target)
    with closing(Store(tmp_path / "target" / "state.sqlite")) as store:
        target.install(meta, store)
    assert dump(tmp_path / "target" / "state.sqlite") == state.dump()


def test_offset_behind_the_end_of_another_file_leads_back_to_its_start(source: SnapshotStore) -> None:
    index = meta_of(source).index
    assert source.chunk(index, 1, SNAPSHOT_BYTES_MAX) == source.chunk(index, 1, 0)


def forged(chunks: list[Chunk], content: bytes) -> list[Chunk]:
    """The same chunks with other content, whose own checksums are right."""
    parts = [content[chunk.offset : chunk.offset + len(chunk.data)] for chunk in chunks]
    return [
        msgspec.structs.replace(chunk, data=part, crc=zlib.crc32(part))
        for chunk, part in zip(chunks, parts, strict=True)
    ]


def all_chunks(source: SnapshotStore) -> list[Chunk]:
    first = source.chunk(meta_of(source).index, 1, 0)
    return [
        source.chunk(first.index, first.term, offset)
        for offset in range(0, first.size_bytes, CHUNK_BYTES_MAX)
    ]


def test_verified_snapshot_whose_name_was_not_durable_is_when_it_is_finished_again(
    source: SnapshotStore, target: SnapshotStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    incoming, synced = target.begin_incoming(meta_of(source)), list[Path]()
    for chunk in all_chunks(source):
        incoming.add(chunk)

    def refuse(_directory: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(snapshot_store, "sync_directory", refuse)
    for _ in range(2):
        with pytest.raises(OSError, match="Input/output"):
            incoming.finish()
    monkeypatch.setattr(snapshot_store, "sync_directory", synced.append)
    incoming.finish()
    assert synced != []


def test_wrong_digest_removes_what_came(tmp_path: Path, source: SnapshotStore, target: SnapshotStore) -> None:
    chunks = all_chunks(source)
    content = bytearray(b"".join(chunk.data for chunk in chunks))
    content[-1] ^= 1
    incoming = target.begin_incoming(meta_of(source))
    for chunk in forged(chunks, bytes(content)):
        incoming.add(chunk)
    with pytest.raises(InvalidRequest, match="announced"):
        incoming.finish()
    assert incoming.offset == 0
    assert files_of(tmp_path / "target" / "snapshots") == []
    fetch(source, target)


def test_other_rows_from_a_member_that_announces_no_rows_are_refused(
    tmp_path: Path, source: SnapshotStore, target: SnapshotStore
) -> None:
    """An older member announces the bytes alone."""
    chunks, changed = all_chunks(source), tmp_path / "changed"
    changed.write_bytes(b"".join(chunk.data for chunk in chunks))
    with closing(sqlite3.connect(changed)) as db, db:
        db.execute("UPDATE users SET generation = generation + 1")
    incoming = target.begin_incoming(meta_of(source))
    for chunk in forged(chunks, changed.read_bytes()):
        incoming.add(msgspec.structs.replace(chunk, content=""))
    with pytest.raises(InvalidRequest, match="announced"):
        incoming.finish()


def test_snapshot_whose_sync_failed_comes_again(
    tmp_path: Path, source: SnapshotStore, target: SnapshotStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel may have dropped it, and would call a second sync of the same bytes a success."""

    def fail(_descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(snapshot_store, "sync_file", fail)
        with pytest.raises(OSError, match="Input/output error"):
            fetch(source, target)
    assert target.begin_incoming(meta_of(source)).offset == 0
    assert files_of(tmp_path / "target" / "snapshots") == []
    assert fetch(source, target) == meta_of(source)


def test_file_that_is_no_state_is_refused(tmp_path: Path, target: SnapshotStore) -> None:
    with closing(sqlite3.connect(tmp_path / "empty.sqlite")) as db:
        db.execute("CREATE TABLE applied (log_index, term)")
    for content in (b"no database" * 1000, b"", (tmp_path / "empty.sqlite").read_bytes()):
        data = content or b"\0"
        incoming = target.begin_incoming(SnapshotMeta(5, 1, Members(("c1",))))
        incoming.add(
            Chunk(
                index=5,
                term=1,
                offset=0,
                size_bytes=len(data),
                sha256=hashlib.sha256(data).hexdigest(),
                crc=zlib.crc32(data),
                data=data,
            )
        )
        with pytest.raises(InvalidRequest, match="is not a state"):
            incoming.finish()
    assert files_of(tmp_path / "target" / "snapshots") == []


@pytest.mark.parametrize(
    "changes",
    [{"members": Members(("c1", "c9"))}, {"members": Members(("c1",))}, {"index": 7}, {"term": 7}],
)
def test_snapshot_that_holds_another_state_than_was_offered_is_refused(
    source: SnapshotStore, target: SnapshotStore, changes: dict[str, Any]
) -> None:
    offered = msgspec.structs.replace(meta_of(source), **changes)
    incoming = target.begin_incoming(offered)
    for chunk in all_chunks(source):
        incoming.add(msgspec.structs.replace(chunk, index=offered.index, term=offered.term))
    with pytest.raises(InvalidRequest, match="other members"):
        incoming.finish()
    assert incoming.offset == 0


def test_snapshot_is_not_installed_unverified(
    tmp_path: Path, source: SnapshotStore, target: SnapshotStore
) -> None:
    incoming = target.begin_incoming(meta_of(source))
    for chunk in all_chunks(source):
        incoming.add(chunk)
    with (
        closing(Store(tmp_path / "target" / "state.sqlite")) as store,
        pytest.raises(FileNotFoundError),
    ):
        target.install(meta_of(source), store)


def test_description_of_a_snapshot_changes_nothing(tmp_path: Path, source: SnapshotStore) -> None:
    path = tmp_path / "source" / f"{meta_of(source).index}-1.snapshot"
    path.chmod(0o400)
    before = files_of(tmp_path / "source")
    assert describe(path) == meta_of(source)
    assert files_of(tmp_path / "source") == before
