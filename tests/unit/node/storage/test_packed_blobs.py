"""Small blobs that lie in packs, as `BlobStore` treats them: whatever holds of files holds of them."""

import errno
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from ca.errors import FilestoreError
from node.diskio.durable import Disk
from node.packs.store import BLOB_BYTES_MAX
from node.storage import packed_blobs
from node.storage.blobs import BlobStore
from node.storage.quarantine import Quarantine
from tests.packed_blobs import packed_content, packed_names
from tests.unit.custody_node import PACKS, Keeper
from tests.unit.packed_store import CONTENT, NAME, path_of, put, read, rewrite_all


@pytest.fixture
def store(tmp_path: Path) -> Iterator[BlobStore]:
    with closing(BlobStore(tmp_path)) as opened:
        yield opened


def test_small_blobs_are_packed_once_that_is_said_and_others_are_files(
    store: BlobStore, tmp_path: Path
) -> None:
    before = put(store, b"before", packed=False)
    assert list((tmp_path / "packs").glob("*.pack")) == []
    small, large = os.urandom(BLOB_BYTES_MAX), os.urandom(BLOB_BYTES_MAX + 1)
    names = [put(store, content) for content in (small, large, b"")]
    assert packed_names(tmp_path) == sorted([names[0], names[2]])
    assert list(store.iterate()) == sorted([before, *names])
    for name, content in zip([before, *names], (b"before", small, large, b""), strict=True):
        assert store.size_bytes(name) == len(content)
        assert read(store, name) == content
        assert store.has(name)
    assert path_of(tmp_path, before).exists()


def test_blob_in_both_layouts_is_one_blob(store: BlobStore, tmp_path: Path) -> None:
    put(store, CONTENT, packed=False)
    put(store, CONTENT)
    assert list(store.iterate()) == [NAME]
    assert read(store, NAME) == CONTENT
    assert store.affirm(NAME)
    assert store.delete(NAME)
    assert (list(store.iterate()), store.has_name(NAME), store.mark(NAME)) == ([], False, None)
    assert not path_of(tmp_path, NAME).exists()
    assert not store.delete(NAME)


@pytest.mark.parametrize("copies", [1, 2])
def test_quarantine_takes_every_copy_one_after_the_other(
    store: BlobStore, tmp_path: Path, copies: int
) -> None:
    if copies > 1:
        put(store, CONTENT, packed=False)
    put(store, CONTENT)
    quarantine = Quarantine(store)
    for _ in range(copies):
        assert quarantine.take(NAME)
    assert not quarantine.take(NAME)
    assert not store.has_name(NAME)
    assert (tmp_path / "quarantine" / NAME).read_bytes() == CONTENT


def test_deletion_is_given_up_when_its_condition_says_so(store: BlobStore) -> None:
    put(store, CONTENT)
    assert not store.delete(NAME, unless=lambda: True)
    assert read(store, NAME) == CONTENT


@pytest.mark.parametrize("how", ["affirmed", "came again"])
def test_what_somebody_is_told_of_during_a_deletion_stays(store: BlobStore, how: str) -> None:
    put(store, CONTENT)
    mark, asked = store.mark(NAME), 0

    def stays() -> bool:
        nonlocal asked
        asked += 1
        is_other = store.mark(NAME) != mark
        if asked == 1:  # somebody comes after the look, and before the deletion
            assert store.affirm(NAME) if how == "affirmed" else put(store, CONTENT)
        return is_other

    assert not store.delete(NAME, unless=stays)
    assert asked == 2
    assert read(store, NAME) == CONTENT


def test_put_that_comes_while_a_blob_is_deleted_is_not_lost(store: BlobStore, tmp_path: Path) -> None:
    """What `put` has returned for is there until somebody deletes it who has seen it."""
    with closing(BlobStore(tmp_path)) as other:
        for _ in range(60):
            put(store, CONTENT)
            mark = store.mark(NAME)

            def unmarked(mark: object = mark) -> bool:
                return store.mark(NAME) != mark

            deleting = threading.Thread(target=lambda: store.delete(NAME, unless=unmarked))
            deleting.start()
            put(other, CONTENT)
            deleting.join()
            assert read(store, NAME) == CONTENT


def test_blob_is_read_quarantined_and_removed_while_its_pack_is_rewritten(store: BlobStore) -> None:
    contents = [os.urandom(400) for _ in range(60)]
    names = [put(store, content) for content in contents]
    stop = threading.Event()

    def rewriting() -> None:
        while not stop.is_set():
            rewrite_all(store)

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(rewriting)
        for number in range(0, 60, 3):
            kept, removed, taken = names[number : number + 3]
            with store.open(kept) as blob:
                assert store.size_bytes(kept) == 400
                assert store.delete(removed)
                assert Quarantine(store).take(taken)
                assert os.pread(blob.fd, 401, 0) == contents[number]
        stop.set()
        running.result()
    assert list(store.iterate()) == sorted(names[::3])
    for name, content in zip(names[::3], contents[::3], strict=True):
        assert read(store, name) == content
    assert [name for name, _ in Quarantine(store).names()] == sorted(names[2::3])


def test_blob_that_is_open_is_read_after_its_pack_was_rewritten_and_it_was_removed(store: BlobStore) -> None:
    put(store, CONTENT)
    with store.open_and_cache(NAME) as blob:
        rewrite_all(store)
        assert blob.is_here() is False  # another place: it is opened anew
        assert store.opened.read_cached(NAME, 0, 10) == CONTENT[:10]  # it was right when it was read
        store.drop_changed()
        assert store.opened.take(NAME) is None
        assert store.delete(NAME)
        assert os.pread(blob.fd, 5_001, 0) == CONTENT


def test_room_of_a_pack_that_another_process_has_rewritten_is_given_back(
    store: BlobStore, tmp_path: Path
) -> None:
    put(store, CONTENT)
    with closing(BlobStore(tmp_path)) as reader:
        assert read(reader, NAME) == CONTENT
        rewrite_all(store)
        store.packed.store.drop_gone()
        assert read(reader, NAME) == CONTENT
        assert open_and_gone(tmp_path) == 1
        reader.drop_changed()
        assert open_and_gone(tmp_path) == 0


def open_and_gone(directory: Path) -> int:
    shown = [str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return sum(each.startswith(str(directory)) and each.endswith(".pack (deleted)") for each in shown)


def test_removed_blobs_give_back_their_room_when_their_pack_is_rewritten(
    store: BlobStore, tmp_path: Path
) -> None:
    names = [put(store, os.urandom(20_000)) for _ in range(20)]
    for name in names[1:]:
        store.delete(name)
    before = packs_bytes(tmp_path)
    assert rewrite_all(store) > 300_000
    assert before - packs_bytes(tmp_path) > 300_000
    assert list(store.iterate()) == names[:1]


def packs_bytes(directory: Path) -> int:
    return sum(file.stat().st_size for file in (directory / "packs").glob("*.pack"))


def test_packs_that_another_process_made_are_found(store: BlobStore, tmp_path: Path) -> None:
    """A worker that began before there were any once found none for ever."""
    with closing(BlobStore(tmp_path)) as other:
        put(other, CONTENT)
        assert list(store.iterate()) == [NAME]
        assert read(store, NAME) == CONTENT


def test_notes_of_unclaimed_blobs_are_those_of_both_layouts(store: BlobStore, tmp_path: Path) -> None:
    names = [put(store, b"file", packed=False), put(store, b"packed")]
    notes = {note.sha256: note for note in store.unclaimed.some(9)}
    assert sorted(notes) == sorted(names)
    assert len(store.unclaimed.some(1)) == 1
    put(store, b"packed")
    store.unclaimed.forget(notes[names[1]])
    assert [note.sha256 for note in store.unclaimed.some(9)] == names  # it came again
    for note in store.unclaimed.some(9):
        assert store.unclaimed.is_latest(note)
        store.unclaimed.forget(note)
    assert store.unclaimed.some(9) == []
    put(store, b"packed")
    store.unclaimed.forget_all(names[1])
    assert store.unclaimed.some(9) == []


def test_blob_is_deleted_on_a_full_disk(tmp_path: Path) -> None:
    full = False

    def pwrite(descriptor: int, buffer: bytes | bytearray | memoryview, offset: int) -> int:
        if full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.pwrite(descriptor, buffer, offset)

    with closing(BlobStore(tmp_path, disk=Disk(pwrite=pwrite))) as store:
        put(store, CONTENT)
        full = True
        with pytest.raises(FilestoreError):
            put(store, b"no room")
        assert store.delete(NAME)
        assert not store.has_name(NAME)
    with closing(BlobStore(tmp_path)) as again:
        assert not again.has_name(NAME)


def test_data_directory_of_an_older_release_stays_what_it_is(tmp_path: Path) -> None:
    contents = [os.urandom(size_bytes) for size_bytes in (0, 10, 70_000)]
    with closing(BlobStore(tmp_path)) as older:
        names = [put(older, content, packed=False) for content in contents]
    assert list((tmp_path / "packs").glob("*.pack")) == []
    with closing(BlobStore(tmp_path)) as store:
        new = put(store, b"new")
        assert list(store.iterate()) == sorted([*names, new])
        for name, content in zip(names, contents, strict=True):
            assert read(store, name) == content
            assert packed_content(tmp_path, name) is None
            assert path_of(tmp_path, name).read_bytes() == content
        assert store.delete(names[1])
    assert packed_names(tmp_path) == [new]


@PACKS
async def test_names_are_read_in_pages_across_both_layouts(
    keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_blobs, "PAGE_BLOBS", 3)
    names = [keeper.put(keeper.content()) for _ in range(11)]
    names += [put(keeper.blobs, os.urandom(9), packed=False) for _ in range(4)]
    assert keeper.on_disk() == sorted(names)
