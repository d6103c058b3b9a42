"""Blobs that are kept open: handed out while they are what they were, and closed when they are not."""

import hashlib
import os
import resource
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from node.diskio.executor import DiskWorkers
from node.membership.disk_monitor import DiskWatch
from node.storage.blobs import BlobStore
from node.storage.open_blobs import CONTENT_BYTES_MAX, OPEN_BLOBS_SHARE, OpenBlobs
from node.storage.quarantine import Quarantine
from node.uploads.write_locks import UploadLocks
from tests.unit.custody_node import FILES

CONTENT = os.urandom(10_000)
NAME = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def store(layout: str, tmp_path: Path) -> Iterator[BlobStore]:
    opened = BlobStore(tmp_path)
    opened.packed.takes_new = lambda: layout == "packs"
    put(opened, CONTENT)
    yield opened
    opened.close()


def put(store: BlobStore, content: bytes) -> str:
    name = hashlib.sha256(content).hexdigest()
    with store.receive(name, len(content)) as writer:
        writer.write(content)
        writer.finish()
    return name


def path_of(tmp_path: Path) -> Path:
    return tmp_path / "blobs" / NAME[:2] / NAME[2:4] / NAME


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_blob_that_was_opened_to_be_kept_is_taken_without_the_store(store: BlobStore) -> None:
    assert store.opened.take(NAME) is None
    store.open_and_cache(NAME).close()
    with store.opened.take(NAME) or pytest.fail("not kept") as blob:
        assert os.pread(blob.fd, 20_000, 0) == CONTENT
        blob.verify_range(0, len(CONTENT))


def test_taken_blob_is_readable_after_the_kept_one_was_forgotten(store: BlobStore) -> None:
    with store.open_and_cache(NAME) as blob:
        store.opened.forget(NAME)
        assert os.pread(blob.fd, 20_000, 0) == CONTENT


@pytest.mark.parametrize("act", ["delete", "quarantine"])
def test_blob_that_goes_is_closed_at_once(store: BlobStore, act: str) -> None:
    store.open(NAME).close()  # a pack stays open
    before = descriptors()
    store.open_and_cache(NAME).close()
    assert descriptors() == before + 1
    assert Quarantine(store).take(NAME) if act == "quarantine" else store.delete(NAME)
    assert descriptors() == before
    assert store.opened.take(NAME) is None


def test_blob_that_is_replaced_is_closed_at_once(store: BlobStore) -> None:
    store.open_and_cache(NAME).close()
    put(store, CONTENT)
    assert len(store.opened) == 0


@FILES
@pytest.mark.parametrize("act", ["unlinked", "renamed", "written", "linked"])
def test_file_that_others_changed_is_not_handed_out(store: BlobStore, tmp_path: Path, act: str) -> None:
    store.open_and_cache(NAME).close()
    path = path_of(tmp_path)
    if act == "unlinked":
        path.unlink()
    elif act == "renamed":
        path.rename(tmp_path / "elsewhere")
    elif act == "linked":
        (tmp_path / "elsewhere").hardlink_to(path)
    else:
        path.chmod(0o600)
        path.write_bytes(bytes(10_000))
    assert store.opened.take(NAME) is None
    assert len(store.opened) == 0


def test_file_that_went_between_opening_and_keeping_is_not_kept(store: BlobStore) -> None:
    forgotten = store.opened.forgotten
    with store.open(NAME) as blob:
        Quarantine(store).take(NAME)
        store.opened.keep(blob, forgotten=forgotten)
    assert len(store.opened) == 0


@FILES
def test_file_without_a_name_is_not_kept(store: BlobStore, tmp_path: Path) -> None:
    with store.open(NAME) as blob:
        path_of(tmp_path).unlink()
        store.opened.keep(blob, forgotten=store.opened.forgotten)
    assert len(store.opened) == 0


def read_when_trusted(store: BlobStore, name: str, start: int, stop: int) -> bytes:
    """A file that has just changed is not trusted yet."""
    while True:
        with store.open_and_cache(name) as blob:
            if blob.is_trusted(start, stop):
                return store.opened.read_cached(name, start, stop)
            blob.verify_range(start, stop)


def test_small_blob_that_was_read_stays_in_memory(store: BlobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_when_trusted(store, NAME, 0, 10_000) == CONTENT
    monkeypatch.setattr("node.storage.segments.read_cached", lambda *_: b"")
    assert store.opened.read_cached(NAME, 0, 10_000) == CONTENT
    assert store.opened.read_cached(NAME, 10, 20) == CONTENT[10:20]
    assert store.opened.read_cached(NAME, 0, 10_001) == b""
    assert store.opened.read_cached(NAME, 0, 10, size_bytes=10_000) == CONTENT[:10]
    assert store.opened.read_cached(NAME, 0, 10, size_bytes=10_001) == b""  # another one's place


def test_large_blob_does_not(store: BlobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    content = os.urandom(CONTENT_BYTES_MAX + 1)
    name = put(store, content)
    assert read_when_trusted(store, name, 0, len(content)) == content
    monkeypatch.setattr("node.storage.segments.read_cached", lambda *_: b"")
    assert store.opened.read_cached(name, 0, len(content)) == b""


def test_part_of_a_blob_is_not_taken_for_all_of_it(store: BlobStore) -> None:
    assert read_when_trusted(store, NAME, 10, 20) == CONTENT[10:20]
    assert store.opened.read_cached(NAME, 0, 10_000) == CONTENT


@FILES
@pytest.mark.parametrize("act", ["written", "deleted", "distrusted"])
def test_bytes_in_memory_go_with_the_trust_in_the_file(
    store: BlobStore, tmp_path: Path, act: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node.storage.open_blobs.LOOK_S", 0.0)
    assert read_when_trusted(store, NAME, 0, 10_000) == CONTENT
    if act == "written":
        path_of(tmp_path).chmod(0o600)
        path_of(tmp_path).write_bytes(bytes(10_000))
    elif act == "deleted":
        store.delete(NAME)
    else:
        store.trusted.forget(NAME)
    assert store.opened.read_cached(NAME, 0, 10_000) == b""


@FILES
def test_file_of_bytes_in_memory_is_looked_at_once_after_the_reading_and_then_seldom(
    store: BlobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node.storage.open_blobs.LOOK_S", 1e9)
    looks: list[int] = []
    fstat = os.fstat

    def look(descriptor: int) -> os.stat_result:
        looks.append(descriptor)
        return fstat(descriptor)

    monkeypatch.setattr("node.storage.segments.os.fstat", look)
    assert read_when_trusted(store, NAME, 0, 10_000) == CONTENT
    looks.clear()
    assert [store.opened.read_cached(NAME, 0, 10_000) for _ in range(3)] == [CONTENT] * 3
    assert len(looks) == 1
    path_of(tmp_path).chmod(0o600)
    assert store.opened.read_cached(NAME, 0, 10_000) == CONTENT
    monkeypatch.setattr("node.storage.open_blobs.LOOK_S", 0.0)
    assert store.opened.read_cached(NAME, 0, 10_000) == b""


async def test_blob_that_another_process_deleted_is_closed_at_the_next_look_at_the_disk(
    store: BlobStore, tmp_path: Path
) -> None:
    disk, other = DiskWorkers(), put(store, b"stays")
    watch = DiskWatch(disk, store, UploadLocks())
    await watch.check()
    for name in (NAME, other):
        store.open_and_cache(name).close()
    assert len(store.opened) == 2
    with closing(BlobStore(tmp_path)) as another:
        assert another.delete(NAME)
    await watch.check()
    assert len(store.opened) == 1
    disk.close()
    (store.opened.take(other) or pytest.fail("not kept")).close()


def test_few_are_kept_where_a_process_may_have_few_descriptors(tmp_path: Path) -> None:
    names = []
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
    try:
        store = BlobStore(tmp_path)
        for number in range(50):
            names.append(put(store, b"%d" % number))
            store.open_and_cache(names[-1]).close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(store.opened) == 200 // OPEN_BLOBS_SHARE
    store.close()


def test_blob_used_longest_ago_is_closed_first(tmp_path: Path) -> None:
    store, kept = BlobStore(tmp_path), OpenBlobs(blobs_max=2)
    names = [put(store, content) for content in (b"a", b"b", b"c")]
    before = descriptors()
    for name in names[:2]:
        with store.open(name) as blob:
            kept.keep(blob, forgotten=kept.forgotten)
    (kept.take(names[0]) or pytest.fail("not kept")).close()
    with store.open(names[2]) as blob:
        kept.keep(blob, forgotten=kept.forgotten)
    assert descriptors() == before + 2
    assert kept.take(names[1]) is None
    kept.close()
    assert descriptors() == before
    store.close()
