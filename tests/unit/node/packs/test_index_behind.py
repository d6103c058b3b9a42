"""An index that is behind its packs, as a kill leaves it: the next who opens them catches up."""

import errno
import fcntl
import os
import shutil
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from node.diskio.durable import Disk, Octets
from node.packs import index
from node.packs.store import INDEX, PackStore
from tests.unit.node.packs.pack_acts import PACK_BYTES, blob
from tests.unit.node.packs.test_pack_store import present, put
from tests.unit.packed_store import compare


def left(path: Path, target: Path, names: str) -> None:
    """What lies there now, while the packs are open: what a kill would leave."""
    target.mkdir(exist_ok=True)
    for file in path.glob(names):
        shutil.copy2(file, target)


@pytest.mark.parametrize("known", [0, 1, 3])
def test_what_was_stored_behind_the_index_is_known_after_a_kill_and_claimed_by_nobody(
    store: PackStore, path: Path, tmp_path: Path, known: int
) -> None:
    found = tmp_path / "found"
    put(store, *range(known))
    left(path, found, "index.sqlite*")
    put(store, 10)
    put(store, 11, 12)
    left(path, found, "*.pack")
    with closing(PackStore(found, pack_bytes_max=PACK_BYTES)) as again:
        assert present(again) == {*range(known), 10, 11, 12}
        assert {sha256 for sha256, _ in again.index.list_unclaimed(100)} == {
            blob(number)[0] for number in (*range(known), 10, 11, 12)
        }


def test_record_that_the_index_did_not_take_is_no_damage_of_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody was told of it: the records behind it must not say that the index knows it."""
    monkeypatch.setattr(index, "BUSY_S", 0.05)
    with closing(PackStore(path)) as store:
        put(store, 1)
        with closing(sqlite3.connect(path / INDEX, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(OSError, match="locked"):
                put(store, 2)
        put(store, 3)
        compare(store)
        assert present(store) == {1, 3}


def test_pack_that_another_begins_at_that_moment_is_not_taken_for_one_that_was_left(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sealed, its next blobs would be lost with the newest rows of the index, in a power cut.

    Who begins it waits for its lock while others look whether somebody has it.
    """
    made, looked_at, locked, written = (threading.Event() for _ in range(4))
    flock, opening = fcntl.flock, threading.current_thread()

    def stepped(descriptor: int, operation: int) -> None:
        if threading.current_thread() is not opening:
            made.set()
            looked_at.wait(10)
            try:
                flock(descriptor, operation)
            finally:
                locked.set()
            return
        flock(descriptor, operation)
        if Path(f"/proc/self/fd/{descriptor}").readlink().suffix == ".pack" and not written.is_set():
            looked_at.set()
            (written if operation == fcntl.LOCK_UN else locked).wait(0.2)

    def fsync(descriptor: int) -> None:
        os.fsync(descriptor)
        written.set()

    with closing(PackStore(path, disk=Disk(fsync=fsync))) as store, ThreadPoolExecutor() as pool:
        monkeypatch.setattr(fcntl, "flock", stepped)
        putting = pool.submit(put, store, 1)
        made.wait(10)
        with closing(PackStore(path)) as other:
            putting.result()
            assert [pack.is_sealed for pack in other.index.packs()] == [False]
            assert present(other) == {1}


def test_pack_that_another_ends_with_nothing_in_it_at_that_moment_keeps_nobody_from_opening(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pwrite(descriptor: int, buffer: Octets, offset: int) -> int:
        if offset:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return os.pwrite(descriptor, buffer, offset)

    def listed(directory: int) -> list[str]:
        names = os_listdir(directory)
        other.close()
        return names

    os_listdir, other = os.listdir, PackStore(path, disk=Disk(pwrite=pwrite))
    with pytest.raises(OSError, match="error"):
        put(other, 1)
    monkeypatch.setattr(os, "listdir", listed)
    with closing(PackStore(path)) as store:
        assert store.index.packs() == []
    assert not list(path.glob("*.pack"))
