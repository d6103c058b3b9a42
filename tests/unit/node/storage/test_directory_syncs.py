"""A directory that could not be synced: what was done in it is durable only after a sync that succeeded, also
where whoever tries again finds nothing left to do.
"""

import errno
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ca import secretfiles
from ca.errors import FilestoreError
from node.diskio.durable import DirectorySyncs, Disk
from node.diskio.fs import DiskFailed
from node.storage.damage import remove_from_service
from node.storage.partial_store import PartialStore
from node.storage.quarantine import Quarantine
from node.storage.segments import SEGMENT_BYTES, BlobDamaged, FinishedBlob
from tests.unit.custody_node import LAYOUTS, Keeper


@pytest.fixture
def layout() -> str:
    """What is told here is told of directories."""
    return "files"


class Syncs:
    """The syncs of a disk: those of `failing` directories fail, all others are noted."""

    def __init__(self, sync: Callable[[int], None] = os.fsync) -> None:
        self._sync = sync
        self.failing: set[Path] = set()
        self.done: list[Path] = []

    def fsync(self, descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path in self.failing:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self._sync(descriptor)
        self.done.append(path)


@pytest.fixture
def syncs(keeper: Keeper) -> Syncs:
    syncs = Syncs()
    keeper.blobs.disk = Disk(fsync=syncs.fsync)
    return syncs


def test_deletion_from_quarantine_that_was_not_durable_is_when_it_is_asked_for_again(
    keeper: Keeper, syncs: Syncs
) -> None:
    name, aside = keeper.store(), keeper.directory / "quarantine"
    quarantine = Quarantine(keeper.blobs)
    assert quarantine.take(name)
    syncs.failing.add(aside)
    for _ in range(2):
        with pytest.raises(DiskFailed):
            quarantine.purge(name)
    syncs.failing.clear()
    syncs.done.clear()
    assert not quarantine.purge(name)
    assert syncs.done == [aside]
    assert not quarantine.purge(name)
    assert syncs.done == [aside]  # once is enough


@pytest.mark.parametrize("which", ["quarantine", "leaf"])
def test_move_into_quarantine_that_was_not_durable_is_when_it_is_asked_for_again(
    keeper: Keeper, syncs: Syncs, which: str
) -> None:
    name, aside = keeper.store(), keeper.directory / "quarantine"
    leaf = keeper.path(name).parent
    quarantine = Quarantine(keeper.blobs)
    syncs.failing.add(aside if which == "quarantine" else leaf)
    for _ in range(2):
        with pytest.raises(DiskFailed):
            quarantine.take(name)
    syncs.failing.clear()
    syncs.done.clear()
    assert quarantine.take(name)
    assert syncs.done == [aside, leaf]
    assert not quarantine.take(name)


def test_deletion_of_a_blob_that_was_not_durable_is_when_it_is_asked_for_again(
    keeper: Keeper, syncs: Syncs
) -> None:
    name = keeper.store()
    leaf = keeper.path(name).parent
    syncs.failing.add(leaf)
    for _ in range(2):
        with pytest.raises(DiskFailed):
            keeper.blobs.delete(name)
    syncs.failing.clear()
    syncs.done.clear()
    assert not keeper.blobs.delete(name)
    assert syncs.done == [leaf]


async def test_doomed_replica_is_not_reported_as_dropped_before_that_is_durable(
    keeper: Keeper, syncs: Syncs
) -> None:
    name, aside = keeper.store(), keeper.directory / "quarantine"
    keeper.doom(name)
    assert keeper.context.quarantine.take(name)
    syncs.failing.add(aside)
    for _ in range(2):
        counts = await keeper.collect()
        assert (counts["dropped"], counts["left"]) == (0, 1)
    syncs.failing.clear()
    assert (await keeper.collect())["dropped"] == 1


async def test_spared_replica_whose_name_cannot_be_made_durable_stays_in_its_place(
    keeper: Keeper, syncs: Syncs
) -> None:
    name = keeper.store()
    keeper.doom(name)
    syncs.failing.add(keeper.path(name).parent)
    counts = await keeper.collect()
    assert (counts["spared"], counts["dropped"], counts["left"]) == (0, 0, 1)
    assert (keeper.on_disk(), keeper.quarantined()) == ([name], [])
    syncs.failing.clear()
    assert (await keeper.collect())["spared"] == 1


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_damaged_replica_is_reported_also_where_its_move_is_not_durable(
    keeper: Keeper, syncs: Syncs
) -> None:
    name = keeper.store()
    keeper.rot(name)
    syncs.failing.add(keeper.directory / "quarantine")
    damage = BlobDamaged(name, "as a reader found", file=keeper.identity(name))
    await remove_from_service(keeper.disk, keeper.blobs, keeper.metrics, damage)
    await keeper.look()
    assert keeper.held() == []
    assert keeper.audited("replica.lost") == [name]


async def test_unknown_blob_whose_move_is_not_durable_is_reported_all_the_same(
    keeper: Keeper, syncs: Syncs
) -> None:
    name = keeper.put(keeper.content())
    keeper.age(name)
    syncs.failing.add(keeper.directory / "quarantine")
    assert (await keeper.compare())["quarantined"] == 1
    assert "ReportLost" in keeper.log.asked


def test_files_of_a_partial_that_were_not_durable_are_when_it_is_opened_again(
    keeper: Keeper, syncs: Syncs
) -> None:
    content = os.urandom(SEGMENT_BYTES + 1)
    with keeper.blobs.open(keeper.put(content)) as blob:
        sums = blob.sums
    partials = PartialStore(keeper.blobs)
    wanted = FinishedBlob(hashlib.sha256(content).hexdigest(), len(content))
    directory = keeper.directory / "partials" / wanted.sha256
    syncs.failing.add(directory)
    for _ in range(2):
        with pytest.raises(FilestoreError):
            partials.open(wanted, sums)
    syncs.failing.clear()
    syncs.done.clear()
    partials.open(wanted, sums).close()
    assert directory in syncs.done


def test_directory_whose_name_is_not_durable_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs, made = Syncs(os.fsync), tmp_path / "a" / "b" / "c"
    syncs.failing.add(tmp_path / "a")
    monkeypatch.setattr(os, "fsync", syncs.fsync)
    for _ in range(2):
        with pytest.raises(OSError, match="Input/output"):
            secretfiles.make_directory(made)
    syncs.failing.clear()
    secretfiles.make_directory(made)
    assert tmp_path / "a" in syncs.done
    assert made.is_dir()


def test_sync_that_began_before_another_has_failed_does_not_make_up_for_it(tmp_path: Path) -> None:
    syncs, descriptor = DirectorySyncs(), os.open(tmp_path, os.O_RDONLY)

    def fail(_descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def meanwhile(_descriptor: int) -> None:
        with pytest.raises(OSError, match="Input/output"):
            syncs.sync(Disk(fsync=fail), descriptor, "it")

    syncs.sync(Disk(fsync=meanwhile), descriptor, "it")
    assert syncs.is_due("it")
    syncs.sync(Disk(), descriptor, "it")
    assert not syncs.is_due("it")
    os.close(descriptor)
