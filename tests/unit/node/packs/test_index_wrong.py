"""An index that answers wrongly: what is found by whom, and that the packs are believed instead."""

import errno
import os
import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from node.diskio.durable import Disk
from node.packs.index import IndexDamaged
from node.packs.pack_file import PackReader, open_pack, pack_name
from node.packs.store import INDEX, PackStore, RecordDamaged
from tests.unit.node.packs.index_damage import PAGE_BYTES
from tests.unit.node.packs.pack_acts import PACK_BYTES, blob
from tests.unit.node.packs.test_pack_store import FailingSyncs, present, put
from tests.unit.packed_store import compare, rewrite

MANY = 400  # rows of some pages


@contextmanager
def changed(path: Path) -> Iterator[sqlite3.Connection]:
    """The tables, to be changed as a page of another time or place would."""
    with closing(sqlite3.connect(path / INDEX)) as db, db:
        yield db


def sha256(number: int) -> bytes:
    return blob(number)[0]


def require_healed(store: PackStore, numbers: set[int]) -> None:
    """The index is known to be damaged, and is right once it is rebuilt."""
    with pytest.raises(IndexDamaged):
        store.index.packs()
    assert store.heal()
    assert present(store) == numbers
    compare(store)


def test_row_of_another_blob_sends_no_byte_of_it(store: PackStore, path: Path) -> None:
    """Its checksum is that of the row, and fits."""
    put(store, 1, 2, 3)
    with changed(path) as db:
        other = db.execute(
            "SELECT pack, offset, length, digest FROM blobs WHERE sha256 = ?", (sha256(2),)
        ).fetchone()
        db.execute("DELETE FROM blobs WHERE sha256 IN (?, ?)", (sha256(1), sha256(2)))
        db.execute("INSERT INTO blobs VALUES (?, ?, ?, ?, ?, 0)", (sha256(1), *other))
    with pytest.raises(IndexDamaged):
        store.read(sha256(1))
    require_healed(store, {1, 2, 3})


@pytest.mark.parametrize(
    "change",
    [
        "offset = offset + 1",
        "offset = offset + 1000000",
        "pack = pack + 1",
        "length = length - 1",
        "digest = x'0102030405060708'",
        "digest = NULL",
        "digest = 7",
        "length = 'much'",
        "length = 1 << 40",
        "offset = 1.5",
        "offset = -5",
        "pack = 'none'",
        "affirmed_at_ns = 'now'",
    ],
)
@pytest.mark.parametrize("is_sealed", [True, False])
def test_row_that_no_record_confirms_is_damage(
    store: PackStore, path: Path, change: str, is_sealed: bool
) -> None:
    put(store, 1, 2, 3, 4)
    if is_sealed:
        store.seal()
    with changed(path) as db:
        db.execute("PRAGMA ignore_check_constraints = ON")
        db.execute("PRAGMA writable_schema = ON")
        db.execute("UPDATE sqlite_schema SET sql = replace(sql, ' NOT NULL', '') WHERE name = 'blobs'")
        db.execute("PRAGMA schema_version = 99")
    with changed(path) as db:
        db.execute(f"UPDATE blobs SET {change} WHERE sha256 = ?", (sha256(2),))
    with pytest.raises(IndexDamaged):
        store.read(sha256(2))
    require_healed(store, {1, 2, 3, 4})


def test_record_that_is_rotten_is_no_damage_of_the_index(store: PackStore, path: Path) -> None:
    put(store, 1, 2, 3)
    found = store.find(sha256(2))
    assert found is not None
    store.seal()
    with (path / pack_name(found.place.pack)).open("r+b") as file:
        os.pwrite(file.fileno(), bytes(100), found.place.offset)  # its head, too
    with pytest.raises(RecordDamaged):
        store.read(sha256(2))
    compare(store)
    assert store.index.is_usable


def test_pack_that_lies_under_the_name_of_another_is_no_damage_of_the_index(path: Path) -> None:
    """And is not removed, though nothing of it counts any more: it has what another had."""
    with closing(PackStore(path)) as store:
        put(store, 1)
        store.seal()
        put(store, 2)
        store.seal()
        places = [store.find(sha256(number)) for number in (1, 2)]
    one, two = (path / pack_name(found.place.pack) for found in places if found is not None)
    one.rename(path / "aside")
    two.rename(one)
    (path / "aside").rename(two)
    with closing(PackStore(path)) as store:
        for number in (1, 2):
            with pytest.raises(RecordDamaged):
                store.read(sha256(number))
            store.remove(sha256(number))
        compare(store)
        for pack in store.index.packs():
            assert store.drop_if_empty(pack.number) == 0 or pack.number not in (int(one.stem, 16),)
        assert one.exists()
        assert two.exists()


@pytest.mark.parametrize("lost", ["blobs", "dead"])
def test_row_that_the_index_lacks_is_found_by_its_pack(store: PackStore, path: Path, lost: str) -> None:
    put(store, 1, 2, 3)
    put(store, 2)
    store.seal()
    store.remove(sha256(3))
    store.seal()
    compare(store)
    with changed(path) as db:
        assert db.execute(f"DELETE FROM {lost}").rowcount
        if lost == "blobs":
            db.execute("UPDATE packs SET live_bytes = 0, live_blobs = 0")
    with pytest.raises(IndexDamaged):
        compare(store)
    require_healed(store, {1, 2, 3})  # what was removed is back, for the log to be asked


def test_record_that_the_index_has_and_a_pack_does_not_is_found(store: PackStore, path: Path) -> None:
    put(store, 1, 2)
    store.seal()
    with changed(path) as db:
        db.execute(
            "INSERT INTO blobs SELECT ?, pack, offset + 1, length, digest, 0 FROM blobs LIMIT 1", (sha256(9),)
        )
    with pytest.raises(IndexDamaged):
        compare(store)
    require_healed(store, {1, 2})


def test_pack_with_a_record_that_the_index_lacks_is_not_removed(store: PackStore, path: Path) -> None:
    put(store, 1, 2)
    store.seal()
    [pack] = store.index.packs()
    with changed(path) as db:
        db.execute("DELETE FROM blobs")
    with pytest.raises(IndexDamaged):
        store.drop_if_empty(pack.number)
    require_healed(store, {1, 2})


def exchange_leaves(path: Path, seed: int) -> None:
    """Two pages of rows of blobs lie in each other's place."""
    with closing(sqlite3.connect(path / INDEX)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        rows = db.execute("SELECT sha256, digest FROM blobs").fetchall()
    raw = bytearray((path / INDEX).read_bytes())
    pages = [raw[at : at + PAGE_BYTES] for at in range(0, len(raw), PAGE_BYTES)]
    leaves = sorted(
        {
            number
            for name, digest in rows
            for number, page in enumerate(pages)
            if page[0] == 10 and name in page and digest in page
        }
    )
    one, two = random.Random(seed).sample(leaves, 2)
    pages[one], pages[two] = pages[two], pages[one]
    (path / INDEX).write_bytes(b"".join(pages))


def remove_all(store: PackStore) -> None:
    with suppress(IndexDamaged):  # which of them meets it depends on the pages
        for number in range(MANY):
            store.remove(sha256(number))


def list_all(store: PackStore) -> None:
    after = b""
    with suppress(IndexDamaged):
        while page := store.after(after, 7):
            after = page[-1][0]
    with pytest.raises(IndexDamaged):
        store.after(b"", 2 * MANY)


def compare_all(store: PackStore) -> None:
    with pytest.raises(IndexDamaged):
        compare(store)


@pytest.mark.parametrize("act", [remove_all, list_all, compare_all])
def test_each_loop_over_rows_out_of_order_ends(path: Path, act: Callable[[PackStore], None]) -> None:
    with closing(PackStore(path)) as store:
        put(store, *range(MANY))
    for seed in range(3):
        copy = path.with_name(str(seed))
        shutil.copytree(path, copy)
        exchange_leaves(copy, seed)
        with closing(PackStore(copy)) as store:
            act(store)


class Interrupted:
    """A disk that does something before a sync, once it is told to."""

    def __init__(self) -> None:
        self.act: Callable[[], object] | None = None
        self.disk = Disk(fdatasync=self._fdatasync)

    def _fdatasync(self, descriptor: int) -> None:
        act, self.act = self.act, None
        if act is not None:
            act()
        os.fdatasync(descriptor)


def test_blob_that_is_removed_while_its_pack_is_rewritten_stays_removed(path: Path) -> None:
    interrupted = Interrupted()
    with (
        closing(PackStore(path, disk=interrupted.disk)) as store,
        closing(PackStore(path)) as other,
    ):
        put(store, 1, 2)
        store.seal()
        [pack] = store.index.packs()
        interrupted.act = lambda: other.remove(sha256(1))  # copied, and the index does not know yet
        assert rewrite(store, pack) > 0
        assert interrupted.act is None
        assert present(store) == {2}
        compare(store)


@pytest.mark.parametrize("is_removed", [False, True])
def test_blob_that_is_rewritten_while_it_is_read_is_looked_up_again(
    path: Path, monkeypatch: pytest.MonkeyPatch, is_removed: bool
) -> None:
    with closing(PackStore(path)) as writer:
        put(writer, 1, 2)
    with closing(PackStore(path)) as store, closing(PackStore(path)) as other:
        moved = list[int]()

        def opened(number: int, directory: int) -> PackReader:
            if not moved:  # this one has asked the index, and has not opened the pack
                moved.append(number)
                [pack] = other.index.packs()
                assert rewrite(other, pack) > 0
                if is_removed:
                    other.remove(sha256(1))
            return open_pack(number, directory)

        monkeypatch.setattr("node.packs.store.open_pack", opened)
        assert store.read(sha256(1)) == (None if is_removed else blob(1)[1])
        assert moved
        assert store.index.is_usable


@pytest.mark.parametrize("act", ["load", "copy_some", "drop_pages"])
def test_place_that_no_file_has_is_damage(store: PackStore, path: Path, act: str) -> None:
    put(store, 1)
    store.seal()
    found, [pack] = store.find(sha256(1)), store.index.packs()
    assert found is not None
    with changed(path) as db:
        db.execute("UPDATE blobs SET offset = ?", (2**63 - 1,))
    acts: dict[str, Callable[[], object]] = {
        "load": lambda: store.load(sha256(1)),
        "copy_some": lambda: store.copy_some(pack.number, 0),
        "drop_pages": lambda: list(map(store.drop_pages, store.index.copies(sha256(1)))),
    }
    with pytest.raises(IndexDamaged):
        acts[act]()
    require_healed(store, {1})


def test_what_a_disk_refused_is_not_taken_for_damage(path: Path) -> None:
    syncs = FailingSyncs()
    with closing(PackStore(path, disk=syncs.disk, pack_bytes_max=PACK_BYTES)) as store:
        put(store, 1)
        syncs.fails = True
        for number in (2, 3):
            with pytest.raises(OSError, match="Input/output"):
                put(store, number)
        syncs.fails = False
        put(store, 4)
        store.seal()
        compare(store)
        assert present(store) == {1, 4}


def test_removal_on_a_full_disk_lets_its_pack_go(path: Path) -> None:
    is_full = False

    def pwrite(descriptor: int, buffer: bytes | bytearray | memoryview, offset: int) -> int:
        if is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.pwrite(descriptor, buffer, offset)

    with closing(PackStore(path, disk=Disk(pwrite=pwrite))) as store:
        put(store, 1, 2)
        store.seal()
        [pack] = store.index.packs()
        is_full = True
        assert store.remove(sha256(1))
        assert store.remove(sha256(2))
        compare(store)
        assert store.drop_if_empty(pack.number) > 0
        assert not (path / pack_name(pack.number)).exists()
