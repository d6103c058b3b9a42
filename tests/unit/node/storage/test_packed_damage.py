"""Packed blobs that are damaged or gone, packs that are, and their index: found, told, and never served."""

import asyncio
import errno
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from ca.errors import FilestoreError
from node.diskio.durable import Disk
from node.diskio.executor import DiskWorkers
from node.membership import disk_monitor
from node.membership.disk_monitor import DiskWatch
from node.packs.index import IndexDamaged, PackIndex
from node.packs.pack_file import pack_name
from node.packs.record import HEAD_BYTES
from node.packs.rows import PackedBlob
from node.packs.store import BLOB_BYTES_MAX, INDEX
from node.storage.blob_files import PACKS as INDEX_AREA
from node.storage.blobs import BlobStore
from node.storage.damage import remove_from_service, retry_quarantine, verify_blob
from node.storage.inventory import check_blob
from node.storage.quarantine import Quarantine
from node.storage.segments import BlobDamaged, BlobMissing, FinishedBlob
from node.uploads.write_locks import UploadLocks
from tests.packed_blobs import exchange_packed, opened_index, packed_present, rot_packed
from tests.page_cache import counts_reads, drops_pages, pages_in_memory, read_from_disks_bytes
from tests.unit.custody_node import PACKS, SIZE_BYTES, Keeper
from tests.unit.packed_store import CONTENT, NAME, compare, name_of, put, read, rewrite_all


@pytest.fixture
def store(tmp_path: Path) -> Iterator[BlobStore]:
    with closing(BlobStore(tmp_path)) as opened:
        yield opened


def rot_at(directory: Path, found: PackedBlob) -> None:
    """One bit of a record is another."""
    with (directory / "packs" / pack_name(found.place.pack)).open("r+b") as file:
        start = found.place.offset + HEAD_BYTES
        byte = os.pread(file.fileno(), 1, start)
        os.pwrite(file.fileno(), bytes([byte[0] ^ 1]), start)


class Hook:
    """A disk that does something once, before a sync of a file below `uploads`: in the middle of an act."""

    def __init__(self, act: Callable[[], object]) -> None:
        self._act: Callable[[], object] | None = act
        self.disk = Disk(fsync=self._fsync)

    def _fsync(self, descriptor: int) -> None:
        act, self._act = self._act, None
        if act is not None:
            act()
        os.fsync(descriptor)


def test_file_takes_the_place_of_a_packed_one_that_is_out_of_service(
    store: BlobStore, tmp_path: Path
) -> None:
    put(store, CONTENT)
    rot_packed(tmp_path, NAME)
    with pytest.raises(BlobDamaged) as caught:
        store.open(NAME)
    assert store.remove_from_service(caught.value)
    for look_at in (store.open, store.size_bytes):
        with pytest.raises(BlobMissing):
            look_at(NAME)
    put(store, CONTENT, packed=False)
    assert store.size_bytes(NAME) == len(CONTENT)
    assert read(store, NAME) == CONTENT
    assert store.packed.copies(NAME) == []


@pytest.mark.parametrize("how", ["affirmed", "came again"])
def test_damaged_record_goes_also_when_somebody_is_told_of_it_meanwhile(
    store: BlobStore, tmp_path: Path, how: str
) -> None:
    """Who says that it is here has not read it; a new copy is another record."""
    put(store, CONTENT)
    rot_packed(tmp_path, NAME)
    with pytest.raises(BlobDamaged) as caught:
        store.open(NAME)
    store.disk = Hook(lambda: store.affirm(NAME) if how == "affirmed" else put(store, CONTENT)).disk
    is_gone = Quarantine(store).take(NAME, caught.value)
    if how == "affirmed":
        assert is_gone
        assert not store.has_name(NAME)
        assert [name for name, _ in Quarantine(store).names()] == [NAME]
    else:
        assert not is_gone
        assert read(store, NAME) == CONTENT
        assert Quarantine(store).names() == []


@PACKS
async def test_damaged_record_that_was_affirmed_is_moved_when_the_disk_allows_it(keeper: Keeper) -> None:
    name = keeper.store()
    keeper.rot(name)

    def fails(_descriptor: int) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    keeper.blobs.disk = Disk(fsync=fails)
    with pytest.raises(BlobDamaged):
        await verify_blob(keeper.disk, keeper.blobs, keeper.metrics, name)
    assert (keeper.blobs.has(name), keeper.blobs.has_name(name)) == (False, True)
    with pytest.raises(BlobMissing):
        keeper.blobs.open(name)
    await keeper.custody.settle_losses()
    assert keeper.held() == []
    assert keeper.blobs.affirm(name)
    await retry_quarantine(keeper.disk, keeper.blobs, keeper.metrics)
    assert (keeper.quarantined(), len(keeper.blobs.out_of_service)) == ([], 1)
    keeper.blobs.disk = Disk()
    await retry_quarantine(keeper.disk, keeper.blobs, keeper.metrics)
    assert (keeper.quarantined(), keeper.on_disk()) == ([name], [])
    assert (len(keeper.blobs.out_of_service), len(keeper.blobs.poison)) == (0, 0)


@PACKS
async def test_record_that_comes_anew_is_served_though_the_one_before_is_out_of_service(
    keeper: Keeper,
) -> None:
    content = keeper.content()
    name = keeper.store(content)
    keeper.rot(name)
    with pytest.raises(BlobDamaged) as caught:
        keeper.blobs.open(name)
    assert keeper.blobs.remove_from_service(caught.value)
    keeper.put(content)
    assert await verify_blob(keeper.disk, keeper.blobs, keeper.metrics, name) == SIZE_BYTES
    await retry_quarantine(keeper.disk, keeper.blobs, keeper.metrics)
    assert (keeper.on_disk(), keeper.quarantined()) == ([name], [])


@PACKS
async def test_pack_that_is_missing_or_cut_is_a_loss_of_what_was_in_it(keeper: Keeper) -> None:
    names = sorted(keeper.store() for _ in range(4))
    keeper.blobs.packed.store.seal()
    kept = keeper.store()
    packed_present(keeper.directory, names[0]).pack.unlink()
    keeper.restart()
    assert (await keeper.compare())["missing"] == 4
    assert keeper.held() == keeper.on_disk() == [kept]
    assert keeper.audited("replica.lost") == names
    assert keeper.quarantined() == []


@PACKS
async def test_pack_that_goes_while_a_process_runs_is_a_loss_and_nothing_is_left_to_keep(
    keeper: Keeper,
) -> None:
    gone, kept = keeper.store(), ""
    keeper.blobs.packed.store.seal()
    kept = keeper.store()
    packed_present(keeper.directory, gone).pack.unlink()
    assert not keeper.blobs.has(gone)
    assert (await keeper.compare())["missing"] == 1
    assert keeper.held() == keeper.on_disk() == [kept]
    assert keeper.quarantined() == []


def test_pack_that_somebody_removed_takes_no_more(store: BlobStore, tmp_path: Path) -> None:
    """What was written to it would be gone with the process."""
    put(store, b"first")
    packed_present(tmp_path, name_of(b"first")).pack.unlink()
    with pytest.raises(FilestoreError):
        put(store, CONTENT)
    assert not store.has_name(NAME)
    put(store, CONTENT)
    assert packed_present(tmp_path, NAME).read() == CONTENT


def spoil_index(directory: Path) -> None:
    """The table of blobs alone: what is read when the packs are opened is sound."""
    path = directory / "packs" / "index.sqlite"
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        [(page,)] = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'blobs'").fetchall()
        [(page_bytes,)] = db.execute("PRAGMA page_size").fetchall()
    with path.open("r+b") as file:
        os.pwrite(file.fileno(), bytes(page_bytes), (page - 1) * page_bytes)


@PACKS
async def test_index_that_is_damaged_while_a_process_runs_makes_nothing_lost(keeper: Keeper) -> None:
    """It says so of every blob, and the index is rebuilt while the process runs."""
    names = sorted(keeper.store() for _ in range(3))
    keeper.packed = False
    file = keeper.store()
    keeper.packed = True
    keeper.end()
    spoil_index(keeper.directory)
    keeper.start()
    for act in (keeper.blobs.has, keeper.blobs.open, keeper.blobs.delete, keeper.blobs.affirm):
        with pytest.raises(FilestoreError):
            act(names[0])
    with pytest.raises(FilestoreError):
        keeper.put(keeper.content())
    counts = await keeper.compare()
    assert (counts["looked"], counts["missing"]) == (1, 0)
    keeper.blobs.open(file).close()
    cycle = await keeper.custody.scrubber.do_due(keeper.cycle())
    assert cycle.has_gaps
    assert keeper.blobs.poison.names(INDEX_AREA) == {""}
    keeper.blobs.look_again()
    assert keeper.blobs.poison.names(INDEX_AREA) == {""}
    assert keeper.held() == sorted([*names, file])
    assert keeper.blobs.packed.heal()
    assert not keeper.blobs.packed.heal()
    keeper.blobs.look_again()
    assert keeper.blobs.poison.names(INDEX_AREA) == frozenset()
    assert set(keeper.on_disk()) >= set(keeper.held())  # and what could not be stored, perhaps
    counts = await keeper.compare()
    assert (counts["looked"], counts["missing"]) == (4, 0)


def test_index_that_is_damaged_is_rebuilt_by_the_last_process_that_closes_it(tmp_path: Path) -> None:
    mark = tmp_path / "packs" / "index.sqlite-damaged"
    with closing(BlobStore(tmp_path)) as one, closing(BlobStore(tmp_path)) as two:
        put(one, CONTENT)
        put(two, b"of another process")
        mark.touch()
        for store in (one, two):
            with pytest.raises(FilestoreError):  # nothing is missing: it is not known
                read(store, NAME)
        for _ in range(2):
            with pytest.raises(OSError, match="rebuilt when no process of the node uses it"):
                BlobStore(tmp_path)
            with pytest.raises(OSError, match="rebuilt when no process of the node uses it"):
                one.packed.heal()
        assert two.packed.heal()
        assert not mark.exists()
        with pytest.raises(FilestoreError):
            put(one, b"what it has not opened yet")
        assert one.packed.heal()
        for store in (one, two):
            assert read(store, NAME) == CONTENT
            assert read(store, name_of(b"of another process")) == b"of another process"
            put(store, os.urandom(50))
        assert sorted(one.iterate()) == sorted(two.iterate())


async def test_wrong_index_is_rebuilt_while_the_node_runs(
    store: BlobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_monitor, "LOOK_S", 0.01)
    disk, other = DiskWorkers(), put(store, CONTENT[::-1])
    put(store, CONTENT)
    exchange_packed(tmp_path, NAME, other)
    with pytest.raises(FilestoreError):  # it is asked elsewhere, and nothing is lost or damaged
        store.open(NAME)
    watching = asyncio.create_task(DiskWatch(disk, store, UploadLocks()).run())
    while not store.packed.store.index.is_usable:
        await asyncio.sleep(0.01)
    watching.cancel()
    await asyncio.wait({watching})
    disk.close()
    assert read(store, NAME) == CONTENT
    assert read(store, other) == CONTENT[::-1]


@PACKS
async def test_scrub_finds_what_the_index_of_the_packs_lacks(keeper: Keeper) -> None:
    """And each process compares them once, also in the middle of a cycle or after it."""
    names = sorted(keeper.store() for _ in range(3))
    cycle = await keeper.custody.scrubber.do_due(keeper.cycle())
    assert not cycle.has_gaps
    keeper.restart()
    with opened_index(keeper.directory) as db:
        db.execute("DELETE FROM blobs WHERE sha256 = ?", (bytes.fromhex(names[1]),))
    assert not (await keeper.custody.scrubber.do_due(cycle)).has_gaps  # all that it was to read was read
    assert keeper.blobs.poison.names(INDEX_AREA) == {""}
    assert keeper.held() == names
    assert (await keeper.custody.scrubber.do_due(keeper.cycle())).has_gaps
    assert keeper.blobs.packed.heal()
    assert not (await keeper.custody.scrubber.do_due(keeper.cycle())).has_gaps
    assert keeper.on_disk() == names


@pytest.mark.parametrize("damaged", [0, 1, 2])
def test_scrub_keeps_one_sound_record_of_a_blob(tmp_path: Path, damaged: int) -> None:
    """Without an earlier index all are back that the blob ever had. A damaged one is copied nowhere."""
    with closing(BlobStore(tmp_path)) as store:
        for _ in range(3):
            store.packed.put([(NAME, CONTENT)])
    for path in (tmp_path / "packs").glob(f"{INDEX}*"):
        path.unlink()
    with closing(BlobStore(tmp_path)) as store:
        copies = store.packed.copies(NAME)
        assert len(copies) == 3
        rot_at(tmp_path, copies[damaged])
        store.open(NAME, is_afresh=True).close()
        [kept] = store.packed.copies(NAME)
        assert kept.place != copies[damaged].place
        compare(store.packed.store)
        assert rewrite_all(store)
        assert len(list((tmp_path / "packs").glob("*.pack"))) == 1
        assert read(store, NAME) == CONTENT


@pytest.mark.parametrize("size_bytes", [100, 5_000, BLOB_BYTES_MAX])
def test_scrub_reads_a_packed_blob_past_the_page_cache(
    store: BlobStore, tmp_path: Path, size_bytes: int
) -> None:
    content = os.urandom(size_bytes)
    put(store, b"x" * 700)
    name = put(store, content)
    put(store, b"y" * 700)
    found = packed_present(tmp_path, name)
    if not drops_pages(found.pack.parent):
        pytest.skip("the files of this test lie on a file system in memory")
    where = found.pack, found.start, found.start + size_bytes
    with store.open(name) as blob:
        assert all(pages_in_memory(*where))
        [copy] = store.packed.copies(name)
        store.packed.store.drop_pages(copy)
        assert not any(pages_in_memory(*where))
        assert blob.verify_on_medium(0, blob.begin())
        rot_packed(tmp_path, name)
        assert not blob.verify_on_medium(0, blob.begin())


def test_scrub_reads_a_packed_blob_once(store: BlobStore, tmp_path: Path) -> None:
    if not counts_reads(tmp_path):
        pytest.skip("the kernel does not count what is read from the file system of this test")
    name = put(store, os.urandom(BLOB_BYTES_MAX))
    for attempt in range(2):  # whatever lies in memory
        before = read_from_disks_bytes()
        with store.open(name, is_afresh=True) as blob:
            assert blob.verify_on_medium(0, blob.begin())
        assert BLOB_BYTES_MAX <= read_from_disks_bytes() - before < 1.5 * BLOB_BYTES_MAX, attempt
    rot_packed(tmp_path, name)
    with pytest.raises(BlobDamaged):
        store.open(name, is_afresh=True)


def test_pack_that_cannot_be_opened_is_damage_to_whoever_reads_afresh_too(
    store: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, CONTENT)
    store.packed.store.seal()

    def fails(number: int, _directory: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(number))

    store.packed.store._readers.clear()
    monkeypatch.setattr("node.packs.store.open_pack", fails)
    for is_afresh in (False, True):
        with pytest.raises(BlobDamaged):
            store.open(NAME, is_afresh=is_afresh)


def test_look_at_a_packed_blob_reads_none_of_it(store: BlobStore, tmp_path: Path) -> None:
    """As of a file: a comparison would read all small blobs of a disk else."""
    put(store, CONTENT)
    rot_packed(tmp_path, NAME)
    assert check_blob(store, NAME, len(CONTENT)).is_whole
    other = check_blob(store, NAME, len(CONTENT) + 1)
    assert not other.is_whole
    assert other.damage is not None


@PACKS
async def test_damage_that_a_reader_meets_is_served_by_nobody_and_counted(keeper: Keeper) -> None:
    name = keeper.store()
    keeper.rot(name)
    with pytest.raises(BlobDamaged) as caught:
        keeper.blobs.open(name)
    await remove_from_service(keeper.disk, keeper.blobs, keeper.metrics, caught.value)
    assert keeper.registry.get_sample_value("filestore_damaged_segments_total") == 1
    assert keeper.registry.get_sample_value("filestore_quarantined_blobs_total") == 1
    assert (keeper.on_disk(), keeper.quarantined()) == ([], [name])


def test_installed_content_that_the_disk_gives_back_otherwise_is_refused(
    store: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is packed out of a file is read once more: it is the last time that anybody could notice."""
    monkeypatch.setattr("node.storage.blobs.read_whole", lambda *_, **__: CONTENT[::-1])
    upload = store.write_incoming(CONTENT)
    with store.open(put(store, CONTENT, packed=False)) as blob:
        sums = blob.sums
    store.packed.takes_new = lambda: True
    with pytest.raises(FilestoreError, match="does not return"):
        store.install(FinishedBlob(NAME, len(CONTENT)), sums, source=upload, parent=store.uploads_directory)
    assert store.packed.copies(NAME) == []


def test_damaged_index_is_said_to_be_that(store: BlobStore, tmp_path: Path) -> None:
    put(store, CONTENT)
    (tmp_path / "packs" / f"{INDEX}-damaged").touch()
    with pytest.raises(IndexDamaged):
        PackIndex(tmp_path / "packs" / INDEX)
