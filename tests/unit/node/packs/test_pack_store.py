"""Blobs in packs: stored, removed, rewritten and damaged; by several threads, and by several processes."""

import errno
import hashlib
import os
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import pytest

from node.diskio.durable import Disk
from node.packs.index import IndexDamaged
from node.packs.pack_file import open_pack, pack_name
from node.packs.record import (
    HEAD_BYTES,
    HEADER_BYTES,
    MARKER_BYTES,
    encode_end,
    read_end,
    scan,
)
from node.packs.store import PackStore, RecordDamaged
from tests.unit.node.packs.pack_acts import PACK_BYTES, blob
from tests.unit.packed_store import compare, rewrite

MANY = 40


def opened_anew(store: PackStore, path: Path, *, has_index: bool = True) -> PackStore:
    store.close()
    if not has_index:
        for file in path.glob("index.sqlite*"):
            file.unlink()
    return PackStore(path, pack_bytes_max=PACK_BYTES)


def put(store: PackStore, *numbers: int) -> None:
    store.put([blob(number) for number in numbers])


def present(store: PackStore) -> set[int]:
    """Which of the first blobs are read as they were stored."""
    found = set()
    for number in range(MANY):
        sha256, content = blob(number)
        if (read := store.read(sha256)) is not None:
            assert read == content
            found.add(number)
    listed = {sha256 for sha256, _ in store.after(b"", 1000)}
    assert listed == {blob(number)[0] for number in found}
    return found


def rewrite_all(store: PackStore) -> int:
    store.seal()
    return sum(rewrite(store, pack) for pack in store.index.packs() if pack.is_sealed)


def change(path: Path, offset: int, count: int = 1) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        content = file.read(count)
        file.seek(offset)
        file.write(bytes(byte ^ 0xFF for byte in content))


def pack_of(store: PackStore, path: Path, number: int) -> tuple[Path, int]:
    """The pack that a blob lies in, and where its record begins."""
    found = store.find(blob(number)[0])
    assert found is not None
    return path / pack_name(found.place.pack), found.place.offset


def test_removed_blob_is_not_found_whoever_opens_the_packs(store: PackStore, path: Path) -> None:
    put(store, 1, 2, 3)
    assert store.remove(blob(2)[0])
    assert not store.remove(blob(2)[0])
    assert present(store) == {1, 3}
    with closing(opened_anew(store, path)) as again:
        assert present(again) == {1, 3}
        put(again, 2)
        assert present(again) == {1, 2, 3}


def test_what_is_back_without_the_index_is_claimed_by_nobody(store: PackStore, path: Path) -> None:
    """The log is asked of each, and what was removed goes again."""
    put(store, 1, 2, 3)
    put(store, 1)
    for sha256, at_ns in store.index.list_unclaimed(9):
        store.index.forget_unclaimed(sha256, at_ns)
    assert store.remove(blob(2)[0])
    with closing(opened_anew(store, path, has_index=False)) as again:
        assert present(again) == {1, 2, 3}
        assert {sha256 for sha256, _ in again.index.list_unclaimed(9)} == {
            blob(each)[0] for each in (1, 2, 3)
        }
        for number in (1, 2):
            assert again.remove(blob(number)[0])  # of the one both records
        compare(again)
        assert present(again) == {3}


@pytest.mark.parametrize("has_index", [True, False])
def test_rewriting_gives_back_what_is_dead_and_loses_nothing(
    store: PackStore, path: Path, has_index: bool
) -> None:
    put(store, *range(MANY))
    for number in range(0, MANY, 2):
        store.remove(blob(number)[0])
    before = sum(file.stat().st_size for file in path.glob("*.pack"))
    given_back = rewrite_all(store)
    after = sum(file.stat().st_size for file in path.glob("*.pack"))
    assert given_back > 0
    assert (
        0 <= given_back - (before - after) < 3000
    )  # headers of packs, and the index at the end of a new one
    assert present(store) == set(range(1, MANY, 2))
    with closing(opened_anew(store, path, has_index=has_index)) as again:
        assert present(again) == set(range(1, MANY, 2))


def test_pack_that_is_appended_to_is_not_taken_away(store: PackStore) -> None:
    put(store, 1, 2)
    [pack] = store.index.packs()
    assert not pack.is_sealed
    assert rewrite(store, pack) == 0
    assert present(store) == {1, 2}


def test_live_bytes_are_those_of_what_counts(store: PackStore) -> None:
    put(store, *range(10))
    for number in range(5):
        store.remove(blob(number)[0])
    live = sum(each.live_bytes for each in store.index.packs())
    assert live == sum(HEAD_BYTES + len(blob(each)[1]) for each in range(5, 10))
    rewrite_all(store)
    live = sum(each.live_bytes for each in store.index.packs())
    assert live == sum(HEAD_BYTES + len(blob(each)[1]) for each in range(5, 10))
    assert store.index.totals() == (5, sum(len(blob(each)[1]) for each in range(5, 10)))


@pytest.mark.parametrize("has_index", [True, False])
@pytest.mark.parametrize("where", ["head", "name", "payload"])
def test_damage_costs_one_blob(path: Path, where: str, has_index: bool) -> None:
    store = PackStore(path, disk=Disk(fdatasync=lambda _descriptor: None))
    put(store, *range(10))
    pack, offset = pack_of(store, path, 4)
    size_bytes = pack.stat().st_size
    store.close()
    os.truncate(pack, size_bytes)  # as of a process that was killed: no index at its end
    change(pack, offset + {"head": 5, "name": 20, "payload": HEAD_BYTES}[where])
    if not has_index:
        for file in path.glob("index.sqlite*"):
            file.unlink()
    with closing(PackStore(path)) as again:
        if has_index and where == "payload":
            with pytest.raises(RecordDamaged):
                again.read(blob(4)[0])
            assert rewrite_all(again) == 0  # it stays where it is, for whoever looks into it
            again.remove(blob(4)[0])
        elif has_index:
            again.remove(blob(4)[0])  # its head is needed by nobody who has the index
        assert present(again) == set(range(10)) - {4}


def test_pack_that_takes_no_more_carries_its_index(store: PackStore, path: Path) -> None:
    put(store, 1, 2)
    [pack] = store.index.packs()
    store.seal()
    reader = store.reader(pack.number)
    records = read_end(reader.descriptor, reader.header().marker)
    assert records == list(scan(reader.descriptor, reader.header(), HEADER_BYTES))
    assert [record.sha256 for record in records] == [blob(1)[0], blob(2)[0]]


def test_torn_end_of_a_pack_is_passed_over(store: PackStore, path: Path) -> None:
    put(store, 1, 2)
    pack, offset = pack_of(store, path, 2)
    store.close()
    os.truncate(pack, offset + HEAD_BYTES + 1)
    for file in path.glob("index.sqlite*"):
        file.unlink()
    with closing(PackStore(path)) as again:
        assert present(again) == {1}
        put(again, 2)
        assert present(again) == {1, 2}
        assert pack_of(again, path, 2)[0] != pack


def test_files_that_are_no_packs_stay_and_stop_nothing(store: PackStore, path: Path) -> None:
    put(store, 1)
    strange = [path / pack_name(7), path / pack_name(8), path / "README", path / "12.pack"]
    strange[0].write_bytes(b"no pack")
    strange[2].write_bytes(b"hello")
    pack, _ = pack_of(store, path, 1)
    strange[1].write_bytes(pack.read_bytes())  # a pack under another's name
    strange[3].mkdir()
    with closing(opened_anew(store, path)) as again:
        assert present(again) == {1}
    assert all(file.exists() for file in strange)


def test_links_and_directories_with_the_name_of_a_pack_stop_nothing(store: PackStore, path: Path) -> None:
    put(store, 1)
    (path / pack_name(7)).mkdir()
    (path / pack_name(8)).symlink_to("/etc/hostname")
    with closing(opened_anew(store, path)) as again:
        assert present(again) == {1}


@pytest.mark.parametrize("size_bytes", [0, 5, HEADER_BYTES])
def test_pack_that_never_got_its_header_is_removed_when_nobody_can_be_about_to_write_it(
    store: PackStore, path: Path, size_bytes: int
) -> None:
    """As a crash leaves it."""
    put(store, 1)
    unbegun = path / pack_name(9)
    unbegun.write_bytes(bytes(size_bytes))
    with closing(PackStore(path)) as other:
        assert unbegun.exists()
        assert present(other) == {1}
    with closing(opened_anew(store, path)) as again:
        assert not unbegun.exists()
        assert present(again) == {1}


def test_content_that_ends_like_a_pack_hides_no_other(path: Path) -> None:
    """A client knows the format, and the power may fail right behind its blob."""
    store = PackStore(path)
    put(store, 1)
    pack, offset = pack_of(store, path, 1)
    start = offset + HEAD_BYTES + len(blob(1)[1]) + HEAD_BYTES
    forged = encode_end(bytes(MARKER_BYTES), (), start)
    store.put([(hashlib.sha256(forged).digest(), forged)])
    size_bytes = pack.stat().st_size
    store.close()
    os.truncate(pack, size_bytes)
    for file in path.glob("index.sqlite*"):
        file.unlink()
    with closing(PackStore(path)) as again:
        assert again.read(blob(1)[0]) == blob(1)[1]
        assert again.read(hashlib.sha256(forged).digest()) == forged


def test_pack_that_another_process_appends_to_is_not_rewritten(path: Path) -> None:
    with closing(PackStore(path)) as one, closing(PackStore(path)) as two:
        put(one, 1, 2)
        [pack] = two.index.packs()
        assert rewrite(two, pack) == 0
        assert len(list(path.glob("*.pack"))) == 1
        put(one, 3)
        assert present(two) == {1, 2, 3}


@pytest.mark.parametrize("is_found", [True, False], ids=["at start", "at work"])
def test_index_with_a_damaged_page_is_made_anew(store: PackStore, path: Path, is_found: bool) -> None:
    """When it is opened again: who has met the damage leaves a mark."""
    put(store, 1, 2)
    store.close()
    table = "packs" if is_found else "blobs"
    with closing(sqlite3.connect(path / "index.sqlite")) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        asked = "SELECT rootpage FROM sqlite_master WHERE name = ?"
        [(page,)] = db.execute(asked, (table,)).fetchall()
    change(path / "index.sqlite", (page - 1) * 4096, 4096)
    if not is_found:
        with closing(PackStore(path)) as damaged:
            with pytest.raises(IndexDamaged):
                damaged.read(blob(1)[0])
            with pytest.raises(IndexDamaged):
                put(damaged, 3)
    with closing(PackStore(path)) as again:
        assert present(again) - {3} == {1, 2}
    with closing(PackStore(path)) as again:
        assert present(again) - {3} == {1, 2}


def test_index_that_is_no_database_is_made_anew(store: PackStore, path: Path) -> None:
    put(store, 1, 2)
    store.close()
    (path / "index.sqlite").write_bytes(b"x" * 5000)
    with closing(PackStore(path)) as again:
        assert present(again) == {1, 2}


def test_pack_is_full_with_a_number_of_records_too(store: PackStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process remembers each until it seals the pack."""
    monkeypatch.setattr("node.packs.store.PACK_RECORDS_MAX", 5)
    for number in range(10):
        put(store, number)
    assert len(store.index.packs()) == 2
    assert present(store) == set(range(10))


def test_pack_is_open_as_long_as_somebody_reads_it(store: PackStore, path: Path) -> None:
    put(store, 1)
    pack, _ = pack_of(store, path, 1)
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        reader = open_pack(int(pack.stem, 16), directory)
    finally:
        os.close(directory)
    pack.unlink()
    descriptor = reader.descriptor
    assert os.fstat(descriptor).st_size == reader.size_bytes
    assert reader.is_gone
    del reader
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


class FailingSyncs:
    """A disk whose syncs fail while it `fails`."""

    def __init__(self) -> None:
        self.fails = False
        self.disk = Disk(fdatasync=self._fdatasync)

    def _fdatasync(self, descriptor: int) -> None:
        if self.fails:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        os.fdatasync(descriptor)


def test_sync_that_fails_fails_all_of_its_blobs_and_no_other(path: Path) -> None:
    syncs = FailingSyncs()
    with closing(PackStore(path, disk=syncs.disk)) as store:
        put(store, 1)
        syncs.fails = True
        with pytest.raises(OSError, match="Input/output"):
            put(store, 2, 3)
        assert present(store) == {1}
        syncs.fails = False
        put(store, 4)
        assert present(store) == {1, 4}
        assert pack_of(store, path, 1)[0] != pack_of(store, path, 4)[0]


def test_what_a_disk_has_not_taken_leaves_no_packs(path: Path) -> None:
    """Of a pack that nothing was stored in nothing is left, and a torn end is given back."""
    syncs = FailingSyncs()
    with closing(PackStore(path, disk=syncs.disk)) as store:
        put(store, 1)
        syncs.fails = True
        for number in range(2, 12):
            with pytest.raises(OSError, match="Input/output"):
                put(store, number)
        syncs.fails = False
        put(store, 12)
        assert {int(pack.stem, 16) for pack in path.glob("*.pack")} == {
            facts.number for facts in store.index.packs()
        }
        [torn, _] = sorted(store.index.packs(), key=lambda facts: not facts.is_sealed)
        assert (path / pack_name(torn.number)).stat().st_size == torn.indexed_bytes
        assert present(store) == {1, 12}


def test_full_disk_fails_a_put_and_leaves_what_was_there(path: Path) -> None:
    room = HEADER_BYTES + 5000

    def pwrite(descriptor: int, buffer: bytes | bytearray | memoryview, offset: int) -> int:
        if offset + len(buffer) > room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.pwrite(descriptor, buffer, offset)

    stored = set()
    with closing(PackStore(path, disk=Disk(pwrite=pwrite))) as store:
        for number in range(MANY):
            with suppress(OSError):
                put(store, number)
                stored.add(number)
        assert 0 < len(stored) < MANY
        assert present(store) == stored
    with closing(PackStore(path)) as again:
        assert present(again) >= stored


def test_two_processes_find_each_other_s_blobs_and_append_to_packs_of_their_own(path: Path) -> None:
    with closing(PackStore(path)) as one:
        put(one, 1)
        with closing(PackStore(path)) as two:
            put(two, 2)
            put(one, 3)
            assert present(one) == present(two) == {1, 2, 3}
            assert pack_of(one, path, 1)[0] == pack_of(one, path, 3)[0] != pack_of(one, path, 2)[0]
            two.remove(blob(1)[0])
            assert present(one) == {2, 3}
            one.seal()
            one.remove(blob(3)[0])
            for pack in two.index.packs():
                if pack.is_sealed:
                    assert rewrite(two, pack) > 0
            assert present(one) == {2}
