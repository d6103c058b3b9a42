"""Small blobs of many callers share syncs, and each hears what became of its own."""

import asyncio
import errno
import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from ca.errors import InsufficientStorage, Unavailable
from node.diskio.durable import Disk, Octets
from node.diskio.executor import DiskWorkers
from node.packs import group_commit
from node.packs.group_commit import GroupCommit
from node.storage.blobs import BlobStore

Blobs = Sequence[tuple[str, Octets]]


@pytest.fixture
def disk() -> Iterator[DiskWorkers]:
    workers = DiskWorkers()
    yield workers
    workers.close()


class Store:
    """Notes what is stored together; the first time it waits for `go`."""

    def __init__(self, refuse: Callable[[Blobs], None] = lambda _: None) -> None:
        self.batches: list[list[str]] = []
        self.go = threading.Event()
        self._refuse = refuse

    def __call__(self, blobs: Blobs) -> None:
        assert self.go.wait(20)
        self.batches.append([name for name, _ in blobs])
        self._refuse(blobs)


async def test_what_comes_during_a_sync_shares_the_next(disk: DiskWorkers) -> None:
    store = Store()
    commit = GroupCommit(disk, store)
    waiting = [commit.put(str(number), b"x") for number in range(20)]
    store.go.set()
    await asyncio.gather(*waiting)
    assert store.batches == [["0"], [str(number) for number in range(1, 20)]]
    await commit.put("alone", b"")
    assert store.batches[-1] == ["alone"]


async def test_batch_has_a_bound(disk: DiskWorkers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit, "BATCH_BLOBS_MAX", 3)
    monkeypatch.setattr(group_commit, "BATCH_BYTES_MAX", 10)
    store = Store()
    commit = GroupCommit(disk, store)
    waiting = [commit.put(name, bytes(int(name))) for name in ("1", "1", "1", "1", "9", "9", "9")]
    store.go.set()
    await asyncio.gather(*waiting)
    assert store.batches == [["1"], ["1", "1", "1"], ["9", "9"], ["9"]]


async def test_refused_batch_is_told_to_each_of_it_and_to_no_other(disk: DiskWorkers) -> None:
    def refuse(blobs: Blobs) -> None:
        if ("bad", b"x") in blobs:
            raise OSError(errno.ENOSPC, "full")

    store = Store(refuse)
    commit = GroupCommit(disk, store)
    first, *others = [commit.put(name, b"x") for name in ("good", "bad", "with it")]
    store.go.set()
    await first
    failures = await asyncio.gather(*others, return_exceptions=True)
    assert [type(each).__mro__[1] for each in failures] == [InsufficientStorage] * 2
    assert failures[0] is not failures[1]
    await commit.put("good again", b"x")


async def test_who_does_not_wait_any_more_keeps_nobody_waiting(disk: DiskWorkers) -> None:
    store = Store()
    commit = GroupCommit(disk, store)
    waiting = [commit.put(name, b"x") for name in "abc"]
    waiting[0].cancel()
    waiting[1].cancel()
    store.go.set()
    await waiting[2]
    assert store.batches == [["a"], ["b", "c"]]


async def test_too_many_bytes_that_wait_are_refused(
    disk: DiskWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_commit, "WAITING_BYTES_MAX", 10)
    store = Store()
    commit = GroupCommit(disk, store)
    waiting = [commit.put("a", bytes(10)), commit.put("b", bytes(10))]  # the first does not wait any more
    with pytest.raises(Unavailable, match="is too slow"):
        commit.put("c", b"x")
    store.go.set()
    await asyncio.gather(*waiting)
    await commit.put("c", b"x")


async def test_disk_that_is_closed_refuses(disk: DiskWorkers) -> None:
    disk.close()
    commit = GroupCommit(disk, Store())
    for name in ("a", "b"):
        with pytest.raises(Unavailable, match="stopping"):
            await commit.put(name, b"x")


async def test_blobs_that_come_at_once_share_few_syncs(disk: DiskWorkers, tmp_path: Path) -> None:
    syncs = list[int]()

    def fdatasync(descriptor: int) -> None:
        os.fdatasync(descriptor)
        syncs.append(descriptor)

    contents = [os.urandom(1000) for _ in range(100)]
    blobs = {hashlib.sha256(content).hexdigest(): content for content in contents}
    with closing(BlobStore(tmp_path, disk=Disk(fdatasync=fdatasync))) as store:
        store.packed.takes_new = lambda: True
        commit = GroupCommit(disk, store.pack)
        await commit.put(*blobs.popitem())
        syncs.clear()  # of making the pack
        await asyncio.gather(*(commit.put(*blob) for blob in blobs.items()))
        assert 0 < len(syncs) <= 10
        for name, content in blobs.items():
            with store.open(name) as blob:
                assert blob.read_cached(0, len(content)) == content
    with closing(BlobStore(tmp_path)) as again:
        assert all(again.packed.find(name) is not None for name in blobs)
